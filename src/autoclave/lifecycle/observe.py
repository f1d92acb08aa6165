"""Record what discovery reports about a known device."""

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, TypeGuard

from sqlalchemy.engine import Connection

from autoclave.db import attributes as attribute_rows
from autoclave.db import devices as device_rows
from autoclave.db import handles as handle_rows
from autoclave.db import history, pci
from autoclave.db.devices import DeviceRecord
from autoclave.db.handles import HandleUse
from autoclave.db.tables import DeviceType
from autoclave.drivers.base import DiscoveredDevice, Sighting
from autoclave.exceptions import StateConflict
from autoclave.lifecycle.attach_handles import (
    as_offered,
    attach_as_found,
    attributes_of,
    board_info,
    handle_changes,
    recorded_layout,
)
from autoclave.lifecycle.operator import debt
from autoclave.lifecycle.transitions import NOT_THERE, THERE_AGAIN, Cause, miss, note_dirty, remark, swap
from autoclave.rules.device_lifecycle import BEING_CLEANED, IDLE_STATES, DeviceState, Event
from autoclave.rules.drive_layout import DriveLayout, difference
from autoclave.rules.pci_inventory import FUNCTIONS_DRIVER
from autoclave.rules.plain_text import tells_apart
from autoclave.rules.reclaim import Reclaim


def require_not_lent(tx: Connection, hostname: str, addresses: AbstractSet[str]) -> None:
    """Require that flavors do not ask for one of the functions.

    Neither a new configuration entry nor another provider in Placement ends a burn.

    :param addresses: addresses of functions of the host, and of their slot.
    :raises StateConflict: a function is in use by an instance, burned, or still on record as a flavor's.
    """
    functions = pci.functions(tx, hostname)
    for provider in pci.providers(tx, hostname, driver=FUNCTIONS_DRIVER):
        own = [each for each in functions if each.provider_id == provider.id]
        if addresses.isdisjoint({provider.address, *(each.address for each in own)}):
            continue
        holder = next((each.instance_uuid for each in own if each.instance_uuid is not None), None)
        if holder is not None:
            raise StateConflict(f"instance {holder} has it by its flavor, until that is deleted")
        if provider.device.device_state is DeviceState.SPENT:
            raise StateConflict(
                f"it is burned; clean it, and run `autoclave device release {hostname}/{provider.address}`"
            )
        raise StateConflict("flavors ask for it until the agent has followed the changed [pci] device_spec")


_WAS_AWAY = (
    "it was gone from the host for a while, so nobody knows what was written to it; clean it, or vouch for it with "
    "`autoclave device accept`"
)


def drive_of(device: DeviceRecord, found: DiscoveredDevice | Sighting) -> tuple[str, str] | None:
    """Return serial number and model of the drive in the slot: those just read, or else those on record."""
    if isinstance(found, DiscoveredDevice) and found.unreadable is None and found.serial is not None:
        return found.serial, found.drive_model or ""
    return None if device.serial is None else (device.serial, device.drive_model or "")


def differs(
    device: DeviceRecord,
    attributes: Mapping[str, str],
    handles: Sequence[HandleUse],
    found: DiscoveredDevice | Sighting,
    *,
    known_dirty: bool,
    doubt: str | None = None,
) -> bool:
    """Return whether :func:`observe` would write anything, without a query.

    :param known_dirty: the ledger of dirty drives contains :func:`drive_of`.
    :param doubt: see :func:`observe`.
    """
    if _doubted(device, doubt):
        return True
    if _attaches(found, device):
        if handle_changes(handles, found):
            return True
        found = as_offered(found, handles)
    return (
        bool(_changes(device, found))
        or _distrusted(device, found, known_dirty) is not None
        or (_describes(found, device) and attributes != attributes_of(found))
    )


