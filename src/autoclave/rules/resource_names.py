"""Name devices in Placement, and read what is stored about them.

What devices are called in Placement.

Resource classes and traits as an operator may write them, and as Placement takes them.

A standard name stays as it is. Any other becomes a custom one in the way of Nova's PCI tracking: upper case, an
underscore for each run of characters that are no letters or digits, ``CUSTOM_`` in front. Spaces around a name are
dropped.

Whose an attribute of a deployable is: discovery's or the operator's. Its key decides.

What is stored of how a guest gets a device (``attach_info``).

Whether libvirt manages a PCI function that a guest gets (managed-mode specification).
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
"""The trait of every provider that the accelerator service owns. One without it is somebody else's."""

OWNER_NOVA = "OWNER_NOVA"
"""The trait of every provider that Nova writes. On a provider of ours it shows a second writer."""

CONSUMER_TYPE = "INSTANCE"
"""The type of the consumers to which Autoclave allocates. Nova names none, nor does who does not know of types."""

_NVME_PREFIX = "CUSTOM_NVME_"


def nvme_resource_class(vendor: str, product: str) -> str:
    """The class of an NVMe controller, such as ``CUSTOM_NVME_144D_A808``.

    :param vendor: PCI vendor id in hexadecimal.
    :param product: PCI product id in hexadecimal.
    :raises ValueError: one of them is not hexadecimal of at most four digits.
    """
    return f"{_NVME_PREFIX}{parse_pci_id(vendor)}_{parse_pci_id(product)}".upper()


PCI_CLASS = "CUSTOM_PCI"
"""The class of every device that the generic PCI driver finds; its traits say which it is."""

_VENDOR, _PRODUCT = "CUSTOM_PCI_VENDOR_ID_", "CUSTOM_PCI_PRODUCT_ID_"
_VENDOR_NAMES = {
    "102b": "CUSTOM_PCI_MATROX",
    "10de": "CUSTOM_PCI_NVIDIA",
    "1bd4": "CUSTOM_PCI_INSPUR",
    "1cf2": "CUSTOM_PCI_ZTE",
    "8086": "CUSTOM_PCI_INTEL",
}
"""Vendors that device profiles written for Cyborg know by name. A list that grew would change traits: ids do not."""


def pci_traits(vendor: str, product: str) -> tuple[str, ...]:
    """The traits that say which PCI device it is, made of its ids alone.

    :param vendor: PCI vendor id in hexadecimal.
    :param product: PCI product id in hexadecimal; it means something beside the vendor's only.
    :raises ValueError: one of them is not hexadecimal of at most four digits.
    """
    vendor, product = parse_pci_id(vendor), parse_pci_id(product)
    named = [_VENDOR_NAMES[vendor]] if vendor in _VENDOR_NAMES else []
    return (*named, f"{_VENDOR}{vendor.upper()}", f"{_PRODUCT}{product.upper()}")


def may_be_the_operators(trait: str) -> bool:
    """Whether somebody may have set a device's trait by hand: it is a custom one, and does not say which card it is.

    What :func:`pci_traits` made of a card that was there before would have device profiles find the wrong one.
    """
    says_which = trait.startswith((_VENDOR, _PRODUCT)) or trait in _VENDOR_NAMES.values()
    return trait.startswith("CUSTOM_") and not says_which


def pci_resource_class(vendor: str, product: str) -> str:
    """The class of a PCI function that ``[pci] device_spec`` gives none, such as ``CUSTOM_PCI_10DE_25B6``: Nova's.

    :param vendor: PCI vendor id in hexadecimal.
    :param product: PCI product id in hexadecimal.
    :raises ValueError: one of them is not hexadecimal of at most four digits.
    """
    return f"CUSTOM_PCI_{parse_pci_id(vendor)}_{parse_pci_id(product)}".upper()


def provider_name(host: str, address: PCIAddress, name: str | None = None) -> str:
    """The name of a device's provider and deployable: ``<host>_<ADDRESS>``, the address in upper case.

    Nova names its PCI providers so too; that is how both see that they mean the same slot.

    :param name: what a device that is in no slot has instead of the address.
    """
    return f"{host}_{name or address.upper}"


def split_provider_name(name: str) -> tuple[str, PCIAddress] | None:
    """Host and address of a name that :func:`provider_name` makes, or None for any other name."""
    host, _, address = name.rpartition("_")
    try:
        return (host, PCIAddress.parse(address)) if host else None
    except ValueError:
        return None


def same_provider_name(one: str, other: str) -> bool:
    """Whether two provider names mean the same slot.

    Case does not count: Placement takes two names that differ only in it, but a slot is one device.
    """
    return one.lower() == other.lower()


_STANDARD_CLASSES = frozenset(os_resource_classes.STANDARDS)
_HOSTS_OWN = frozenset({"VCPU", "PCPU", "MEMORY_MB", "DISK_GB"})
_STANDARD_TRAITS = frozenset(os_traits.get_traits())
_CUSTOM = re.compile(r"CUSTOM_[A-Z0-9_]+", re.ASCII)
_OTHER_CHARACTERS = re.compile(r"[^A-Z0-9]+", re.ASCII)
_LONGEST = 255
"""Characters that Placement takes of a name."""


def resource_class(value: object) -> str:
    """The class of PCI functions that the value of ``resource_class`` names; of a standard one case does not count.

    :raises ValueError: it is no string, nothing of which a name could be made, or a class of the host's own.
    """
    if not isinstance(value, str):
        raise ValueError(f'must be a string, such as "CUSTOM_GPU", not {json_options.kind(value)}')
    name = value.strip().upper()
    if name in _HOSTS_OWN:
        raise ValueError(f"{name} is what the host itself offers; a PCI function needs a class of its own")
    return name if name in _STANDARD_CLASSES else _custom(name, value)


def traits(value: object) -> frozenset[str]:
    """The traits that the JSON value of ``traits`` names: one string, with commas between the names.

    Standard ones must be spelled exactly.

    :raises ValueError: it is no string, or one of the names cannot be used.
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
    """Whether *key* is one that only discovery writes: ``rc``, the resource class, and ``trait…``, the traits.

    They say what Placement is told of the device. In capitals too: who reads them need not mind the case.
    """
    folded = key.casefold()
    return folded == RESOURCE_CLASS or folded.startswith(TRAIT)


def traits_in(discovered: Mapping[str, str]) -> frozenset[str]:
    """The traits among the attributes that discovery has written of a deployable."""
    return frozenset(value for key, value in discovered.items() if key.startswith(TRAIT))


def is_managed(attach_info: Mapping[str, Any]) -> bool:
    """What the information of an attach handle says: true if it says nothing.

    :raises ValueError: it says neither true nor false, however that is written.
    """
    try:
        return boolean(attach_info.get("managed", True))
    except ValueError as error:
        raise ValueError(f"managed {error}") from None


class Attaching(NamedTuple):
    """What can be read of it.

    :param where: where the device is, such as ``domain``, ``bus``, ``device`` and ``function``.
    :param managed: whether libvirt manages it; None: that cannot be read.
    :param fault: what cannot be read, as the end of a sentence; None: nothing.
    """

    where: Mapping[str, Any]
    managed: bool | None
    fault: str | None


def read(stored: str) -> Attaching:
    """Read as much of *stored* as can be."""
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
