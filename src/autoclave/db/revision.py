"""Which revision of the schema a database has. To know it takes no Alembic, which a service does without."""

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.engine import Database

_RECORDED = sa.table("alembic_version", sa.column("version_num", sa.String))


def current(database: Database) -> str | None:
    """The revision of the schema, or None for a database without one.

    :raises DatabaseUnavailable: the database does not answer.
    """
    with database.read() as connection:
        return recorded(connection)


def recorded(connection: Connection) -> str | None:
    """The revision that Alembic has recorded in the database, or None if it has recorded nothing."""
    if not sa.inspect(connection).has_table(_RECORDED.name):
        return None
    return connection.execute(sa.select(_RECORDED.c.version_num)).scalar_one_or_none()
