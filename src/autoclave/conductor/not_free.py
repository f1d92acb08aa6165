"""What keeps the devices of a host from being free, as the database has it."""

from collections.abc import Iterator

from sqlalchemy.engine import Connection

from autoclave.db import attributes as attribute_rows
from autoclave.db import devices as device_rows
from autoclave.db import pci
from autoclave.db.devices import DeviceRecord
from autoclave.db.pci import ProviderRecord
from autoclave.rules.device_lifecycle import DeviceState, Withheld, shown_state

_MOST = 10
"""Devices that are named."""


def not_free(tx: Connection, host: str, resource_class: str, trait: str | None = None) -> str | None:
    """Name the devices of a class, and what keeps each from being free; None if the host has none on record.

    :param trait: only devices with this trait.
    """
    named = [*_devices(tx, host, resource_class, trait), *_functions(tx, host, resource_class, trait)]
    more = f" and {len(named) - _MOST} more" if len(named) > _MOST else ""
    return "; ".join(named[:_MOST]) + more if named else None


def _devices(tx: Connection, host: str, resource_class: str, trait: str | None) -> Iterator[str]:
    records = {device.id: device for device in device_rows.list_all(tx, hostname=host)}
    for deployable in device_rows.deployables_of(tx, list(records)):
        if deployable.resource_class != resource_class:
            continue
        if trait is None or trait in attribute_rows.traits_of(tx, deployable.id):
            device = records[deployable.device_id]
            yield f"{device.pci_address} is {_state(device)}"


def _state(device: DeviceRecord) -> str:
    state = shown_state(device.offer)
    reasons = {
        Withheld.HELD: device.hold_reason,
        Withheld.EXCLUDED: device.excluded_reason,
        DeviceState.ERROR: device.state_reason,
    }
    why = next((reason for name, reason in reasons.items() if name == state), None)
    if state == DeviceState.AVAILABLE:
        return "available, and reserved or allocated in Placement"
    return f"{state or 'in no known state'}{f' ({why})' if why else ''}"


def _functions(tx: Connection, host: str, resource_class: str, trait: str | None) -> Iterator[str]:
    for provider in pci.providers(tx, host):
        if provider.resource_class == resource_class and (trait is None or trait in provider.trait_names):
            yield f"{provider.address} is {_use(tx, provider)}"


def _use(tx: Connection, provider: ProviderRecord) -> str:
    if any(function.instance_uuid is not None for function in pci.functions_of(tx, provider)):
        return "in use"
    return "burned" if provider.burned else "reserved or allocated in Placement"
