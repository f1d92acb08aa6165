"""What devices are called in Placement."""

from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_id import parse_pci_id

OWNER_CYBORG = "OWNER_CYBORG"
"""The trait of every provider that the accelerator service owns. One without it is somebody else's."""

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

_VENDOR_NAMES = {"102b": "MATROX", "10de": "NVIDIA", "1bd4": "INSPUR", "1cf2": "ZTE", "8086": "INTEL"}
"""Vendors that device profiles written for Cyborg know by name. A list that grew would change traits: ids do not."""


def pci_traits(vendor: str, product: str) -> tuple[str, ...]:
    """The traits that say which PCI device it is, made of its ids alone.

    :param vendor: PCI vendor id in hexadecimal.
    :param product: PCI product id in hexadecimal; it means something beside the vendor's only.
    :raises ValueError: one of them is not hexadecimal of at most four digits.
    """
    vendor, product = parse_pci_id(vendor), parse_pci_id(product)
    named = [f"CUSTOM_PCI_{_VENDOR_NAMES[vendor]}"] if vendor in _VENDOR_NAMES else []
    return (*named, f"CUSTOM_PCI_VENDOR_ID_{vendor.upper()}", f"CUSTOM_PCI_PRODUCT_ID_{product.upper()}")


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
