"""Manage the schema of the database, and check an upgrade.

``autoclave db``: the schema of the database, and what rows of an older release need.

``autoclave upgrade check``: what would stand in the way of this release.
"""

import argparse
import contextlib
import getpass
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from cliff import command
from oslo_config import cfg
from prettytable import PrettyTable

from autoclave.conf import new_config
from autoclave.db import schema
from autoclave.db.engine import Database, current_revision
from autoclave.exceptions import AutoclaveError, DatabaseUnavailable, InvalidConfiguration
from autoclave.lifecycle import backfill
from autoclave.lifecycle.transitions import Cause
from autoclave.objects.base import RequestContext
from autoclave.rules.device_lifecycle import Actor
from autoclave.services.upgrade_checks import UpgradeChecks


class OnDatabase(command.Command):  # type: ignore[misc]  # cliff comes without types
    """A command that needs the database."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments: the configuration that names the database."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--config-file",
            action="append",
            required=True,
            dest="config_files",
            metavar="FILE",
            help="a configuration file; [database] connection says where the database is (repeat for more: later "
            "files win)",
        )
        return parser


class DbSync(OnDatabase):
    """Make the database's schema, or bring it to the revision that this version needs.

    Stop the services of the release before first, unless the release notes say that they may run on.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Upgrade, and say from which revision to which.

        :raises InvalidConfiguration: no database is configured, or its schema is not ours to upgrade.
        :raises DatabaseUnavailable: the database does not answer.
        """
        conf = new_config(parsed_args.config_files)
        with opened(conf, conf.database.timeout) as database:
            current_revision(database)  # a server that says nothing is found out here, in a time that is meant for that
        with opened(conf, schema.STATEMENT_TIMEOUT) as database:
            before = schema.upgrade(database)
        where, needed = database.shown, schema.head()
        if before == needed:
            self.app.stdout.write(f"{where}: already at {needed}\n")
        else:
            self.app.stdout.write(f"{where}: upgraded from {before or 'an empty database'} to {needed}\n")
        self.app.stdout.flush()


class DbVersion(OnDatabase):
    """Show which revision the database's schema has, and which one this version needs."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Nothing is changed.

        :raises InvalidConfiguration: no database is configured.
        :raises DatabaseUnavailable: the database does not answer.
        """
        conf = new_config(parsed_args.config_files)
        with opened(conf, conf.database.timeout) as database:
            found = current_revision(database)
        self.app.stdout.write(f"{database.shown}: {found or 'no schema'}; this version needs {schema.head()}\n")


class DbOnlineDataMigrations(OnDatabase):
    """Give rows that an older release wrote what this one needs. Services may run meanwhile.

    Exit code 0: nothing is left to do. 1: rows were put right and more may be left, because of --max-count; run it
    again until it is 0. 2: the database failed before anything was put right. 127: --max-count is no number of rows.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments: the configuration, and how much to do."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--max-count", metavar="N", help="put at most N rows right, and stop")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Run every migration, and show what each of them did.

        :raises InvalidConfiguration: no database is configured, or its schema is another.
        :raises DatabaseUnavailable: the database does not answer.
        """
        left = None
        if parsed_args.max_count is not None:
            if not (parsed_args.max_count.isdecimal() and int(parsed_args.max_count) > 0):
                self.app.stderr.write(f"--max-count {parsed_args.max_count!r} is no number of rows from 1 on.\n")
                return 127
            left = int(parsed_args.max_count)
        conf = new_config(parsed_args.config_files)
        cause = Cause(Actor.OPERATOR, f"{getpass.getuser()}@{socket.gethostname()}", RequestContext.admin().request_id)
        table = PrettyTable(["Migration", "Total Needed", "Completed"])
        table.align = "l"
        limited, done, failed = left is not None, 0, False
        with opened(conf, conf.database.timeout) as database:
            schema.require_current(database)
            for migration in backfill.MIGRATIONS:
                try:
                    outcome = backfill.run(database, migration, cause, limit=left)
                except DatabaseUnavailable as error:
                    self.app.stderr.write(f"{migration.name} failed and must be run again: {error}\n")
                    failed = True
                    continue
                table.add_row([migration.name, outcome.needed, outcome.completed])
                done += outcome.completed
                left = None if left is None else left - outcome.completed
        self.app.stdout.write(f"{table}\n")
        if failed and not (limited and done):
            return 2
        return 1 if limited and done else 0


@contextmanager
def opened(conf: cfg.ConfigOpts, timeout: int) -> Iterator[Database]:
    """The database of ``[database] connection``, whatever its schema is.

    :raises InvalidConfiguration: it is not named.
    """
    if not conf.database.connection:
        raise InvalidConfiguration(
            "is not set; write for example sqlite:////var/lib/autoclave/autoclave.db",
            option="[database] connection",
        )
    database = Database(conf.database.connection, timeout=timeout)
    try:
        yield database
    finally:
        database.dispose()


_UNEXPECTED = 255


class UpgradeCheck(OnDatabase):
    """Look at database, agents, policy and Placement, and say what must be done. Changes nothing.

    Exit code 0: nothing. 1: something should be looked at. 2: something must be done first. 255: a check could not be
    carried out.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Show a table of the checks, with what to do about each that fails."""
        try:
            conf = new_config(parsed_args.config_files)
            with opened(conf, conf.database.timeout) as database, contextlib.redirect_stdout(self.app.stdout):
                return int(UpgradeChecks(conf, database).check())
        except (AutoclaveError, cfg.Error) as error:
            self.app.stderr.write(f"{error}\n")
            return _UNEXPECTED
