"""The online data migrations: rows of the release before get what this one needs (NVMe specification).

Services run meanwhile, of this release and of the one before. So each device is looked at, locked, and written in one
transaction, and only a NULL is overwritten: of two backfills at once one writes, and what a service has written stays.
A backfill that is cut short is run again.

Nothing here owes an offer (``release_pending``): a provider that reads reserved=total did so by its operator's word,
and keeps it until he says ``autoclave device release``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import NamedTuple, Protocol

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import backfill, history
from autoclave.db import devices as device_rows
from autoclave.db.columns import utcnow
from autoclave.db.devices import DeviceRecord
from autoclave.db.engine import Database
from autoclave.db.tables import devices
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.reserve import raise_reserved
from autoclave.lifecycle.transitions import Cause, note_dirty, swap, tell_history
from autoclave.rules.device_lifecycle import DeviceState, Event, backfilled_state, is_taken, must_be_reserved

LOG = logging.getLogger(__name__)

BATCH = 50
"""Rows that one transaction puts right: few enough that no service waits long for it."""
PATIENCE = timedelta(seconds=300)
"""How long a service of the release before may still work on what it has begun: Nova waits no longer for a bind."""


class Work(Protocol):
    """Puts rows right, and returns the devices that have another state now."""

    def __call__(self, tx: Connection, /, ids: Sequence[int], cause: Cause) -> list[DeviceRecord]: ...


@dataclass(frozen=True)
class Migration:
    """One kind of row to put right.

    :param name: what operators call it.
    :param find: ids of the rows that need it; with a host's name, those of the host.
    :param work: is given some of them.
    """

    name: str
    find: Callable[[Connection, str | None], list[int]]
    work: Work


def _put_all_right(tx: Connection, ids: Sequence[int], cause: Cause) -> list[DeviceRecord]:
    return [device for device in (put_right(tx, device_id, cause) for device_id in ids) if device is not None]


def _give_leases(tx: Connection, ids: Sequence[int], cause: Cause) -> list[DeviceRecord]:  # noqa: ARG001
    backfill.give_lease(tx, ids, utcnow() + PATIENCE)
    return []


MIGRATIONS = (
    Migration("backfill_device_state", backfill.devices_without_state, _put_all_right),
    Migration("link_accelerator_requests", backfill.devices_with_unlinked_requests, _put_all_right),
    Migration("lease_unfinished_requests", backfill.requests_left_halfway, _give_leases),
)
"""All of them, in order."""


class Outcome(NamedTuple):
    """What :func:`run` did.

    :param needed: rows that needed the migration.
    :param completed: those that do not any more.
    :param moved: devices that have another state now.
    """

    needed: int
    completed: int
    moved: list[DeviceRecord]


def run(
    database: Database, migration: Migration, cause: Cause, *, hostname: str | None = None, limit: int | None = None
) -> Outcome:
    """Put rows right, a batch at a time.

    :param hostname: only the devices of this host.
    :param limit: how many rows at most; None for all.
    :raises DatabaseUnavailable: what was written before stays; run it again.
    """
    with database.read() as tx:
        ids = migration.find(tx, hostname)
    wanted = ids if limit is None else ids[:limit]
    moved: list[DeviceRecord] = []
    for first in range(0, len(wanted), BATCH):
        moved += database.transact(partial(migration.work, ids=wanted[first : first + BATCH], cause=cause))
    if wanted:
        LOG.info("%s: %d of %d rows were put right.", migration.name, len(wanted), len(ids))
    return Outcome(len(ids), len(wanted), moved)


def run_all(ports: Ports, cause: Cause, *, hostname: str | None = None) -> None:
    """Run every migration at the start of a service, and tell Placement what must not be offered.

    What a Placement that is away, or a death in between, leaves untold is told by the device's agent in its next
    period; of a device that a request holds also by whoever unbinds it, and of one in error by any conductor.

    :param hostname: only the devices of this host.
    :raises DatabaseUnavailable: see :func:`run`; the service must not go on.
    """
    with ports.db.read() as tx:
        needed = any(migration.find(tx, hostname) for migration in MIGRATIONS)
    for migration in MIGRATIONS if needed else ():
        for device in run(ports.db, migration, cause, hostname=hostname).moved:
            if must_be_reserved(device.offer):
                raise_reserved(ports.db, ports.placement, device.uuid)


def put_right(tx: Connection, device_id: int, cause: Cause) -> DeviceRecord | None:
    """Link a device's requests to it, and give it the state that these demand, if a release before this one wrote it.

    :returns: the device as it is now, or None if its state is what it was.
    """
    device = device_rows.get_by_id(tx, device_id, lock=True)
    if device is None:
        return None
    backfill.link_requests(tx, device_id)
    held, handles = backfill.holders(tx, device_id), backfill.handles(tx, device_id)
    evidence = {"requests": held, "handles": handles}
    if device.device_state is None:
        known_dirty = device.serial is not None and history.contains(tx, device.serial, device.drive_model or "")
        state, reason = backfilled_state(holders=held, handles=handles, known_dirty=known_dirty)
        return _fill(tx, device, state, replace(cause, reason=reason, evidence=evidence))
    if device.device_state is DeviceState.AVAILABLE and is_taken(held, handles):
        reason = "bound by a service of the release before, which does not record the state"
        return swap(tx, device, Event.BACKFILL, replace(cause, reason=reason, evidence=evidence))
    return None


def was_backfilled(tx: Connection, device: DeviceRecord) -> bool:
    """Whether the device is allocated by a backfill: no bind has settled it, so Placement may not know."""
    return history.last_move(tx, device.uuid) == Event.BACKFILL.value


def _fill(tx: Connection, device: DeviceRecord, state: DeviceState, cause: Cause) -> DeviceRecord | None:
    """The swap from NULL, which is no state of the table."""
    filled = devices.update().where(
        devices.c.id == device.id,
        devices.c.device_state.is_(None),
        devices.c.state_version == device.state_version,
    )
    values = {
        "device_state": state,
        "state_version": device.state_version + 1,
        "state_reason": cause.reason,
        "updated_at": utcnow(),
    }
    if tx.execute(filled.values(**values)).rowcount != 1:
        return None
    tell_history(tx, device, None, state, Event.BACKFILL.value, cause)
    moved = device_rows.get_by_id(tx, device.id)
    assert moved is not None, "the row that this transaction has just updated"
    note_dirty(tx, moved, cause)
    return moved
