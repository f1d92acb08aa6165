"""Record the decisions of operators about a device.

A decision is committed first, then Placement is reconciled. If Placement is unreachable, the
decision stands, and the sweep reconciles the device later.

``status`` records whether the operator wants the device used; it is independent of ``device_state``. Disabling a device
neither takes it from its instance nor stops an erase. Placement offers the device only if both columns permit it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import history, pci
from autoclave.db.devices import DeployableRecord, DeviceRecord
from autoclave.db.tables import DeviceStatus
from autoclave.exceptions import Conflict, NotFound, PlacementError, PlacementNotFound
from autoclave.lifecycle.attach_handles import without_action
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.reserve import settle
from autoclave.lifecycle.transitions import Cause, note_dirty, remark, swap
from autoclave.placement.provider_tree import delete_provider
from autoclave.rules.device_lifecycle import DeviceState, Event, Reading, must_be_reserved, shown_state

LOG = logging.getLogger(__name__)

Changes = Callable[[DeviceRecord], Mapping[str, Any] | None]
"""Return the columns to write for a device as it is, or None if the decision is recorded already."""


def say(ports: Ports, uuid: str, event: str, what: str, cause: Cause, changes: Changes) -> bool:
    """Write a decision and its event in the device's history in one transaction, and reconcile Placement.

    A decision that is recorded already is not recorded again, but Placement is reconciled again.

    :param what: new condition of the device, for the log.
    :returns: whether Placement is reconciled.
    :raises NotFound: no such device.
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
    """Return the device with *uuid*, its row locked until the transaction ends.

    :raises NotFound: no such device.
    """
    device = device_rows.get(tx, uuid, lock=True)
    if device is None:
        raise NotFound(f"Device not found with uuid={uuid}")
    return device


def debt(device: DeviceRecord) -> dict[str, Any]:
    """Return the columns that make a release pending, or none if the state of the device keeps it reserved."""
    if not device.offer.state_allows:
        return {}
    return {"release_pending": True, "release_number": device.release_number + 1}


def tell_placement(ports: Ports, uuid: str) -> bool:
    """Reconcile a device after a decision; return whether Placement is reconciled.

    If Placement fails, the agent's next period or any conductor's sweep retries.
    """
    try:
        settle(ports.db, ports.placement, uuid)
    except PlacementError as error:
        LOG.warning("What was said of device %s is recorded; Placement will be told later: %s", uuid, error)
        return False
    return True


def hold(ports: Ports, uuid: str, cause: Cause) -> bool:
    """Stop offering a device, whatever its state, until it is released.

    :returns: whether Placement is reconciled.
    :raises NotFound: no such device.
    """
    held = {"held": True, "hold_reason": cause.reason}
    return say(ports, uuid, "hold", "held", cause, lambda _device: held)


def release(ports: Ports, uuid: str, cause: Cause) -> bool:
    """End a hold of Autoclave, or one set directly in Placement; or release a spent device that is not held.

    A device that is not clean stays reserved.

    :returns: whether Placement is reconciled.
    :raises NotFound: no such device.
    :raises Conflict: see :func:`release_spent`.
    :raises PlacementError: see :func:`release_spent`.
    """
    with ports.db.read() as tx:
        found = device_rows.get(tx, uuid)
    if found is not None and found.device_state is DeviceState.SPENT and not found.held:
        release_spent(ports, uuid, cause)
        return tell_placement(ports, uuid)

    def changes(device: DeviceRecord) -> dict[str, Any]:
        return {"held": False, "hold_reason": None, "rewritten": False, **debt(device)}

    return say(ports, uuid, "release_hold", "held no longer", cause, changes)


def release_spent(ports: Ports, uuid: str, cause: Cause, burned_for: str | None = None) -> None:
    """Record that the operator has cleaned a spent device. The caller reconciles Placement.

    The device is not offered while Placement is unreachable or the device is missing.

    :param cause: the operator, for the history.
    :param burned_for: release only if this instance burned the device; None for any instance.
    :raises NotFound: no such device.
    :raises Conflict: the device is not burned, was burned by another instance, is in use, or another card is in its
        slot.
    :raises PlacementError: Placement could not report its usage; nothing is recorded.
    """
    with ports.db.read() as tx:
        found = device_rows.get(tx, uuid)
        deployables = device_rows.deployables_of(tx, [found.id]) if found else []
    if found is None:
        raise NotFound(f"Device not found with uuid={uuid}")
    used = any(_is_used(ports, each) for each in deployables)

    def note(tx: Connection) -> None:
        device = require(tx, uuid)
        if device.burned_at is None:
            raise Conflict(f"{device.slot} is not burned: there is nothing to release.")
        if device.device_state is DeviceState.AVAILABLE:
            return  # released already
        if used or device.device_state is not DeviceState.SPENT:
            holder = f"instance {device.burned_for}" if device.burned_for else "an instance"
            raise Conflict(f"{device.slot} is in use by {holder}: delete that first.")
        if burned_for not in (None, device.burned_for):
            raise Conflict(
                f"{device.slot} was burned by instance {device.burned_for}, not by {burned_for}: it may not have been "
                "cleaned since."
            )
        swap(tx, device, Event.RELEASE, cause)

    ports.db.transact(note)


def _is_used(ports: Ports, deployable: DeployableRecord) -> bool:
    try:
        return bool(ports.placement.get_usages(deployable.rp_uuid).get(deployable.resource_class))
    except PlacementNotFound:
        return False  # Placement deletes no provider that has allocations.


