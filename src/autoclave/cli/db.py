"""Manage the schema and the rows of the database (``autoclave db``), and check an upgrade (``autoclave upgrade
check``)."""

import argparse
import contextlib
import getpass
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import sqlalchemy as sa
from cliff import command
from oslo_config import cfg
from prettytable import PrettyTable

from autoclave.conf import new_config
from autoclave.conf.agent import patience_with_agents
from autoclave.db import agents, schema
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database, current_revision
from autoclave.exceptions import AutoclaveError, Conflict, DatabaseUnavailable, InvalidConfiguration
from autoclave.lifecycle import backfill
from autoclave.lifecycle.transitions import Cause
from autoclave.objects.base import RequestContext
from autoclave.rules.device_lifecycle import Actor
from autoclave.services.upgrade_checks import UpgradeChecks


class OnDatabase(command.Command):  # type: ignore[misc]  # cliff comes without types
    """Share the arguments of commands that need the database."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments: the configuration that names the database."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "--config-file",
            action="append",
            required=True,
            dest="config_files",
            metavar="FILE",
            help="configuration file with [database] connection (repeatable: later files win)",
        )
        return parser


class DbSync(OnDatabase):
    """Create the database schema, or upgrade it to the revision that this version needs.

    Stop the services of the previous release first, unless the release notes allow them to continue. The command
    refuses to change the schema while an agent may be running that cannot use the new one.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Upgrade, and print the revisions.

        :raises InvalidConfiguration: no database is configured, or its schema is not Autoclave's.
        :raises Conflict: agents that cannot use the new schema are running.
        :raises DatabaseUnavailable: the database does not answer.
        """
        conf = new_config(parsed_args.config_files)
        with opened(conf, conf.database.timeout) as database:
            # With a timeout that detects a silent server.
            if (current_revision(database) or _ONE_INVENTORY) < _ONE_INVENTORY:
                _require_stopped(database, patience_with_agents(conf))
        with opened(conf, schema.STATEMENT_TIMEOUT) as database:
            before = schema.upgrade(database)
        where, needed = database.shown, schema.head()
        if before == needed:
            self.app.stdout.write(f"{where}: already at {needed}\n")
        else:
            self.app.stdout.write(f"{where}: upgraded from {before or 'an empty database'} to {needed}\n")
        self.app.stdout.flush()


_ONE_INVENTORY = "0019"
"""The revision that moves the devices of flavors; agents of older releases do not find them afterwards."""


def _require_stopped(database: Database, patience: timedelta) -> None:
    with database.read() as tx:
        seen = agents.last_seen(tx) if sa.inspect(tx).has_table("agents") else {}
    alive = sorted(host for host, at in seen.items() if utcnow() - at <= patience)
    if alive:
        raise Conflict(
            f"Agents of the release before are running on {', '.join(alive)}, or were less than "
            f"{patience.total_seconds():.0f} s ago. They cannot use the new schema, which keeps the devices of flavors "
            "and of device profiles in one table. Nothing was changed. Stop every agent, conductor and api, then run "
            "'autoclave db sync' again."
        )


class DbVersion(OnDatabase):
    """Show which revision the database's schema has, and which one this version needs."""

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Print both revisions; change nothing.

        :raises InvalidConfiguration: no database is configured.
        :raises DatabaseUnavailable: the database does not answer.
        """
        conf = new_config(parsed_args.config_files)
        with opened(conf, conf.database.timeout) as database:
            found = current_revision(database)
        self.app.stdout.write(f"{database.shown}: {found or 'no schema'}; this version needs {schema.head()}\n")


class DbOnlineDataMigrations(OnDatabase):
    """Migrate rows that an older release wrote. Services may run in the meantime.

    Exit code 0: nothing is left to do. 1: rows were migrated and more may be left, because of --max-count; run the
    command again until it is 0. 2: the database failed before any row was migrated. 127: --max-count is invalid.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments: the configuration, and how much to do."""
        parser = super().get_parser(prog_name)
        parser.add_argument("--max-count", metavar="N", help="migrate at most N rows, then stop")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Run every migration, and print the number of changed rows.

        :raises InvalidConfiguration: no database is configured, or its schema differs.
        :raises DatabaseUnavailable: the database does not answer.
        """
        left = None
        if parsed_args.max_count is not None:
            if not (parsed_args.max_count.isdecimal() and int(parsed_args.max_count) > 0):
                self.app.stderr.write(f"--max-count {parsed_args.max_count!r} is not a number of rows from 1.\n")
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
    """Return the database of ``[database] connection``, whatever its schema is.

    :raises InvalidConfiguration: the option is not set.
    """
    if not conf.database.connection:
        raise InvalidConfiguration(
            "is not set; use, for example, sqlite:////var/lib/autoclave/autoclave.db",
            option="[database] connection",
        )
    database = Database(conf.database.connection, timeout=timeout)
    try:
        yield database
    finally:
        database.dispose()


_UNEXPECTED = 255


class UpgradeCheck(OnDatabase):
    """Check database, agents, policy and Placement before or after an upgrade. Change nothing.

    Exit code 0: no findings. 1: there are warnings. 2: there are failures, which must be corrected first. 255: a check
    could not be carried out.
    """

    def take_action(self, parsed_args: argparse.Namespace) -> int:
        """Print a table of the checks, with the remedy of each failure."""
        try:
            conf = new_config(parsed_args.config_files)
            with opened(conf, conf.database.timeout) as database, contextlib.redirect_stdout(self.app.stdout):
                return int(UpgradeChecks(conf, database).check())
        except (AutoclaveError, cfg.Error) as error:
            self.app.stderr.write(f"{error}\n")
            return _UNEXPECTED