def observe(
    tx: Connection,
    known: DeviceRecord,
    found: DiscoveredDevice | Sighting,
    cause: Cause,
    doubt: str | None = None,
) -> DeviceRecord | None:
    """Write what discovery reports about a known device; return the row, or None if it is gone.

    In ``allocated``, ``pending_cleaning`` and ``cleaning``, a guest or a worker uses the slot. Then only columns that
    cannot disturb them are written. A worker verifies the drive's identity before it erases.

    :param known: the row as read before the device was inspected. If the state has changed since, *found* is ignored: a
        guest or an erase may have had the device during the inspection.
    :param doubt: why the device could not be inspected for too long, or None.
    :raises StateConflict: the device is back, but an instance has it by its flavor, or it is burned.
    """
    device = device_rows.get(tx, known.uuid, lock=True)
    if device is None or device.state_version != known.state_version:
        return device
    if doubt is not None and _doubted(device, doubt):
        device = _withhold(tx, device, doubt, cause)
    if device.missing and isinstance(found, DiscoveredDevice):
        require_not_lent(tx, device.hostname, {found.pci_address, *(each.identity for each in found.attach_handles)})
    if _attaches(found, device):
        device, found = _attach(tx, device, found, cause)
    changes = _changes(device, found)
    drive = drive_of(device, found)
    distrust = _distrusted(device, found, known_dirty=drive is not None and history.contains(tx, *drive))
    if (policy := _policy_change(device, changes)) is not None:
        remark(tx, device, "policy", replace(cause, reason=policy), {})
    if distrust is not None and device.device_state in (DeviceState.AVAILABLE, DeviceState.SPENT):
        told = replace(cause, reason=distrust)
        if distrust is _WAS_AWAY and drive is not None:
            changes |= {"found_serial": drive[0], "found_drive_model": drive[1]}
        return swap(tx, device, Event.DISTRUST, told, {**changes, "missing": False, "release_pending": False})
    if distrust is not None:
        changes["state_reason"] = distrust
    if "unreadable_reason" in changes:
        remark(tx, device, "readable", replace(cause, reason="it was read again"), changes)
    elif changes:
        device_rows.update(tx, device, changes)
    if _describes(found, device):
        for deployable in device_rows.deployables_of(tx, [device.id]):
            device_rows.set_resource_class(tx, deployable, found.resource_class)
            attribute_rows.replace(tx, deployable.id, attributes_of(found))
    seen = device_rows.get(tx, device.uuid)
    if seen is not None and "serial" in changes:
        note_dirty(tx, seen, cause)
    return seen


def _attach(
    tx: Connection, device: DeviceRecord, found: DiscoveredDevice, cause: Cause
) -> tuple[DeviceRecord, DiscoveredDevice]:
    """Update the attach handles; return the device after that, and *found* as it may be offered."""
    *_, deployable = device_rows.deployables_of(tx, [device.id])
    known = handle_rows.of_deployables(tx, [deployable.id]).get(deployable.id, [])
    changes = handle_changes(known, found)
    if changes:
        attach_as_found(tx, deployable, known, changes)
    free = sum(not use.in_use for use in known) - len(changes.gone) + len(changes.new)
    # A device that is erased or held is returned only by that.
    if device.device_state is DeviceState.ALLOCATED and changes.new and device.reclaim is Reclaim.NONE:
        device = swap(tx, device, Event.RELEASE, replace(cause, reason="the card has more to offer than it had"))
    elif device.device_state is DeviceState.AVAILABLE and changes.gone and not free:
        device = swap(tx, device, Event.USED_UP, replace(cause, reason="the card has less to offer than it had"))
    return device, as_offered(found, known)


def doubt(tx: Connection, known: DeviceRecord, reason: str, cause: Cause) -> DeviceRecord | None:
    """Record that an available device could not be inspected for too long, so that it is not offered.

    :param known: see :func:`observe`.
    """
    device = device_rows.get(tx, known.uuid, lock=True)
    if device is None or device.state_version != known.state_version or not _doubted(device, reason):
        return device
    return _withhold(tx, device, reason, cause)


def _doubted(device: DeviceRecord, doubt: str | None) -> bool:
    """Return whether *doubt* is new for an available device."""
    return doubt not in (None, device.unreadable_reason) and device.device_state is DeviceState.AVAILABLE


def _withhold(tx: Connection, device: DeviceRecord, reason: str, cause: Cause) -> DeviceRecord:
    changes = {"unreadable_reason": reason}
    if device.unreadable_reason is None:
        remark(tx, device, "unreadable", replace(cause, reason=reason), changes)
    else:
        device_rows.update(tx, device, changes)
    return replace(device, unreadable_reason=reason)


