"""Name devices in Placement, and read the stored data about them.

Resource classes and traits follow Nova's PCI tracking. A standard name is kept. Any other becomes a custom name in
upper case, prefixed by ``CUSTOM_``. An underscore replaces each run of characters that are neither letters nor digits.
Surrounding spaces are dropped.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import os_resource_classes
import os_traits

from autoclave.rules import json_options
from autoclave.rules.json_options import boolean
from autoclave.rules.pci_address import PCIAddress, parse_pci_id

OWNER_CYBORG = "OWNER_CYBORG"
"""The trait of every provider that the accelerator service owns. A provider without it has another owner."""

OWNER_NOVA = "OWNER_NOVA"
"""The trait of every provider that Nova writes. On a provider of Autoclave, it reveals a second writer."""

FLAVOR_TRAITS = frozenset({"COMPUTE_MANAGED_PCI_DEVICE", OWNER_NOVA})
"""The traits of every provider of a device that flavors ask for."""

CONSUMER_TYPE = "INSTANCE"
"""The consumer type of Autoclave's allocations. Nova and older clients give no type."""

_NVME_PREFIX = "CUSTOM_NVME_"


def nvme_resource_class(vendor: str, product: str) -> str:
    """Return the resource class of an NVMe controller, such as ``CUSTOM_NVME_144D_A808``.

    :param vendor: PCI vendor id in hexadecimal.
    :param product: PCI product id in hexadecimal.
    :raises ValueError: one of them is not hexadecimal of at most four digits.
    """
    return f"{_NVME_PREFIX}{parse_pci_id(vendor)}_{parse_pci_id(product)}".upper()


PCI_CLASS = "CUSTOM_PCI"
"""The resource class of every device of the generic PCI driver; its traits identify the model."""

_VENDOR, _PRODUCT = "CUSTOM_PCI_VENDOR_ID_", "CUSTOM_PCI_PRODUCT_ID_"
_VENDOR_NAMES = {
    "102b": "CUSTOM_PCI_MATROX",
    "10de": "CUSTOM_PCI_NVIDIA",
    "1bd4": "CUSTOM_PCI_INSPUR",
    "1cf2": "CUSTOM_PCI_ZTE",
    "8086": "CUSTOM_PCI_INTEL",
}
"""The vendors that device profiles written for Cyborg refer to by name. More names would change traits; ids are stable.
"""


def pci_traits(vendor: str, product: str) -> tuple[str, ...]:
    """Return the traits that identify a PCI device, derived from its ids alone.

    :param vendor: PCI vendor id in hexadecimal.
    :param product: PCI product id in hexadecimal; it is only meaningful together with the vendor.
    :raises ValueError: one of them is not hexadecimal of at most four digits.
    """
    vendor, product = parse_pci_id(vendor), parse_pci_id(product)
    named = [_VENDOR_NAMES[vendor]] if vendor in _VENDOR_NAMES else []
    return (*named, f"{_VENDOR}{vendor.upper()}", f"{_PRODUCT}{product.upper()}")


def may_be_the_operators(trait: str) -> bool:
    """Return whether an operator may have set the trait of a device: a custom trait that does not identify the card.

    If the traits of a previous card from :func:`pci_traits` were kept, device profiles would select the wrong card.
    """
    says_which = trait.startswith((_VENDOR, _PRODUCT)) or trait in _VENDOR_NAMES.values()
    return trait.startswith("CUSTOM_") and not says_which


def pci_resource_class(vendor: str, product: str) -> str:
    """Return Nova's default class of a function in ``[pci] device_spec``, such as ``CUSTOM_PCI_10DE_25B6``.

    :param vendor: PCI vendor id in hexadecimal.
    :param product: PCI product id in hexadecimal.
    :raises ValueError: one of them is not hexadecimal of at most four digits.
    """
    return f"CUSTOM_PCI_{parse_pci_id(vendor)}_{parse_pci_id(product)}".upper()


def provider_name(host: str, address: PCIAddress, name: str | None = None) -> str:
    """Return the name of a device's provider and deployable: ``<host>_<ADDRESS>``, the address in upper case.

    Nova names its PCI providers the same way, so both services recognize a common slot.

    :param name: replaces the address for a device that is in no slot.
    """
    return f"{host}_{name or address.upper}"


def split_provider_name(name: str) -> tuple[str, PCIAddress] | None:
    """Split a name of :func:`provider_name` into host and address; return None for any other name."""
    host, _, address = name.rpartition("_")
    try:
        return (host, PCIAddress.parse(address)) if host else None
    except ValueError:
        return None


def same_provider_name(one: str, other: str) -> bool:
    """Return whether two provider names refer to the same slot.

    Case is ignored: Placement accepts two names that differ only in case, but a slot has one device.
    """
    return one.lower() == other.lower()


