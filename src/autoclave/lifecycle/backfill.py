"""Run the online data migrations: fill in columns for rows that an earlier release wrote (NVMe specification).

Services of this release and of the one before run concurrently. Each device is therefore read, locked and written in
one transaction, and only NULL is overwritten. Concurrent backfills are safe, and an interrupted one can be run again.

A backfill never sets ``release_pending``. If a provider has reserved=total, an operator has set it. It stays until
``autoclave device release``.
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
"""Rows per transaction, few enough that no service waits long for the locks."""
PATIENCE = timedelta(seconds=300)
"""Lease of requests that a service of the release before has begun; Nova waits no longer than this for a bind."""


class Work(Protocol):
    """Migrate rows, and return the devices whose state has changed."""

    def __call__(self, tx: Connection, /, ids: Sequence[int], cause: Cause) -> list[DeviceRecord]: ...


@dataclass(frozen=True)
class Migration:
    """Define one online data migration.

    :param name: name shown to operators.
    :param find: returns the ids of the rows to migrate, of one host if its name is given.
    :param work: migrates some of these rows.
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
"""The online data migrations, in the order in which they run."""


class Outcome(NamedTuple):
    """Report the result of :func:`run`.

    :param needed: number of rows that needed the migration.
    :param completed: number of rows that no longer need it.
    :param moved: devices whose state has changed.
    """

    needed: int
    completed: int
    moved: list[DeviceRecord]


def run(
    database: Database, migration: Migration, cause: Cause, *, hostname: str | None = None, limit: int | None = None
) -> Outcome:
    """Run one migration, a batch at a time.

    :param hostname: migrate only the devices of this host.
    :param limit: maximum number of rows; None for all.
    :raises DatabaseUnavailable: the database failed; batches already written stay. Run it again.
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
    """Run every migration at the start of a service, and reserve in Placement each device that must not be offered.

    If Placement is unreachable or the service dies, the device's agent does this in its next period. For a device held
    by a request, so does the unbind; for a device in ``error``, so does any conductor.

    :param hostname: migrate only the devices of this host.
    :raises DatabaseUnavailable: see :func:`run`; the service must not start.
    """
    with ports.db.read() as tx:
        needed = any(migration.find(tx, hostname) for migration in MIGRATIONS)
    for migration in MIGRATIONS if needed else ():
        for device in run(ports.db, migration, cause, hostname=hostname).moved:
            if must_be_reserved(device.offer):
                raise_reserved(ports.db, ports.placement, device.uuid)


def put_right(tx: Connection, device_id: int, cause: Cause) -> DeviceRecord | None:
    """Link a device's requests to it, and set the state that they demand, if an earlier release wrote the row.

    :returns: the device as it is now, or None if its state has not changed.
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
    """Return whether a backfill made the device ``allocated``.

    No bind has reconciled such a device, so Placement may still offer it.
    """
    return history.last_move(tx, device.uuid) == Event.BACKFILL.value


def _fill(tx: Connection, device: DeviceRecord, state: DeviceState, cause: Cause) -> DeviceRecord | None:
    """Set the first state of a device by compare-and-swap; NULL is not a state of the transition table."""
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