def take_over(tx: Connection, known: DeviceRecord, driver_name: str, cause: Cause) -> None:
    """Make the driver that now discovers a known device responsible for cleaning it.

    Skip a device that is being cleaned: its worker is about to look up, or already uses, the former driver.

    :param known: see :func:`observe`.
    """
    device = device_rows.get(tx, known.uuid, lock=True)
    if device is None or device.state_version != known.state_version or device.device_state in BEING_CLEANED:
        return
    former = set()
    for deployable in device_rows.deployables_of(tx, [device.id]):
        former.add(deployable.driver_name)
        device_rows.set_driver(tx, deployable, driver_name)
    reason = f"discovered by {driver_name}, no longer by {', '.join(sorted(former))}"
    remark(tx, device, "taken_over", replace(cause, reason=reason), {})


def lose(tx: Connection, known: DeviceRecord, cause: Cause, reason: str) -> DeviceRecord | None:
    """Record that a device is no longer on its host. Its row stays until the operator forgets it.

    :param known: see :func:`observe`.
    :param reason: how its absence was detected.
    """
    device = device_rows.get(tx, known.uuid, lock=True)
    if device is None or device.missing or device.state_version != known.state_version:
        return device
    return miss(tx, device.uuid, cause, reason)


def _changes(device: DeviceRecord, found: DiscoveredDevice | Sighting) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    same = _same_drive(device, found)
    # A guest or an erase has read the device; a discovery has, if it found the drive on record.
    if device.unreadable_reason is not None and (same or device.device_state is not DeviceState.AVAILABLE):
        changes["unreadable_reason"] = None  # settle() lowers what Autoclave has reserved for that alone
    # An available device is present again only if discovery identified it as the one that left.
    if device.missing and (same or device.device_state is not DeviceState.AVAILABLE):
        changes["missing"] = False
        changes |= debt(device)
    if not _identified(found) or device.device_state in BEING_CLEANED:
        return changes
    if device.device_state is DeviceState.ALLOCATED:
        # The functions that a guest has reveal nothing about the rest of the card.
        if same and not device.is_drive and device.excluded_reason != found.excluded:
            changes["excluded_reason"] = found.excluded
        return changes
    if (device.serial, device.drive_model) == (None, None) != (found.serial, found.drive_model):
        changes |= {"serial": found.serial, "drive_model": found.drive_model}
    if same and device.is_drive and device.serial is not None and found.serial is None:
        changes["serial"] = None  # from now on its slot identifies the drive
    if same and found.by_slot and found.serial not in (None, device.serial):
        changes["serial"] = found.serial
    other = (None, None) if same else (found.serial, found.drive_model)
    if (device.found_serial, device.found_drive_model) != other and not (same and device.was_away):
        changes |= {"found_serial": other[0], "found_drive_model": other[1]}
    if not same:
        return changes
    if device.device_state is DeviceState.ERROR and device.state_reason == NOT_THERE:
        changes["state_reason"] = THERE_AGAIN
    if device.excluded_reason != found.excluded:
        changes["excluded_reason"] = found.excluded
        if found.excluded is None:
            changes |= debt(device)
    if not device.is_drive and device.type.value != found.device_type:
        changes["type"] = DeviceType(found.device_type)
    keeps_erase = device.keeps_erase(found.reclaim)
    if device.reclaim is not found.reclaim and device.device_state is not DeviceState.SPENT and not keeps_erase:
        changes["reclaim"] = found.reclaim
    if device.requested_by is not found.requested_by:
        changes["requested_by"] = found.requested_by
    changes |= _layout_changes(device, found)
    if device.std_board_info != board_info(found) and not keeps_erase:  # it has the cleanup action
        changes["std_board_info"] = board_info(found)
    if (device.vendor, device.model) != (found.vendor, found.product):
        changes |= {"vendor": found.vendor, "model": found.product}
    return changes


