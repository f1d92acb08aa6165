"""Renames of hosts that have begun and are not complete: until then, no agent serves either name."""

from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.columns import utcnow
from autoclave.db.query import columns, fetch_all
from autoclave.db.tables import host_renames


@dataclass(frozen=True)
class RenameRecord:
    """A rename row. ``actor``: the operator that began it."""

    id: int
    hostname: str
    new_hostname: str
    actor: str
    began_at: datetime


_ROW = columns(RenameRecord, host_renames)


def about(tx: Connection, *names: str) -> list[RenameRecord]:
    """Return the renames from or to one of *names*."""
    either = sa.or_(host_renames.c.hostname.in_(names), host_renames.c.new_hostname.in_(names))
    return fetch_all(tx, RenameRecord, sa.select(*_ROW).where(either).order_by(host_renames.c.id))


def insert(tx: Connection, hostname: str, new_hostname: str, actor: str) -> None:
    """Record that a rename has begun."""
    values = {"hostname": hostname, "new_hostname": new_hostname, "actor": actor, "began_at": utcnow()}
    tx.execute(host_renames.insert().values(**values))


def delete(tx: Connection, hostname: str) -> None:
    """Remove the record of a rename: it is complete, or was given up before anything was renamed."""
    tx.execute(host_renames.delete().where(host_renames.c.hostname == hostname))
