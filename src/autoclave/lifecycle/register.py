"""Register a device that discovery finds for the first time."""

import json
import uuid
from dataclasses import dataclass, replace

from sqlalchemy.engine import Connection

from autoclave.db import attributes as attribute_rows
from autoclave.db import devices, history, hosts
from autoclave.db import devices as device_rows
from autoclave.db.devices import DeviceRecord
from autoclave.db.tables import DeviceType
from autoclave.drivers.base import DiscoveredDevice
from autoclave.lifecycle.attach_handles import attributes_of, board_info, insert_handle, recorded_layout
from autoclave.lifecycle.observe import require_not_lent
from autoclave.lifecycle.transitions import Cause, miss, note_dirty, tell_history
from autoclave.rules.device_lifecycle import IDLE_STATES, DeviceState, Slot, initial_state
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.resource_names import provider_name


@dataclass(frozen=True)
class FoundProvider:
    """Describe a provider of Autoclave that exists in Placement before its device is in the database."""

    uuid: str
    reserved: int
    used: int


def register(
    tx: Connection,
    hostname: str,
    driver_name: str,
    found: DiscoveredDevice,
    provider: FoundProvider | None,
    cause: Cause,
    *,
    clean_on_discovery: bool,
    run_id: str,
) -> DeviceRecord:
    """Insert a device with its related rows. Its provider's uuid is committed before the provider is created.

    :raises DBDuplicateEntry: the slot is in the database already.
    :raises StateConflict: flavors still ask for one of its functions.
    """
    require_not_lent(tx, hostname, {found.pci_address, *(each.identity for each in found.attach_handles)})
    device_type = DeviceType(found.device_type)
    known_dirty = found.serial is not None and history.contains(tx, found.serial, found.drive_model or "")
    rows = _rows_of_drive(tx, found) if device_type is DeviceType.NVME else []
    others = [row for row in rows if not row.missing]
    state, reason = initial_state(
        Slot(
            supports_cleaning=device_type is DeviceType.NVME,
            unreadable=found.unreadable,
            exposed=found.exposed,
            known_dirty=known_dirty,
            elsewhere=" and ".join(other.slot for other in others) or None,
            provider_reserved=provider.reserved if provider else 0,
            provider_used=provider.used if provider else 0,
            clean_on_discovery=clean_on_discovery,
        )
    )
    address = PCIAddress.parse(found.pci_address)
    rp_uuid = provider.uuid if provider else str(uuid.uuid4())
    device_id = device_rows.insert(
        tx,
        {
            "uuid": str(uuid.uuid4()),
            "type": device_type,
            "requested_by": found.requested_by,
            "reclaim": found.reclaim,
            "vendor": found.vendor,
            "model": found.product,
            "std_board_info": board_info(found),
            "vendor_board_info": found.vendor_board_info,
            "hostname": hostname,
            "device_state": state,
            "state_reason": reason,
            "pci_address": found.pci_address,
            "serial": found.serial,
            "drive_model": found.drive_model,
            # A guest may have changed the layout of an unclean drive; use the one on record for its former slot, if
            # any.
            "layout": recorded_layout(found)
            if state is DeviceState.AVAILABLE
            else next((row.layout for row in rows if row.layout is not None), None),
            "release_pending": state is DeviceState.AVAILABLE,
            "release_number": 1 if state is DeviceState.AVAILABLE else 0,
            "excluded_reason": found.excluded,
            "agent_run_id": run_id,
            "host_maintained": hosts.get_maintenance(tx, hostname) is not None,
        },
    )
    deployable_id = device_rows.insert_deployable(
        tx,
        {
            "uuid": str(uuid.uuid4()),
            "name": provider_name(hostname, address, found.name),
            "num_accelerators": len(found.attach_handles),
            "device_id": device_id,
            "rp_uuid": rp_uuid,
            "resource_class": found.resource_class,
            "driver_name": driver_name,
        },
    )
    devices.insert_controlpath(tx, device_id, {"cpid_type": "PCI", "cpid_info": json.dumps(address.as_attach_info())})
    for handle in found.attach_handles:
        insert_handle(tx, deployable_id, handle)
    attribute_rows.replace(tx, deployable_id, attributes_of(found))
    device = device_rows.get_by_id(tx, device_id)
    assert device is not None, "the row that this transaction has just inserted"
    tell_history(tx, device, None, state, "discovered", replace(cause, reason=reason))
    note_dirty(tx, device, cause)
    for other in others:
        # If the other host was renamed, no agent serves its former name and reports the drive missing.
        if other.hostname != hostname and other.device_state in IDLE_STATES:
            miss(tx, other.uuid, cause, f"its drive was found at {device.slot}")
    return device


def _rows_of_drive(tx: Connection, found: DiscoveredDevice) -> list[DeviceRecord]:
    """Return the rows of other slots that have, or had, the drive found in a new slot."""
    return [] if found.serial is None else device_rows.with_drive(tx, found.serial, found.drive_model or "")