def _layout_changes(device: DeviceRecord, found: DiscoveredDevice) -> dict[str, Any]:
    """Return the changes if an available drive has no layout on record, or another than the found one."""
    if found.layout is None:
        return {}
    seen = recorded_layout(found)
    if seen == device.layout:
        other = None
    elif (recorded := DriveLayout.from_json(device.layout)) is None:
        return {"layout": seen} if device.device_state is DeviceState.AVAILABLE else {}
    else:
        other = None if found.layout == recorded else seen
    return {} if device.found_layout == other else {"found_layout": other}


def _layout_difference(device: DeviceRecord, found: DiscoveredDevice | Sighting) -> str | None:
    """Describe how the found layout differs from the one on record; None if it does not, or cannot be compared."""
    if not _identified(found) or found.layout is None or not _same_drive(device, found):
        return None
    recorded = DriveLayout.from_json(device.layout)
    return None if recorded is None else difference(recorded, found.layout)


def _policy_change(device: DeviceRecord, changes: Mapping[str, Any]) -> str | None:
    """Describe how the configuration changes the handling of a device; None if it does not."""
    said = []
    if "std_board_info" in changes:
        before, after = device.cleanup_action, json.loads(changes["std_board_info"]).get("cleanup_action")
        if before != after:
            said.append(f"cleanup_action is {after or 'none'}, and was {before or 'none'}")
    if "reclaim" in changes:
        said.append(f"reclaim is {changes['reclaim']}, and was {device.reclaim}")
    if "requested_by" in changes:
        said.append(f"it is for a {changes['requested_by']}, and was for a {device.requested_by}")
    if "excluded_reason" in changes:
        why = changes["excluded_reason"]
        said.append(f"excluded: {why}" if why else f"no longer excluded: {device.excluded_reason}")
    return "; ".join(said) or None


def _distrusted(device: DeviceRecord, found: DiscoveredDevice | Sighting, known_dirty: bool) -> str | None:
    """Return why an idle device must be marked suspect; None if it need not be, or already is."""
    if device.device_state not in IDLE_STATES:
        return None
    if _identified(found) and not _same_drive(device, found):
        said = (device.found_serial, device.found_drive_model) == (found.serial, found.drive_model)
        if said and device.device_state is not DeviceState.AVAILABLE:
            return None
        return (
            f"another {'drive' if device.is_drive else 'card'} is in the slot: "
            f"{_words(found.drive_model, found.serial)}, where {_words(device.drive_model, device.serial)} was; accept "
            "it with `autoclave device accept`, or put the known one back"
        )
    if device.device_state is not DeviceState.AVAILABLE:
        return None
    if found.exposed is not None:
        return f"somebody else may have written to it while it was offered: {found.exposed}"
    if known_dirty:
        return f"drive {(drive_of(device, found) or ('',))[0]} came back without having been cleaned"
    if device.missing and device.is_drive and _same_drive(device, found):
        return _WAS_AWAY
    if (changed := _layout_difference(device, found)) is not None:
        return f"its layout was changed while it was available: {changed}"
    return None


def _words(model: str | None, serial: str | None) -> str:
    return " ".join(word for word in (model, serial) if word) or "one that does not say what it is"


def _identified(found: DiscoveredDevice | Sighting) -> TypeGuard[DiscoveredDevice]:
    return isinstance(found, DiscoveredDevice) and found.unreadable is None


def _describes(found: DiscoveredDevice | Sighting, device: DeviceRecord) -> TypeGuard[DiscoveredDevice]:
    # Attributes known to Placement change neither under a guest nor because of another drive.
    return device.device_state in IDLE_STATES and _same_drive(device, found)


def _attaches(found: DiscoveredDevice | Sighting, device: DeviceRecord) -> TypeGuard[DiscoveredDevice]:
    return device.device_state not in BEING_CLEANED and _same_drive(device, found)


def _same_drive(device: DeviceRecord, found: DiscoveredDevice | Sighting) -> bool:
    """Return whether discovery found the drive on record in the slot."""
    if not _identified(found):
        return False
    if device.serial is None and device.drive_model is None:
        return (device.vendor, device.model) == (found.vendor, found.product)
    if found.by_slot and (found.serial is None or not device.is_drive):
        return device.drive_model == found.drive_model
    if found.serial is None and not tells_apart(device.serial):
        return device.drive_model == found.drive_model
    return (device.serial, device.drive_model) == (found.serial, found.drive_model)