def is_held(ports: Ports, uuid: str) -> bool:
    """Return whether :func:`release` can end a hold: one of Autoclave, or one set directly in Placement.

    A spent device can be released as well.

    An unreachable Placement is assumed to have one. If the device is reserved for another reason, none can be detected.

    :raises NotFound: no such device.
    """
    with ports.db.read() as tx:
        device = device_rows.get(tx, uuid)
        deployables = device_rows.deployables_of(tx, [device.id]) if device else []
    if device is None:
        raise NotFound(f"Device not found with uuid={uuid}")
    if device.device_state is DeviceState.SPENT:
        return True
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
    """Accept the drive found in the slot as the slot's drive, or a found layout as the drive's layout.

    The layout of another drive, or of one that was away, is recorded again once the drive is available. Another drive
    of an erasable type stays in ``error`` until it has been cleaned. Its cleanup action is unknown until its agent
    reads the drive again. The device becomes ``available`` in two cases: its type is not erased, or its own drive was
    available when it left.

    :raises NotFound: no such device.
    :raises Conflict: the device is not in ``error``, there is nothing to accept, or the drive was used elsewhere since.
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
                # Placement still describes the former card, and a request for that one must not get this one.
                changes["excluded_reason"] = "another card was accepted, and its host's agent has not described it yet"
            swap(tx, device, Event.ACCEPT, cause, changes)
        return require(tx, uuid)

    accepted = ports.db.transact(note)
    LOG.info("Device %s (%s) is accepted as it is, says %s.", uuid, accepted.slot, cause)
    tell_placement(ports, uuid)
    return accepted


def _accept_layout(tx: Connection, device: DeviceRecord, cause: Cause) -> None:
    """Record the layout found on a drive. It stays in ``error``, because its data may have been changed as well."""
    changes = {
        "layout": device.found_layout,
        "found_layout": None,
        "state_reason": "its layout was accepted by the operator; clean it before it can be offered",
    }
    remark(tx, device, "accept", cause, changes)


def _refuse_if_used_elsewhere(tx: Connection, device: DeviceRecord) -> None:
    # Since its return, the drive may have been cleaned in another slot and given to a guest.
    noted_by = history.noted_by(tx, device.serial or "", device.drive_model or "")
    if noted_by not in (None, device.uuid):
        raise Conflict(f"The drive {device.serial} has been used as device {noted_by} meanwhile: clean it.")


def ask_to_clean(ports: Ports, uuid: str, cause: Cause) -> None:
    """Record in the history that an operator requests cleaning, and why. The agent does the cleaning.

    :raises NotFound: no such device.
    """
    ports.db.transact(lambda tx: remark(tx, require(tx, uuid), "ask_to_clean", cause, {}))


def forget(ports: Ports, uuid: str, cause: Cause) -> None:
    """Remove a device that has disappeared: its provider first, then its row.

    The ledger keeps a dirty drive, so that it is registered as ``error`` in any slot.

    :raises NotFound: no such device.
    :raises Conflict: the device is present, held, in use, or being cleaned.
    :raises PlacementError: its provider could not be deleted; the device is unchanged.
    """

    def begin(tx: Connection) -> None:
        device = require(tx, uuid)
        _refuse_to_forget(tx, device)
        # Prevent a bind by a caller that still has an earlier allocation candidate.
        remark(tx, device, "forget", cause, {"forgetting": True})

    ports.db.transact(begin)
    finish_forget(ports, uuid, cause)


def finish_forget(ports: Ports, uuid: str, cause: Cause) -> None:
    """Complete :func:`forget`, or roll it back. Every step can be repeated.

    :raises Conflict: the device is back, held or in use; the forget is rolled back.
    :raises PlacementError: its provider could not be deleted; the forget is rolled back.
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
    if pci.is_claimed(tx, device.id):
        raise Conflict(f"Device {device.uuid} is in use by an instance: delete that first.")
    if device.device_state is DeviceState.SPENT:
        raise Conflict(f"Device {device.uuid} is spent: clean and release it first, so that it is not offered again.")
    if device.device_state in (DeviceState.PENDING_CLEANING, DeviceState.CLEANING):
        raise Conflict(f"Device {device.uuid} is being cleaned: wait until that has ended.")


def disable(ports: Ports, uuid: str, cause: Cause) -> bool:
    """Disable a device: it is neither offered nor bound until it is enabled.

    If the device is disabled already, only Placement is reconciled again.

    :returns: whether Placement is reconciled.
    :raises NotFound: no such device.
    """
    return say(ports, uuid, "disable", "disabled", cause, lambda device: _unless(device, DeviceStatus.MAINTAINING))


def enable(ports: Ports, uuid: str, cause: Cause) -> bool:
    """Enable a device. It is offered if it is available and nothing else withholds it.

    If the device is enabled already, no hold is ended, neither Autoclave's nor one set directly in Placement. A pending
    release is still completed.

    :returns: whether Placement is reconciled.
    :raises NotFound: no such device.
    """

    def changes(device: DeviceRecord) -> dict[str, object] | None:
        return _unless(device, DeviceStatus.ENABLED, **debt(device))

    return say(ports, uuid, "enable", "enabled", cause, changes)


def _unless(device: DeviceRecord, status: DeviceStatus, **changes: object) -> dict[str, object] | None:
    return None if device.status is status else {"status": status, **changes}