_STANDARD_CLASSES = frozenset(os_resource_classes.STANDARDS)
_HOSTS_OWN = frozenset({"VCPU", "PCPU", "MEMORY_MB", "DISK_GB"})
_STANDARD_TRAITS = frozenset(os_traits.get_traits())
_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]+", re.ASCII)
_OTHER_CHARACTERS = re.compile(r"[^A-Z0-9]+", re.ASCII)
_LONGEST = 255
"""The most characters of a name in Placement."""


_OTHERS_TRAITS = {
    "HW_PCI_ONE_TIME_USE": "it follows from the reclaim policy; alone it would promise what nothing ensures",
    "HW_PCI_LIVE_MIGRATABLE": "it follows from the key live_migratable",
    OWNER_CYBORG: "it marks the devices that device profiles ask for, and flavors ask for this one",
}


def device_traits(value: object) -> frozenset[str]:
    """Parse the JSON value of ``traits`` of a device that flavors ask for; see :func:`traits`.

    :raises ValueError: as :func:`traits`; or a name follows from something else.
    """
    names = traits(value)
    for name, reason in _OTHERS_TRAITS.items():
        if name in names:
            raise ValueError(f"{name} cannot be given: {reason}")
    return names


def resource_class(value: object) -> str:
    """Parse the value of ``resource_class``. Standard classes are recognized in any case.

    :raises ValueError: it is not a string, contains no usable character, or is a class of the host itself.
    """
    if not isinstance(value, str):
        raise ValueError(f'must be a string, such as "CUSTOM_GPU", not {json_options.kind(value)}')
    name = value.strip().upper()
    if name in _HOSTS_OWN:
        raise ValueError(f"{name} is what the host itself offers; a PCI function needs a class of its own")
    return name if name in _STANDARD_CLASSES else _custom(name, value)


def traits(value: object) -> frozenset[str]:
    """Parse the JSON value of ``traits``: one string with comma-separated names.

    Standard traits must be spelled exactly.

    :raises ValueError: it is not a string, or one of the names cannot be used.
    """
    if not isinstance(value, str):
        raise ValueError(
            f'must be one string of names with commas between them, such as "CUSTOM_FAST, HW_GPU_API_VULKAN", not '
            f"{json_options.kind(value)}"
        )
    return frozenset(_trait(name.strip(), value) for name in value.split(","))


def _trait(name: str, text: str) -> str:
    if not name:
        raise ValueError(f"{text!r} has an empty name; write names with one comma between two of them")
    return name if name in _STANDARD_TRAITS else _custom(name.upper(), name)


def _custom(name: str, written: str) -> str:
    if _CUSTOM.fullmatch(name) is None:
        made = _OTHER_CHARACTERS.sub("_", name)
        if not made.strip("_"):
            raise ValueError(f"{written!r} has no letter from A to Z and no digit, of which a name could be made")
        name = f"CUSTOM_{made}"
    if len(name) > _LONGEST:
        raise ValueError(f"{name[:40]}… has {len(name)} characters; Placement takes {_LONGEST}")
    return name


RESOURCE_CLASS = "rc"
TRAIT = "trait"


def is_discovered(key: str) -> bool:
    """Return whether only discovery writes *key*: ``rc``, the resource class, and ``trait…``, the traits.

    Their values are published to Placement. Case is ignored, so that readers of the keys may ignore it as well.
    """
    folded = key.casefold()
    return folded == RESOURCE_CLASS or folded.startswith(TRAIT)


def traits_in(discovered: Mapping[str, str]) -> frozenset[str]:
    """Return the traits among the attributes that discovery wrote for a deployable."""
    return frozenset(value for key, value in discovered.items() if key.startswith(TRAIT))


def is_managed(attach_info: Mapping[str, Any]) -> bool:
    """Return the ``managed`` setting of an attach handle's information, true by default (managed-mode specification).

    :raises ValueError: it is not a boolean in any accepted form.
    """
    try:
        return boolean(attach_info.get("managed", True))
    except ValueError as error:
        raise ValueError(f"managed {error}") from None


class Attaching(NamedTuple):
    """Hold the readable part of stored ``attach_info``, which describes how a guest gets a device.

    :param where: the location of the device, such as ``domain``, ``bus``, ``device`` and ``function``.
    :param managed: whether libvirt manages the function; None if that is unreadable.
    :param fault: the unreadable part, as the end of a sentence; None if there is none.
    """

    where: Mapping[str, Any]
    managed: bool | None
    fault: str | None


def read(stored: str) -> Attaching:
    """Parse as much of *stored* as is readable."""
    try:
        info = json.loads(stored)
    except ValueError:
        info = None
    if not isinstance(info, dict):
        return Attaching({}, None, "is no JSON object")
    where = {key: value for key, value in info.items() if key != "managed"}
    try:
        return Attaching(where, is_managed(info), None)
    except ValueError as error:
        return Attaching(where, None, f"has an unreadable {error}")
