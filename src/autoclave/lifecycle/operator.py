"""Record the decisions of operators about a device.

What an operator may say about a device: hold, release, accept, forget, and who asked to have it cleaned.

The intent is committed first; then Placement is made to agree. A Placement that is away changes
nothing about the intent: the sweep settles it later.

A decision is committed first, then Placement is reconciled (protocol page, rule 2).

Maintenance: ``status``, which says whether an operator wants a device used, whatever its ``device_state``.

Neither changes the other. An instance that has the device keeps it, an erase goes on; Placement offers the
device when both agree.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import history
from autoclave.db.devices import DeployableRecord, DeviceRecord
from autoclave.db.tables import DeviceStatus
from autoclave.exceptions import Conflict, NotFound, PlacementError
from autoclave.lifecycle.attach_handles import without_action
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.reserve import settle
from autoclave.lifecycle.transitions import Cause, note_dirty, remark, swap
from autoclave.placement.provider_tree import delete_provider
from autoclave.rules.burn import Reading
from autoclave.rules.device_lifecycle import DeviceState, Event, must_be_reserved, shown_state

LOG = logging.getLogger(__name__)

Changes = Callable[[DeviceRecord], Mapping[str, Any] | None]
"""The columns that the intent writes of a device as it is; None if it was recorded before."""


def say(ports: Ports, uuid: str, event: str, what: str, cause: Cause, changes: Changes) -> bool:
    """Write an intent and its line in the device's history, in one transaction; log it; tell Placement.

    What was recorded before is not recorded again, but Placement is told once more.

    :param what: what the device is now, for the log.
    :returns: whether Placement has been told already.
    :raises NotFound: there is no such device.
    """

    def note(tx: Connection) -> bool:
        device = require(tx, uuid)
        wanted = changes(device)
        if wanted is not None:
            remark(tx, device, event, cause, wanted)
        return wanted is not None

    if ports.db.transact(note):
        LOG.info("Device %s is %s, says %s%s", uuid, what, cause, f": {cause.reason}" if cause.reason else ".")
    return tell_placement(ports, uuid)


def require(tx: Connection, uuid: str) -> DeviceRecord:
    """The device with *uuid*, its row locked until the transaction ends.

    :raises NotFound: there is none.
    """
    device = device_rows.get(tx, uuid, lock=True)
    if device is None:
        raise NotFound(f"Device not found with uuid={uuid}")
    return device


def debt(device: DeviceRecord) -> dict[str, Any]:
    """The columns that owe an available device its offer; none for a device in another state."""
    if device.device_state is not DeviceState.AVAILABLE:
        return {}
    return {"release_pending": True, "release_number": device.release_number + 1}


def tell_placement(ports: Ports, uuid: str) -> bool:
    """Settle a device about which something is recorded; returns whether Placement agrees.

    One that cannot be told now is told by the agent's next period, or by any conductor's sweep.
    """
    try:
        settle(ports.db, ports.placement, uuid)
    except PlacementError as error:
        LOG.warning("What was said of device %s is recorded; Placement will be told later: %s", uuid, error)
        return False
    return True


def hold(ports: Ports, uuid: str, cause: Cause) -> bool:
    """Keep a device from being offered, whatever its state, until it is released.

    :returns: whether Placement has been told already.
    :raises NotFound: there is no such device.
    """
    held = {"held": True, "hold_reason": cause.reason}
    return say(ports, uuid, "hold", "held", cause, lambda _device: held)


def release(ports: Ports, uuid: str, cause: Cause) -> bool:
    """End a hold, ours or one set by hand in Placement. A device that is not clean stays reserved.

    :returns: whether Placement has been told already.
    :raises NotFound: there is no such device.
    """

    def changes(device: DeviceRecord) -> dict[str, Any]:
        return {"held": False, "hold_reason": None, "rewritten": False, **debt(device)}

    return say(ports, uuid, "release_hold", "held no longer", cause, changes)


def is_held(ports: Ports, uuid: str) -> bool:
    """Whether :func:`release` has anything to end: our hold, or one set by hand in Placement.

    A Placement that does not answer may have one. In a device that is reserved for another reason, none can be seen.

    :raises NotFound: there is no such device.
    """
    with ports.db.read() as tx:
        device = device_rows.get(tx, uuid)
        deployables = device_rows.deployables_of(tx, [device.id]) if device else []
    if device is None:
        raise NotFound(f"Device not found with uuid={uuid}")
    if device.held or device.release_pending or must_be_reserved(device.offer):
        return device.held
    try:
        records = [
            (ports.placement.get_inventories(d.rp_uuid).records.get(d.resource_class), d.num_accelerators)
            for d in deployables
        ]
    except PlacementError as error:
        LOG.info("Whether device %s is held by hand in Placement is not known: %s", uuid, error)
        return True
    return any(record is not None and Reading(record.total, record.reserved, ours).is_full for record, ours in records)


def accept(ports: Ports, uuid: str, cause: Cause) -> DeviceRecord:
    """Take the drive that was found in the slot for the slot's drive from now on, or a found layout for its drive's.

    The layout of another drive, and of one that was away, is recorded anew once it is available.
    Another drive of a type that is erased stays in ``error`` until it has been cleaned; its agent reads it again before
    that, and only then its cleanup action is known. What becomes available on
    the operator's word is the slot's own drive that was available when it left the host, and a type that is not erased.

    :raises NotFound: there is no such device.
    :raises Conflict: it is not in ``error``, there is nothing to accept, or others have had the drive meanwhile.
    """

    def note(tx: Connection) -> DeviceRecord:
        device = require(tx, uuid)
        if device.device_state is not DeviceState.ERROR:
            state = shown_state(device.offer) or "in no known state"
            raise Conflict(f"Device {uuid} is {state}; only a device in error can be accepted.")
        another = (device.found_serial, device.found_drive_model) != (None, None)
        if device.supports_cleaning and not another and device.found_layout is not None:
            _accept_layout(tx, device, cause)
            return require(tx, uuid)
        if device.supports_cleaning and not another:
            raise Conflict(
                f"No other drive than {device.serial or 'the known one'} was found in the slot of device {uuid}: "
                "there is nothing to accept. If it is to be offered, clean it."
            )
        changes: dict[str, Any] = {"found_serial": None, "found_drive_model": None, "found_layout": None}
        if another:
            changes["layout"] = None
            changes |= {"serial": device.found_serial, "drive_model": device.found_drive_model}
        if device.was_away:
            _refuse_if_used_elsewhere(tx, device)
            swap(tx, device, Event.ACCEPT, cause, changes)
        elif device.supports_cleaning:
            changes["state_reason"] = "accepted by the operator; clean it before it can be offered"
            changes["std_board_info"] = without_action(device.std_board_info)
            remark(tx, device, "accept", cause, changes)
            note_dirty(tx, require(tx, uuid), cause)
        else:
            if device.found_drive_model is not None:
                # What Placement knows is of the card before; who asks for that one must not get this.
                changes["excluded_reason"] = "another card was accepted, and its host's agent has not described it yet"
            swap(tx, device, Event.ACCEPT, cause, changes)
        return require(tx, uuid)

    accepted = ports.db.transact(note)
    LOG.info("Device %s (%s) is accepted as it is, says %s.", uuid, accepted.slot, cause)
    tell_placement(ports, uuid)
    return accepted


def _accept_layout(tx: Connection, device: DeviceRecord, cause: Cause) -> None:
    """Record the layout that a drive was found with. It stays in ``error``: what changed it may have written, too."""
    changes = {
        "layout": device.found_layout,
        "found_layout": None,
        "state_reason": "its layout was accepted by the operator; clean it before it can be offered",
    }
    remark(tx, device, "accept", cause, changes)


def _refuse_if_used_elsewhere(tx: Connection, device: DeviceRecord) -> None:
    # Since it came back, it may have been in another slot, where it was cleaned and given to a guest.
    noted_by = history.noted_by(tx, device.serial or "", device.drive_model or "")
    if noted_by not in (None, device.uuid):
        raise Conflict(f"The drive {device.serial} has been used as device {noted_by} meanwhile: clean it.")


def ask_to_clean(ports: Ports, uuid: str, cause: Cause) -> None:
    """Record in the history who asks to have a device cleaned, and why. Cleaning is its agent's.

    :raises NotFound: there is no such device.
    """
    ports.db.transact(lambda tx: remark(tx, require(tx, uuid), "ask_to_clean", cause, {}))


def forget(ports: Ports, uuid: str, cause: Cause) -> None:
    """Remove a device that has disappeared: its provider first, then its row.

    What the ledger knows of its drive stays: a dirty drive enters any slot as ``error``.

    :raises NotFound: there is no such device.
    :raises Conflict: it is still there or is back, held, in use, or being cleaned.
    :raises PlacementError: its provider could not be deleted; the device is as it was before.
    """

    def begin(tx: Connection) -> None:
        device = require(tx, uuid)
        _refuse_to_forget(tx, device)
        # What is being forgotten must not be bound by somebody who still has an old candidate.
        remark(tx, device, "forget", cause, {"forgetting": True})

    ports.db.transact(begin)
    finish_forget(ports, uuid, cause)


def finish_forget(ports: Ports, uuid: str, cause: Cause) -> None:
    """The second half of :func:`forget`: to the end, or back to where it began. Everything in it can be done twice.

    :raises Conflict: the device is back, or somebody holds or uses it; it is not being forgotten any more.
    :raises PlacementError: its provider could not be deleted; it is not being forgotten any more.
    """

    def remove(tx: Connection) -> None:
        device = device_rows.get(tx, uuid, lock=True)
        if device is not None and device.forgetting:
            _refuse_to_forget(tx, device)
            device_rows.delete(tx, device)

    with ports.db.read() as tx:
        device = device_rows.get(tx, uuid)
        deployables = device_rows.deployables_of(tx, [device.id]) if device else []
    try:
        for deployable in deployables:
            _delete_provider(ports, deployable)
        ports.db.transact(remove)
    except (PlacementError, Conflict) as error:
        told = replace(cause, reason=str(error))
        ports.db.transact(lambda tx: _take_forget_back(tx, uuid, told))
        tell_placement(ports, uuid)
        raise
    LOG.info("Device %s is forgotten, says %s.", uuid, cause)


def _delete_provider(ports: Ports, deployable: DeployableRecord) -> None:
    if not delete_provider(ports.placement, deployable.rp_uuid):
        LOG.info("Provider %s (%s), to be forgotten, was gone already.", deployable.rp_uuid, deployable.name)


def _take_forget_back(tx: Connection, uuid: str, cause: Cause) -> None:
    device = device_rows.get(tx, uuid, lock=True)
    if device is not None and device.forgetting:
        remark(tx, device, "not_forgotten", cause, {"forgetting": False, **debt(device)})


def _refuse_to_forget(tx: Connection, device: DeviceRecord) -> None:
    if not device.missing:
        raise Conflict(f"Device {device.uuid} is present on {device.hostname}: only a missing device can be forgotten.")
    if device.held:
        raise Conflict(f"Device {device.uuid} is held ({device.hold_reason}): release it first.")
    holders = arq_rows.active_of_device(tx, device.id)
    if holders:
        raise Conflict(f"Device {device.uuid} is held by accelerator request {holders[0].uuid}: delete that first.")
    if device.device_state in (DeviceState.PENDING_CLEANING, DeviceState.CLEANING):
        raise Conflict(f"Device {device.uuid} is being cleaned: wait until that has ended.")


def disable(ports: Ports, uuid: str, cause: Cause) -> bool:
    """Take a device out of service: it is offered no more, and not bound, until it is enabled.

    One that is disabled stays so, and Placement is told once more.

    :returns: whether Placement has been told already.
    :raises NotFound: there is no such device.
    """
    return say(ports, uuid, "disable", "disabled", cause, lambda device: _unless(device, DeviceStatus.MAINTAINING))


def enable(ports: Ports, uuid: str, cause: Cause) -> bool:
    """End the maintenance of a device. It is offered if it is available, and nothing else is against it.

    One that is enabled stays as it is: this ends no hold, neither ours nor one set by hand in Placement. A debt
    that is still open is paid.

    :returns: whether Placement has been told already.
    :raises NotFound: there is no such device.
    """

    def changes(device: DeviceRecord) -> dict[str, object] | None:
        return _unless(device, DeviceStatus.ENABLED, **debt(device))

    return say(ports, uuid, "enable", "enabled", cause, changes)


def _unless(device: DeviceRecord, status: DeviceStatus, **changes: object) -> dict[str, object] | None:
    return None if device.status is status else {"status": status, **changes}
