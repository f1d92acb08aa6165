"""What devices are called in Placement."""

from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_id import parse_pci_id

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
