"""Store the history of devices, and the ledger of dirty serial numbers.

An event is written in the transaction of the change. A drive stays dirty in every slot.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry
from sqlalchemy.engine import Connection

from autoclave.db.query import columns, fetch_all
from autoclave.db.tables import device_events, dirty_serials
from autoclave.rules.plain_text import evidence_text


@dataclass(frozen=True)
class EventRecord:
    """Represent one event of a device's history; ``evidence`` is JSON."""

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
    """Append one event. Evidence that is too long is shortened and marked as such."""
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
    """Return the events of one device, oldest first."""
    query = sa.select(*_EVENT).where(device_events.c.device_uuid == device_uuid).order_by(device_events.c.id)
    return fetch_all(tx, EventRecord, query)


def history_of_drive(tx: Connection, serial: str) -> list[EventRecord]:
    """Return the events of one drive in all its slots, oldest first. Another drive may have the same serial number."""
    query = sa.select(*_EVENT).where(device_events.c.serial == serial).order_by(device_events.c.id)
    return fetch_all(tx, EventRecord, query)


def last_of(tx: Connection, device_uuid: str, kinds: Sequence[str]) -> str | None:
    """Return the last event of a device that is one of *kinds*, or None."""
    query = sa.select(device_events.c.event).where(
        device_events.c.device_uuid == device_uuid, device_events.c.event.in_(kinds)
    )
    return tx.execute(query.order_by(device_events.c.id.desc()).limit(1)).scalar_one_or_none()


def last_move(tx: Connection, device_uuid: str) -> str | None:
    """Return the event by which a device got its current state, or None."""
    return tx.execute(_LAST_MOVE, {"key": device_uuid}).scalar_one_or_none()


def add(tx: Connection, serial: str, drive_model: str, device_uuid: str) -> bool:
    """Record that the drive contains, or may contain, a tenant's data.

    :returns: whether this call recorded it for *device_uuid*; False if it was recorded before or concurrently.
    """
    if contains(tx, serial, drive_model):
        return False
    with suppress(DBDuplicateEntry), tx.begin_nested():
        tx.execute(dirty_serials.insert().values(serial=serial, drive_model=drive_model, device_uuid=device_uuid))
        return True
    return False


def remove(tx: Connection, serial: str, drive_model: str) -> None:
    """Record that the drive was proved clean."""
    tx.execute(_entry_of(serial, drive_model))


def take_back(tx: Connection, serial: str, drive_model: str, device_uuid: str) -> None:
    """Remove the record that *device_uuid* made; a record of another device stays."""
    tx.execute(_entry_of(serial, drive_model).where(dirty_serials.c.device_uuid == device_uuid))


def _entry_of(serial: str, drive_model: str) -> sa.Delete:
    return dirty_serials.delete().where(dirty_serials.c.serial == serial, dirty_serials.c.drive_model == drive_model)


def noted_by(tx: Connection, serial: str, drive_model: str) -> str | None:
    """Return the uuid of the device that recorded the drive as dirty, or None."""
    query = sa.select(dirty_serials.c.device_uuid).where(
        dirty_serials.c.serial == serial, dirty_serials.c.drive_model == drive_model
    )
    return tx.execute(query).scalar_one_or_none()


def contains(tx: Connection, serial: str, drive_model: str) -> bool:
    """Return whether the drive is recorded as dirty."""
    query = sa.select(dirty_serials.c.id).where(
        dirty_serials.c.serial == serial, dirty_serials.c.drive_model == drive_model
    )
    return tx.execute(query).first() is not None


def among(tx: Connection, serials: Collection[str] | None) -> set[tuple[str, str]]:
    """Return dirty drives as (serial, model), limited to *serials*; None selects all."""
    query = sa.select(dirty_serials.c.serial, dirty_serials.c.drive_model)
    if serials is not None:
        query = query.where(dirty_serials.c.serial.in_(serials))
    return {(serial, drive_model) for serial, drive_model in tx.execute(query)}
