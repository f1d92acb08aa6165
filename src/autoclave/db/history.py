"""The history of devices. It is written in the transaction that changes the state, or not at all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.query import columns, fetch_all
from autoclave.db.tables import device_events
from autoclave.rules.plain_text import evidence_text


@dataclass(frozen=True)
class EventRecord:
    """One line of a device's history; ``evidence`` is JSON."""

    id: int
    device_uuid: str
    serial: str | None
    from_state: str | None
    to_state: str | None
    event: str
    actor: str
    request_id: str | None
    reason: str | None
    evidence: str | None
    created_at: datetime


_EVENT = columns(EventRecord, device_events)
_INSERT = device_events.insert()
_LAST_MOVE = (
    sa.select(device_events.c.event)
    .where(
        device_events.c.device_uuid == sa.bindparam("key"),
        sa.func.coalesce(device_events.c.from_state, "") != device_events.c.to_state,
    )
    .order_by(device_events.c.id.desc())
    .limit(1)
)


def append(
    tx: Connection,
    *,
    device_uuid: str,
    serial: str | None,
    from_state: str | None,
    to_state: str | None,
    event: str,
    actor: str,
    request_id: str | None,
    reason: str | None,
    evidence: Mapping[str, Any] | None = None,
) -> None:
    """Append one event. Evidence that is too long is shortened, and says so."""
    tx.execute(
        _INSERT,
        {
            "device_uuid": device_uuid,
            "serial": serial,
            "from_state": from_state,
            "to_state": to_state,
            "event": event,
            "actor": actor,
            "request_id": request_id,
            "reason": reason,
            "evidence": evidence_text(evidence) if evidence else None,
        },
    )


def history(tx: Connection, device_uuid: str) -> list[EventRecord]:
    """The events of one device, oldest first."""
    query = sa.select(*_EVENT).where(device_events.c.device_uuid == device_uuid).order_by(device_events.c.id)
    return fetch_all(tx, EventRecord, query)


def history_of_drive(tx: Connection, serial: str) -> list[EventRecord]:
    """The events of one drive in all slots that it was in, oldest first. Another drive may have the same serial."""
    query = sa.select(*_EVENT).where(device_events.c.serial == serial).order_by(device_events.c.id)
    return fetch_all(tx, EventRecord, query)


def last_of(tx: Connection, device_uuid: str, kinds: Sequence[str]) -> str | None:
    """The last event of a device that is one of *kinds*, or None if none is recorded."""
    query = sa.select(device_events.c.event).where(
        device_events.c.device_uuid == device_uuid, device_events.c.event.in_(kinds)
    )
    return tx.execute(query.order_by(device_events.c.id.desc()).limit(1)).scalar_one_or_none()


def last_move(tx: Connection, device_uuid: str) -> str | None:
    """The event that brought a device into the state that it is in, or None if none is recorded."""
    return tx.execute(_LAST_MOVE, {"key": device_uuid}).scalar_one_or_none()
