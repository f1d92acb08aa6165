"""Parse ``[pci] alias``: the names by which flavors request PCI functions (``pci_passthrough:alias``).

The keys are Nova's. Placement alone finds the device, so an alias is reduced to a resource class and traits.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoclave.exceptions import InvalidConfiguration
from autoclave.rules import json_options, resource_names
from autoclave.rules.json_options import option_entries, unknown_key
from autoclave.rules.pci_address import parse_pci_id
from autoclave.rules.pci_inventory import LIVE_MIGRATABLE, DevType
from autoclave.rules.resource_names import pci_resource_class

ALIAS_OPTION = "[pci] alias"


@dataclass(frozen=True, slots=True)
class PCIAlias:
    """Describe one function of an alias as one group of a Placement request.

    :param resource_class: the request asks for one unit of it.
    :param required: traits that its provider must have.
    :param forbidden: traits that its provider must not have.
    """

    name: str
    resource_class: str
    required: frozenset[str] = frozenset()
    forbidden: frozenset[str] = frozenset()


def parse_pci_alias(values: Sequence[str]) -> Mapping[str, PCIAlias]:
    """Parse all values of the option, JSON objects or lists of them, into aliases by name.

    :raises InvalidConfiguration: a value or an entry is invalid, or two entries have the same name.
    """
    aliases: dict[str, PCIAlias] = {}
    entries: dict[str, int] = {}
    for entry, raw in option_entries(values, ALIAS_OPTION):
        alias = _alias(entry, raw)
        if alias.name in aliases:
            raise _wrong(
                entry,
                f"entry {entries[alias.name]} has the name {alias.name!r}, too. An alias is one kind of device: give "
                "those that are interchangeable one resource_class in [pci] device_spec, and name it here",
                "name",
            )
        aliases[alias.name], entries[alias.name] = alias, entry
    return aliases


def _alias(entry: int, raw: object) -> PCIAlias:
    if not isinstance(raw, dict):
        raise _wrong(entry, f'must be a JSON object such as {{"name": "gpu", …}}, not {json_options.kind(raw)}')
    said: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in _PARSERS:
            raise _wrong(entry, unknown_key(key, list(_PARSERS)), key)
        try:
            said[key] = _PARSERS[key](value)
        except ValueError as e:
            raise _wrong(entry, str(e), key) from None
    if "name" not in said:
        raise _wrong(entry, "is missing: flavors ask for the device by it", "name")
    if "resource_class" not in said and not {"vendor_id", "product_id"} <= said.keys():
        raise _wrong(entry, f"{said['name']!r} names no device: give resource_class, or vendor_id and product_id")
    live_migratable = said.get("live_migratable")
    required = said.get("traits", frozenset()) | ({LIVE_MIGRATABLE} if live_migratable is True else frozenset())
    if live_migratable is False and LIVE_MIGRATABLE in required:
        raise _wrong(entry, f"is false, and traits has {LIVE_MIGRATABLE}: no device is both", "live_migratable")
    return PCIAlias(
        said["name"],
        said.get("resource_class") or pci_resource_class(said["vendor_id"], said["product_id"]),
        required=required,
        forbidden=frozenset({LIVE_MIGRATABLE} if live_migratable is False else ()),
    )


def _wrong(entry: int, message: str, key: str | None = None) -> InvalidConfiguration:
    return InvalidConfiguration(message, option=ALIAS_OPTION, entry=entry, key=key)


def _name(value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 255:
        raise ValueError(f"must be a string of 1 to 255 characters, not {json_options.kind(value)}")
    if value != value.strip() or set(value) & set(",:"):
        raise ValueError(
            f"{value!r} cannot be written in a flavor, where commas, colons and spaces divide names and numbers"
        )
    return value


def _id(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f'must be a string of hexadecimal digits, such as "10de", not {json_options.kind(value)}')
    return parse_pci_id(value)


def _device_type(value: object) -> DevType:
    if value == "type-VDPA":
        raise ValueError("type-VDPA is for ports of Neutron, and no flavor gets one here")
    if not isinstance(value, str) or value not in list(DevType):
        raise ValueError(f"must be one of {', '.join(DevType)}, not {json_options.kind(value)}")
    return DevType(value)


def _numa_policy(value: object) -> str:
    if value in ("required", "socket"):
        raise ValueError(f"{value!r} cannot be kept: guests are not bound to NUMA nodes here; write 'preferred'")
    if value not in ("preferred", "legacy"):
        raise ValueError(f"must be preferred or legacy, not {json_options.kind(value)}")
    return str(value)


def _capability_type(value: object) -> str:
    if value != "pci":
        raise ValueError(f'must be "pci", not {json_options.kind(value)}')
    return "pci"


_PARSERS: Mapping[str, Callable[[object], Any]] = {
    "name": _name,
    "vendor_id": _id,
    "product_id": _id,
    "resource_class": resource_names.resource_class,
    "traits": resource_names.traits,
    "device_type": _device_type,
    "numa_policy": _numa_policy,
    "live_migratable": json_options.boolean,
    "capability_type": _capability_type,
}
"""The parsers by key. device_type, numa_policy and capability_type are only validated: class and traits select a
device.
"""
