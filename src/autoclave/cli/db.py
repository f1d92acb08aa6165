"""``autoclave db``: the schema of the database."""

import argparse

from cliff import command
from sqlalchemy.engine import make_url

from autoclave.conf import new_config
from autoclave.db import schema
from autoclave.db.engine import Database
from autoclave.exceptions import InvalidConfiguration


class DbSync(command.Command):  # type: ignore[misc]  # cliff comes without types
    """Make the database's schema, or bring it to the revision that this version needs.

    Stop the services of the release before first, unless the release notes say that they may run on.
    """

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

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Upgrade, and say from which revision to which.

        :raises InvalidConfiguration: no database is configured, or its schema is newer than this version.
        :raises DatabaseUnavailable: the database does not answer.
        """
        url = new_config(parsed_args.config_files).database.connection
        if not url:
            raise InvalidConfiguration(
                "is not set; write for example sqlite:////var/lib/autoclave/autoclave.db",
                option="[database] connection",
            )
        database = Database(url)
        try:
            before = schema.upgrade(database)
        finally:
            database.dispose()
        where, needed = make_url(url).render_as_string(hide_password=True), schema.head()
        if before == needed:
            self.app.stdout.write(f"{where}: already at {needed}\n")
        else:
            self.app.stdout.write(f"{where}: upgraded from {before or 'an empty database'} to {needed}\n")
