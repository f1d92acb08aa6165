"""Store accelerator requests (ARQs), and what Nova has not been notified of yet.

Accelerator requests (ARQs).

An ARQ and the device that it holds, in one look.

What Nova is still to be told, kept in the rows of the ARQs: since when, and from when on it may be tried.

Whoever tries moves the second moment on first, so that no other conductor tries at the same time. It is also the
sign by which that one knows its own try again.
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
    """An ARQ row. While it is active, ``device_id`` and ``attach_handle_id`` are what it holds.

    ``lease_owner`` is the id of the request that works on it, ``lease_expires_at`` (UTC) the moment from
    which any conductor may take over.
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
    """An ARQ with what the API shows of the rows that it refers to."""

    arq: ARQRecord
    device_profile_name: str
    attach_handle_type: str
    attach_handle_uuid: str | None
    attach_handle_info: str | None


ARQ = columns(ARQRecord, arqs)
"""What is selected to make an :class:`ARQRecord`."""

# Built once: to build a statement takes as long as to execute it.
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
    """The ARQ with *uuid*."""
    return fetch_one(tx, ARQRecord, _BY_UUID_LOCKED if lock else _BY_UUID, {"key": uuid})


def get_many(tx: Connection, uuids: Sequence[str]) -> list[ARQRecord]:
    """Those of *uuids* that exist, in order of their id."""
    return fetch_all(tx, ARQRecord, _BY_UUIDS, {"keys": list(uuids)})


def of_instance(tx: Connection, instance_uuid: str) -> list[ARQRecord]:
    """The ARQs of one instance."""
    return fetch_all(tx, ARQRecord, _OF_INSTANCE, {"key": instance_uuid})


def named_instances(tx: Connection) -> frozenset[str]:
    """The instances that ARQs of any state name."""
    query = sa.select(arqs.c.instance_uuid).where(arqs.c.instance_uuid.is_not(None)).distinct()
    return frozenset(tx.execute(query).scalars())


def active_of_device(tx: Connection, device_id: int) -> list[ARQRecord]:
    """The ARQs that hold a device."""
    query = sa.select(*ARQ).where(arqs.c.device_id == device_id, arqs.c.state.in_(list(ACTIVE)))
    return fetch_all(tx, ARQRecord, query)


def active(tx: Connection) -> list[ARQRecord]:
    """All ARQs that hold a device, or are about to."""
    query = sa.select(*ARQ).where(arqs.c.state.in_(list(ACTIVE))).order_by(arqs.c.id)
    return fetch_all(tx, ARQRecord, query)


def expired(tx: Connection, now: datetime) -> list[ARQRecord]:
    """ARQs whose bind or unbind was begun and not finished within its lease."""
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
    """Move an ARQ to *target* if its state is one of *source* (and the lease is *lease_owner*'s).

    :returns: whether it was moved; False means that somebody else moved it first.
    """
    # updated_at is named so that MySQL's "rows changed" is never zero for a row that matched
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
    """ARQs with profile and handle, in one query, in order of their id."""
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
    """An ARQ with the device that it names, or None if it names none."""

    arq: ARQRecord
    device: DeviceRecord | None


def of_arq(tx: Connection, arq_uuid: str) -> Holding | None:
    """What the ARQ with *arq_uuid* holds, neither of the two locked; None if there is no such ARQ."""
    row = tx.execute(_BY_ARQ, {"key": arq_uuid}).one_or_none()
    if row is None:
        return None
    arq = ARQRecord(*row[: len(ARQ)])
    return Holding(arq, None if arq.device_id is None else DeviceRecord(*row[len(ARQ) :]))


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
