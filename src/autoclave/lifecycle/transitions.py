"""Change the state of a device by compare-and-swap, with its history.

One statement changes the state of a device of a profile or of a flavor.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db import devices as device_rows
from autoclave.db import history, pci
from autoclave.db.columns import utcnow
from autoclave.db.devices import NOT_BURNED, DeviceRecord
from autoclave.db.tables import arqs, attach_handles, deployables, devices
from autoclave.exceptions import StateConflict
from autoclave.rules.device_lifecycle import ACTIVE, Actor, DeviceState, Event, must_be_reserved, transition
from autoclave.rules.reclaim import Reclaim

# Built once: building a statement takes as long as executing it.
_MOVE = devices.update().where(
    devices.c.uuid == sa.bindparam("key"),
    devices.c.device_state == sa.bindparam("source"),
    devices.c.state_version == sa.bindparam("version"),
)
_MOVE_IF_NOBODY_HOLDS_IT = _MOVE.where(
    ~sa.exists().where(arqs.c.device_id == sa.bindparam("holder_of"), arqs.c.state.in_(list(ACTIVE))),
    ~sa.exists().where(
        attach_handles.c.deployable_id == deployables.c.id,
        deployables.c.device_id == sa.bindparam("holder_of"),
        attach_handles.c.instance_uuid.is_not(None),
    ),
)


@dataclass(frozen=True)
class Cause:
    """Name the actor and the reason of a change, for the history.

    :param name: name of the actor, such as a host or a user.
    """

    actor: Actor
    name: str
    request_id: str | None = None
    reason: str | None = None
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.actor.value} {self.name}".strip()


def tell_history(
    tx: Connection,
    device: DeviceRecord,
    source: DeviceState | None,
    target: DeviceState | None,
    event: str,
    cause: Cause,
) -> None:
    """Append an event to a device's history, in the transaction of the change.

    The events of a function name its slot, because its row is deleted when it leaves the configuration.
    """
    slot = {"hostname": device.hostname, "pci_address": device.pci_address} if device.is_function else {}
    history.append(
        tx,
        device_uuid=device.uuid,
        serial=device.serial,
        from_state=source.value if source else None,
        to_state=target.value if target else None,
        event=event,
        actor=str(cause),
        request_id=cause.request_id,
        reason=cause.reason,
        evidence={**slot, **cause.evidence},
    )


_NOBODY_HOLDS_IT = frozenset(
    {
        Event.REQUEST_CLEANING,
        Event.MISSED_CLEANUP,
        Event.CLEAN_AGAIN,
        Event.RELEASE,
        Event.SPEND,
        Event.CANNOT_CLEAN,
        Event.QUARANTINE,
        Event.REWRITTEN,
    }
)
"""Events that an active ARQ or a claim on the device forbids; this rejects late and duplicate messages."""
_TAKES = frozenset({Event.BIND, Event.CLAIM})
"""Events by which an instance gets the device."""


def note_dirty(tx: Connection, device: DeviceRecord, cause: Cause) -> None:
    """Enter the drive of a device that is not available into the ledger of dirty drives.

    A dirty drive stays dirty in another slot, or in its own after its device was forgotten. Other rows with the same
    drive are no longer offered.
    """
    if device.device_state is DeviceState.AVAILABLE or not _is_known_drive(device):
        return
    if history.add(tx, device.serial or "", device.drive_model or "", device.uuid):
        _end_other_offers(tx, device, cause)


def _is_known_drive(device: DeviceRecord) -> bool:
    return device.is_drive and device.supports_cleaning and device.serial is not None


def _end_other_offers(tx: Connection, device: DeviceRecord, cause: Cause) -> None:
    """Mark the drive of *device* suspect at every other slot on record; a drive is in one slot only."""
    reason = (
        f"its drive {device.serial} is on record at {device.slot} too; if both slots have a drive of this serial "
        "number, add identify_by_slot with each of the addresses to [nvme] of its host, and clean both"
    )
    told = replace(cause, reason=reason, evidence={})
    for other in device_rows.with_drive(tx, device.serial or "", device.drive_model or ""):
        if other.uuid != device.uuid and other.device_state is DeviceState.AVAILABLE and not other.missing:
            swap(tx, other, Event.DISTRUST, told)


def _claim_drive(tx: Connection, device: DeviceRecord) -> None:
    """Enter a drive into the ledger of dirty drives for a bind, so that no other row can bind it.

    :raises StateConflict: the drive is dirty already.
    """
    drive = (device.serial or "", device.drive_model or "")
    if history.add(tx, *drive, device.uuid):
        return
    noted_by = history.noted_by(tx, *drive) or ""
    noter = device_rows.get(tx, noted_by)
    where = f"the device at {noter.slot}" if noter else f"device {noted_by}, forgotten since,"
    raise StateConflict(
        f"device {device.uuid} must not be bound: its drive {device.serial} is known to be dirty, as {where} has noted"
    )


def swap(
    tx: Connection,
    device: DeviceRecord,
    event: Event,
    cause: Cause,
    changes: Mapping[str, Any] | None = None,
    *,
    locked: bool = False,
) -> DeviceRecord:
    """Move *device* along the edge of *event*, if it has not changed since the caller read it.

    The caller's transaction writes all of it or nothing: state, version, pending release, history and the ledgers of
    dirty drives and burned cards. Becoming available makes the release of ``reserved`` pending, if the device had to be
    reserved. A state that keeps the device reserved cancels a pending release.

    :param changes: other columns to write in the same statement.
    :param locked: this transaction has locked the row before reading *device*, and has not written it since. The result
        is then computed without reading the row again.
    :returns: the device as it is now.
    :raises StateConflict: the device has another state or version, an ARQ holds it, or its drive is dirty and it is to
        be bound.
    """
    if device.device_state is None:
        raise StateConflict(f"device {device.uuid} has no known state; run the online data migrations first")
    try:
        edge = transition(device.device_state, event)
    except KeyError:
        raise StateConflict(
            f"device {device.uuid} is {device.device_state.value}: {event.value} cannot happen"
        ) from None
    if cause.actor not in edge.actors:
        raise ValueError(f"{cause.actor.value} must not cause {event.value}")
    if event is Event.RELEASE and edge.source is DeviceState.ALLOCATED and device.reclaim is not Reclaim.NONE:
        raise ValueError(f"the policy of device {device.uuid} is {device.reclaim}: it must not return as it is")

    takes_drive = event in _TAKES and _is_known_drive(device)
    if takes_drive:
        # First: a concurrent bind of the same drive by another row waits here, before it locks any row of this
        # function.
        _claim_drive(tx, device)
    may_lower = device.offer._replace(device_state=edge.target).state_allows
    values: dict[str, Any] = {
        "device_state": edge.target,
        "state_version": device.state_version + 1,
        "state_reason": cause.reason,
        "release_pending": may_lower and (device.release_pending or must_be_reserved(device.offer)),
        "progress_percent": None,
        "progress_step": None,
        "progress_stalled": False,
        "progress_seconds_left": None,
        "updated_at": utcnow(),
    }
    if device.was_away or event is Event.CLEANED:
        # The found drive is accepted or cleaned away; before cleaning, the worker verified that it is the known one.
        values |= {"found_serial": None, "found_drive_model": None, "found_layout": None}
    if event in (Event.TAKE_BIND_BACK, Event.ACCEPT, Event.CLEANED):
        values |= NOT_BURNED
    if event in (Event.CLEAN_AGAIN, Event.ACCEPT):
        values["rewritten"] = False  # the operator has resolved it; another write will be detected again
    values |= changes or {}
    if edge.target is DeviceState.AVAILABLE:
        values["release_number"] = device.release_number + 1
    which = {"key": device.uuid, "source": edge.source, "version": device.state_version}
    statement = _MOVE
    if event in _NOBODY_HOLDS_IT and not (event is Event.RELEASE and _has_several_handles(tx, device)):
        statement, which["holder_of"] = _MOVE_IF_NOBODY_HOLDS_IT, device.id
    if tx.execute(statement, {**values, **which}).rowcount != 1:
        raise StateConflict(f"device {device.uuid} is no longer {edge.source.value} at version {device.state_version}")

    tell_history(tx, device, edge.source, edge.target, event.value, cause)
    moved = replace(device, **values) if locked else device_rows.get_by_id(tx, device.id)
    assert moved is not None, "the row that this transaction has just updated"
    if moved.burned_at is not None and device.burned_at is None:
        note_burned_card(tx, moved)
    if takes_drive:
        _end_other_offers(tx, moved, cause)  # the drive is in the ledger already
    else:
        note_dirty(tx, moved, cause)
    if moved.is_drive and moved.serial is not None and event is Event.CLEANED:
        history.remove(tx, moved.serial, moved.drive_model or "")
    elif moved.is_drive and moved.serial is not None and event in (Event.TAKE_BIND_BACK, Event.ACCEPT):
        history.take_back(tx, moved.serial, moved.drive_model or "", moved.uuid)
    return moved


def note_burned_card(tx: Connection, device: DeviceRecord) -> None:
    """Enter the card of a burned device into the ledger of burned cards, if its serial number identifies it."""
    if device.is_function and device.serial is not None:
        pci.note(tx, device.serial, device.uuid)


def end_burn(tx: Connection, device: DeviceRecord) -> None:
    """Record that a released device is offered again: it is burned no longer, and neither is its card."""
    told = Cause(Actor.PLACEMENT, "", reason="Placement has reserved=0 for it")
    remark(tx, device, "offer", told, NOT_BURNED)
    if device.is_function and device.serial is not None:
        pci.remove(tx, device.serial, device.uuid)


def _has_several_handles(tx: Connection, device: DeviceRecord) -> bool:
    # Freeing one of several handles makes the device available while ARQs hold the others.
    return device_rows.handles_of(tx, device) > 1


def remark(tx: Connection, device: DeviceRecord, event: str, cause: Cause, changes: Mapping[str, Any]) -> None:
    """Write *changes*, if any, and the event, in the caller's transaction."""
    if changes:
        device_rows.update(tx, device, changes)
    tell_history(tx, device, device.device_state, device.device_state, event, cause)


NOT_THERE = "it was not in its slot when it was to be erased"
"""``state_reason`` of a drive that was absent when its erase began."""
THERE_AGAIN = f"{NOT_THERE}, and is there again"
"""``state_reason`` once that drive is back."""


def miss(tx: Connection, uuid: str, cause: Cause, reason: str) -> DeviceRecord | None:
    """Record that a device is missing, and why; return the row, or None if there is none."""
    device = device_rows.get(tx, uuid, lock=True)
    if device is None:
        return None
    # The drive found in the slot has gone as well.
    gone = {"missing": True, "found_serial": None, "found_drive_model": None, "found_layout": None}
    remark(tx, device, "missing", replace(cause, reason=reason), gone)
    return device_rows.get(tx, device.uuid)
