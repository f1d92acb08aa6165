"""What an operator may say about a device: hold, release, accept, forget.

The intent is committed first; then Placement is made to agree. A Placement that is away changes
nothing about the intent: the sweep settles it later.
"""

from collections.abc import Mapping
from typing import Any

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import events
from autoclave.db.devices import DeployableRecord, DeviceRecord
from autoclave.exceptions import Conflict, NotFound, PlacementError, PlacementNotFound
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.settle import settle
from autoclave.lifecycle.swap import Cause, swap
from autoclave.rules.device_states import DeviceState, Event

LOG = logging.getLogger(__name__)


def hold(ports: Ports, uuid: str, cause: Cause) -> bool:
    """Keep a device from being offered, whatever its state, until it is released.

    :returns: whether Placement has been told already.
    :raises NotFound: there is no such device.
    """

    def note(tx: Connection) -> None:
        _note(tx, _require(tx, uuid), "hold", cause, {"held": True, "hold_reason": cause.reason})

    ports.db.transact(note)
    return _settled(ports, uuid)


def release(ports: Ports, uuid: str, cause: Cause) -> bool:
    """End a hold, ours or one set by hand in Placement. A device that is not clean stays reserved.

    :returns: whether Placement has been told already.
    :raises NotFound: there is no such device.
    """

    def note(tx: Connection) -> None:
        device = _require(tx, uuid)
        changes: dict[str, Any] = {"held": False, "hold_reason": None}
        _note(tx, device, "release", cause, {**changes, **debt(device)})

    ports.db.transact(note)
    return _settled(ports, uuid)


def debt(device: DeviceRecord) -> dict[str, Any]:
    """The columns that owe an available device its offer; none for a device in another state."""
    if device.device_state is not DeviceState.AVAILABLE:
        return {}
    return {"release_pending": True, "release_number": device.release_number + 1}


def accept(ports: Ports, uuid: str, cause: Cause) -> DeviceRecord:
    """Take the drive that was found in the slot for the slot's drive from now on.

    A type that is erased stays in ``error`` until it has been cleaned; another becomes available on
    the operator's word.

    :raises NotFound: there is no such device.
    :raises Conflict: it is not in ``error``, or there is nothing to accept.
    """

    def note(tx: Connection) -> DeviceRecord:
        device = _require(tx, uuid)
        if device.device_state is not DeviceState.ERROR:
            state = device.device_state.value if device.device_state else "unknown"
            raise Conflict(f"Device {uuid} is {state}; only a device in error can be accepted.")
        if device.supports_cleaning and device.found_serial is None:
            raise Conflict(
                f"No other drive than {device.serial or 'the known one'} was found in the slot of device {uuid}: "
                "there is nothing to accept. If it is to be offered, clean it."
            )
        changes: dict[str, Any] = {"found_serial": None, "found_drive_model": None}
        if device.found_serial is not None:
            changes |= {"serial": device.found_serial, "drive_model": device.found_drive_model}
        if device.supports_cleaning:
            changes["state_reason"] = "accepted by the operator; clean it before it can be offered"
            _note(tx, device, "accept", cause, changes)
        else:
            swap(tx, device, Event.ACCEPT, cause, changes)
        return _require(tx, uuid)

    accepted = ports.db.transact(note)
    _settled(ports, uuid)
    return accepted


def forget(ports: Ports, uuid: str, cause: Cause) -> None:
    """Remove a device that has disappeared: its provider first, then its row.

    What the ledger knows of its drive stays: a dirty drive enters any slot as ``error``.

    :raises NotFound: there is no such device.
    :raises Conflict: it is still there, held, in use, or being cleaned.
    :raises PlacementError: its provider could not be deleted; the row stays, too.
    """

    def begin(tx: Connection) -> list[DeployableRecord]:
        device = _require(tx, uuid)
        _refuse_to_forget(tx, device)
        # What is being forgotten must not be bound by somebody who still has an old candidate.
        _note(tx, device, "forget", cause, {"held": True, "hold_reason": "being forgotten"})
        return device_rows.deployables_of(tx, [device.id])

    def finish(tx: Connection) -> None:
        device = _require(tx, uuid)
        if device.missing:
            device_rows.delete(tx, device)

    for deployable in ports.db.transact(begin):
        try:
            ports.placement.delete_provider(deployable.rp_uuid)
        except PlacementNotFound:
            LOG.info("Provider %s of forgotten device %s was gone already.", deployable.rp_uuid, uuid)
    ports.db.transact(finish)


def _refuse_to_forget(tx: Connection, device: DeviceRecord) -> None:
    if not device.missing:
        raise Conflict(f"Device {device.uuid} is present on {device.hostname}: only a missing device can be forgotten.")
    if device.held and device.hold_reason != "being forgotten":
        raise Conflict(f"Device {device.uuid} is held ({device.hold_reason}): release it first.")
    holders = arq_rows.active_of_device(tx, device.id)
    if holders:
        raise Conflict(f"Device {device.uuid} is held by accelerator request {holders[0].uuid}: delete that first.")
    if device.device_state in (DeviceState.PENDING_CLEANING, DeviceState.CLEANING):
        raise Conflict(f"Device {device.uuid} is being cleaned: wait until that has ended.")


def _require(tx: Connection, uuid: str) -> DeviceRecord:
    device = device_rows.get(tx, uuid, lock=True)
    if device is None:
        raise NotFound(f"Device not found with uuid={uuid}")
    return device


def _note(tx: Connection, device: DeviceRecord, event: str, cause: Cause, changes: Mapping[str, Any]) -> None:
    device_rows.update(tx, device, changes)
    state = device.device_state.value if device.device_state else None
    events.append(
        tx,
        device_uuid=device.uuid,
        serial=device.serial,
        from_state=state,
        to_state=state,
        event=event,
        actor=str(cause),
        request_id=cause.request_id,
        reason=cause.reason,
        evidence=cause.evidence,
    )


def _settled(ports: Ports, uuid: str) -> bool:
    try:
        settle(ports.db, ports.placement, uuid)
    except PlacementError as error:
        LOG.warning("What was said of device %s is recorded; Placement will be told later: %s", uuid, error)
        return False
    return True
