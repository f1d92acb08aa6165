"""Which revision of the schema a database has. To know it takes no Alembic, which a service does without."""

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.engine import Database
from autoclave.exceptions import DatabaseUnavailable

_RECORDED = sa.table("alembic_version", sa.column("version_num", sa.String))

_SEE = {
    True: "see that it is an SQLite file, and that the user of this process may write to it and to its directory",
    False: "see that the server runs there, and that user, password and database are right",
}
"""What to do, by whether it is a file."""


def current(database: Database) -> str | None:
    """The revision of the schema, or None for a database without one.

    It is the first that anybody wants to know of a database, so whoever has named the wrong one is told here.

    :raises DatabaseUnavailable: the database does not answer.
    """
    try:
        with database.read() as connection:
            return recorded(connection)
    except DatabaseUnavailable as error:
        raise DatabaseUnavailable(
            f"[database] connection: {database.shown} cannot be used: {error}; {_SEE[database.backend == 'sqlite']}"
        ) from error


def recorded(connection: Connection) -> str | None:
    """The revision that Alembic has recorded in the database, or None if it has recorded nothing."""
    if not sa.inspect(connection).has_table(_RECORDED.name):
        return None
    return connection.execute(sa.select(_RECORDED.c.version_num)).scalar_one_or_none()
