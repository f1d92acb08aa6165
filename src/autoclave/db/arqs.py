"""Store accelerator requests (ARQs), and what Nova has not been notified of yet.

An ARQ with a pending Nova event records since when it is pending, and when the next attempt is due. Before an attempt,
a conductor moves the due time forward. This prevents concurrent attempts, and identifies the conductor's own attempt.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.columns import utcnow
from autoclave.db.devices import DEVICE, DeviceRecord
from autoclave.db.query import columns, fetch_all, fetch_one, paged
from autoclave.db.tables import arqs, attach_handles, device_profiles, devices
from autoclave.rules.device_lifecycle import ACTIVE, ARQState


@dataclass(frozen=True)
class ARQRecord:
    """Represent an ARQ row. While it is active, it holds ``device_id`` and ``attach_handle_id``.

    ``lease_owner`` is the id of the request that works on it. From ``lease_expires_at`` (UTC), any conductor may take
    over.
    """

    id: int
    uuid: str
    project_id: str | None
    state: ARQState
    state_reason: str | None
    device_profile_id: int
    device_profile_group_id: int
    hostname: str | None
    device_rp_uuid: str | None
    instance_uuid: str | None
    device_id: int | None
    deployable_id: int | None
    attach_handle_id: int | None
    lease_owner: str | None
    lease_expires_at: datetime | None
    delete_when_unbound: bool
    created_at: datetime
    updated_at: datetime | None


@dataclass(frozen=True)
class ARQView:
    """Represent an ARQ with the values of other rows that the API shows."""

    arq: ARQRecord
    device_profile_name: str
    attach_handle_type: str
    attach_handle_uuid: str | None
    attach_handle_info: str | None


ARQ = columns(ARQRecord, arqs)
"""Columns to select for an :class:`ARQRecord`."""

# Built once: building a statement takes as long as executing it.
_INSERT = arqs.insert()
_BY_UUID = sa.select(*ARQ).where(arqs.c.uuid == sa.bindparam("key"))
_BY_UUID_LOCKED = _BY_UUID.with_for_update()
_BY_UUIDS = sa.select(*ARQ).where(arqs.c.uuid.in_(sa.bindparam("keys", expanding=True))).order_by(arqs.c.id)
_OF_INSTANCE = sa.select(*ARQ).where(arqs.c.instance_uuid == sa.bindparam("key")).order_by(arqs.c.id)
_SWAP = arqs.update().where(
    arqs.c.uuid == sa.bindparam("key"), arqs.c.state.in_(sa.bindparam("source", expanding=True))
)
_SWAP_OWN = _SWAP.where(arqs.c.lease_owner == sa.bindparam("owner"))
_DELETE = arqs.delete().where(arqs.c.uuid == sa.bindparam("key"))


def insert(tx: Connection, values: Mapping[str, Any]) -> int:
    """Insert an ARQ row and return its id."""
    return int(tx.execute(_INSERT, values).inserted_primary_key[0])  # type: ignore[index]


def get(tx: Connection, uuid: str, *, lock: bool = False) -> ARQRecord | None:
    """Return the ARQ with *uuid*, or None."""
    return fetch_one(tx, ARQRecord, _BY_UUID_LOCKED if lock else _BY_UUID, {"key": uuid})


def get_many(tx: Connection, uuids: Sequence[str]) -> list[ARQRecord]:
    """Return the existing ARQs of *uuids*, ordered by id."""
    return fetch_all(tx, ARQRecord, _BY_UUIDS, {"keys": list(uuids)})


def of_instance(tx: Connection, instance_uuid: str) -> list[ARQRecord]:
    """Return the ARQs of one instance."""
    return fetch_all(tx, ARQRecord, _OF_INSTANCE, {"key": instance_uuid})


def named_instances(tx: Connection) -> frozenset[str]:
    """Return the instances named by ARQs of any state."""
    query = sa.select(arqs.c.instance_uuid).where(arqs.c.instance_uuid.is_not(None)).distinct()
    return frozenset(tx.execute(query).scalars())


def active_of_device(tx: Connection, device_id: int) -> list[ARQRecord]:
    """Return the ARQs that hold a device."""
    query = sa.select(*ARQ).where(arqs.c.device_id == device_id, arqs.c.state.in_(list(ACTIVE)))
    return fetch_all(tx, ARQRecord, query)


def active(tx: Connection) -> list[ARQRecord]:
    """Return all ARQs that hold a device, or are being bound."""
    query = sa.select(*ARQ).where(arqs.c.state.in_(list(ACTIVE))).order_by(arqs.c.id)
    return fetch_all(tx, ARQRecord, query)


def expired(tx: Connection, now: datetime) -> list[ARQRecord]:
    """Return ARQs whose bind or unbind was not finished within its lease."""
    query = sa.select(*ARQ).where(
        arqs.c.state.in_([ARQState.BIND_STARTED, ARQState.DELETING]), arqs.c.lease_expires_at <= now
    )
    return fetch_all(tx, ARQRecord, query.order_by(arqs.c.id))


def swap(
    tx: Connection,
    uuid: str,
    source: Collection[ARQState],
    target: ARQState,
    values: Mapping[str, Any] | None = None,
    *,
    lease_owner: str | None = None,
) -> bool:
    """Move an ARQ to *target* if its state is in *source*, and if it has the lease of *lease_owner*, where given.

    :returns: whether it was moved; False if it was changed concurrently.
    """
    # Set updated_at explicitly, because MySQL counts changed rows, and a matched row must count.
    written = {"state": target, "updated_at": utcnow(), **(values or {})}
    which: dict[str, Any] = {"key": uuid, "source": list(source)}
    if lease_owner is None:
        return tx.execute(_SWAP, {**written, **which}).rowcount == 1
    return tx.execute(_SWAP_OWN, {**written, **which, "owner": lease_owner}).rowcount == 1


def delete(tx: Connection, uuid: str) -> None:
    """Remove an ARQ row."""
    tx.execute(_DELETE, {"key": uuid})


def views(
    tx: Connection,
    *,
    uuids: Sequence[str] | None = None,
    project_id: str | None = None,
    instance_uuid: str | None = None,
    states: Collection[ARQState] | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> list[ARQView]:
    """Return ARQs with profile and handle, ordered by id, in one query."""
    query = (
        sa.select(
            *ARQ,
            device_profiles.c.name,
            attach_handles.c.attach_type,
            attach_handles.c.uuid.label("handle_uuid"),
            attach_handles.c.attach_info,
        )
        .join(device_profiles, device_profiles.c.id == arqs.c.device_profile_id)
        .outerjoin(attach_handles, attach_handles.c.id == arqs.c.attach_handle_id)
    )
    if uuids is not None:
        query = query.where(arqs.c.uuid.in_(uuids))
    if project_id is not None:
        query = query.where(arqs.c.project_id == project_id)
    if instance_uuid is not None:
        query = query.where(arqs.c.instance_uuid == instance_uuid)
    if states is not None:
        query = query.where(arqs.c.state.in_(list(states)))
    width = len(ARQ)
    return [
        ARQView(ARQRecord(*row[:width]), row[width], row[width + 1] or "", row[width + 2], row[width + 3])
        for row in tx.execute(paged(query, arqs, after=after, limit=limit))
    ]


_BY_ARQ = (
    sa.select(*ARQ, *DEVICE)
    .select_from(arqs.outerjoin(devices, devices.c.id == arqs.c.device_id))
    .where(arqs.c.uuid == sa.bindparam("key"))
)


class Holding(NamedTuple):
    """Represent an ARQ with the device that it names, or None."""

    arq: ARQRecord
    device: DeviceRecord | None


def of_arq(tx: Connection, arq_uuid: str) -> Holding | None:
    """Return the ARQ with *arq_uuid* and its device, without locking them; None if there is no such ARQ."""
    row = tx.execute(_BY_ARQ, {"key": arq_uuid}).one_or_none()
    if row is None:
        return None
    arq = ARQRecord(*row[: len(ARQ)])
    return Holding(arq, None if arq.device_id is None else DeviceRecord(*row[len(ARQ) :]))


NOT_OWED: dict[str, Any] = {"event_owed_at": None, "event_due_at": None}
"""Columns of an ARQ without a pending event."""

_TOLD = (ARQState.BOUND, ARQState.BIND_FAILED)


@dataclass(frozen=True)
class EventRecord:
    """Represent an ARQ with a pending event: its bind has ended, and Nova has not been notified."""

    uuid: str
    instance_uuid: str
    state: ARQState
    event_owed_at: datetime


_EVENT = columns(EventRecord, arqs)


def owed(now: datetime) -> dict[str, Any]:
    """Return the columns of the event of an ARQ that was just resolved."""
    return {"event_owed_at": now, "event_due_at": now}


def _is_due(now: datetime) -> sa.ColumnElement[bool]:
    return sa.and_(arqs.c.event_due_at <= now, arqs.c.state.in_(_TOLD))


def due(tx: Connection, now: datetime) -> list[str]:
    """Return the instances with events that are due, the longest due first."""
    query = sa.select(arqs.c.instance_uuid).where(_is_due(now))
    grouped = query.group_by(arqs.c.instance_uuid).order_by(sa.func.min(arqs.c.event_due_at), arqs.c.instance_uuid)
    return list(tx.scalars(grouped))


def next_due(tx: Connection) -> datetime | None:
    """Return when the next event is due; None if none is pending."""
    moment: datetime | None = tx.scalar(sa.select(sa.func.min(arqs.c.event_due_at)).where(arqs.c.state.in_(_TOLD)))
    return moment


def count(tx: Connection) -> int:
    """Return the number of pending events."""
    return tx.scalar(sa.select(sa.func.count()).where(arqs.c.event_due_at.is_not(None), arqs.c.state.in_(_TOLD))) or 0


def claim(tx: Connection, instance_uuid: str, now: datetime, until: datetime) -> list[EventRecord]:
    """Claim the due events of an instance until *until*.

    :returns: the events; none if another conductor has claimed them, or if a bind for the instance is unfinished. Nova
        is notified of all of them together.
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
    """Clear and return the due events that have been pending since *oldest* or longer."""
    mine = _locked(tx, _is_due(now), arqs.c.event_owed_at <= oldest)
    _write(tx, mine, **NOT_OWED)
    return mine


def paid(tx: Connection, events: Iterable[EventRecord], claimed_until: datetime) -> None:
    """Clear events that Nova has received or will never receive, unless claimed again since."""
    _write(tx, events, arqs.c.event_due_at == claimed_until, **NOT_OWED)


def postpone(tx: Connection, events: Iterable[EventRecord], claimed_until: datetime, due_at: datetime) -> None:
    """Make events due at *due_at*, unless claimed again since."""
    _write(tx, events, arqs.c.event_due_at == claimed_until, event_due_at=due_at)


def _locked(tx: Connection, *which: sa.ColumnElement[bool]) -> list[EventRecord]:
    query = sa.select(*_EVENT).where(*which).order_by(arqs.c.id).with_for_update()
    return fetch_all(tx, EventRecord, query)


def _write(tx: Connection, events: Iterable[EventRecord], *which: sa.ColumnElement[bool], **values: Any) -> None:
    # Keep updated_at: API clients see no change of the ARQ.
    statement = arqs.update().where(arqs.c.uuid.in_([event.uuid for event in events]), *which)
    tx.execute(statement.values(updated_at=arqs.c.updated_at, **values))
