"""The clock of the database's server, which all services of a cloud can compare theirs with."""

from datetime import datetime, timedelta

import sqlalchemy as sa

from autoclave.db.columns import utcnow
from autoclave.db.engine import Database

_NOW = {"postgresql": "clock_timestamp() AT TIME ZONE 'UTC'", "mysql": "UTC_TIMESTAMP(6)"}


def ahead_by(database: Database) -> timedelta:
    """How far the clock of this machine is ahead of the server's, at least; negative if it is behind.

    Nothing for a file, which has no other clock.

    :raises DatabaseUnavailable: the database does not answer.
    """
    if database.backend not in _NOW:
        return timedelta()
    with database.read() as tx:
        tx.execute(sa.text("SELECT 1"))  # it connects, which may take its time
        before = utcnow()
        theirs: datetime = tx.execute(sa.text(f"SELECT {_NOW[database.backend]}")).scalar_one()
        after = utcnow()
    return max(before - theirs, timedelta()) or min(after - theirs, timedelta())
