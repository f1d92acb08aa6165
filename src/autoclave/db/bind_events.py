"""What Nova is still to be told, kept in the rows of the ARQs: since when, and from when on it may be tried.

Whoever tries moves the second moment on first, so that no other conductor tries at the same time. It is also the
sign by which that one knows its own try again.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.query import columns, fetch_all
from autoclave.db.tables import arqs
from autoclave.rules.device_lifecycle import ARQState

NOT_OWED: dict[str, Any] = {"event_owed_at": None, "event_due_at": None}
"""The columns of an ARQ of which nobody is to be told."""

_TOLD = (ARQState.BOUND, ARQState.BIND_FAILED)


@dataclass(frozen=True)
class EventRecord:
    """An ARQ whose bind has ended, and of which Nova does not know yet."""

    uuid: str
    instance_uuid: str
    state: ARQState
    event_owed_at: datetime


_EVENT = columns(EventRecord, arqs)


def owed(now: datetime) -> dict[str, Any]:
    """The columns of an ARQ that has just been resolved."""
    return {"event_owed_at": now, "event_due_at": now}


def _is_due(now: datetime) -> sa.ColumnElement[bool]:
    return sa.and_(arqs.c.event_due_at <= now, arqs.c.state.in_(_TOLD))


def due(tx: Connection, now: datetime) -> list[str]:
    """The instances about which Nova may be told now, the one that has waited longest first."""
    query = sa.select(arqs.c.instance_uuid).where(_is_due(now))
    grouped = query.group_by(arqs.c.instance_uuid).order_by(sa.func.min(arqs.c.event_due_at), arqs.c.instance_uuid)
    return list(tx.scalars(grouped))


def next_due(tx: Connection) -> datetime | None:
    """When something may be tried next; None if nothing is owed."""
    moment: datetime | None = tx.scalar(sa.select(sa.func.min(arqs.c.event_due_at)).where(arqs.c.state.in_(_TOLD)))
    return moment


def count(tx: Connection) -> int:
    """How many events are owed."""
    return tx.scalar(sa.select(sa.func.count()).where(arqs.c.event_due_at.is_not(None), arqs.c.state.in_(_TOLD))) or 0


def claim(tx: Connection, instance_uuid: str, now: datetime, until: datetime) -> list[EventRecord]:
    """Take what is due for an instance; nobody else does before *until*.

    :returns: nothing if another was first, or if a bind for the instance is not finished: it is told of all of them
        together.
    """
    unfinished = sa.select(arqs.c.id).where(
        arqs.c.instance_uuid == instance_uuid, arqs.c.state == ARQState.BIND_STARTED
    )
    if tx.execute(unfinished.limit(1)).first() is not None:
        return []
    mine = _locked(tx, _is_due(now), arqs.c.instance_uuid == instance_uuid)
    _write(tx, mine, event_due_at=until)
    return mine


def take_overdue(tx: Connection, now: datetime, oldest: datetime) -> list[EventRecord]:
    """Owe nothing any more that has been owed since *oldest* or longer, and that nobody tries now; return it."""
    mine = _locked(tx, _is_due(now), arqs.c.event_owed_at <= oldest)
    _write(tx, mine, **NOT_OWED)
    return mine


def paid(tx: Connection, events: Iterable[EventRecord], claimed_until: datetime) -> None:
    """Nova knows, or will never know: nothing is owed, unless another has claimed it since."""
    _write(tx, events, arqs.c.event_due_at == claimed_until, **NOT_OWED)


def postpone(tx: Connection, events: Iterable[EventRecord], claimed_until: datetime, due_at: datetime) -> None:
    """It may be tried again at *due_at*, unless another has claimed it since."""
    _write(tx, events, arqs.c.event_due_at == claimed_until, event_due_at=due_at)


def _locked(tx: Connection, *which: sa.ColumnElement[bool]) -> list[EventRecord]:
    query = sa.select(*_EVENT).where(*which).order_by(arqs.c.id).with_for_update()
    return fetch_all(tx, EventRecord, query)


def _write(tx: Connection, events: Iterable[EventRecord], *which: sa.ColumnElement[bool], **values: Any) -> None:
    # To a caller the ARQ has not changed: updated_at stays.
    statement = arqs.update().where(arqs.c.uuid.in_([event.uuid for event in events]), *which)
    tx.execute(statement.values(updated_at=arqs.c.updated_at, **values))
