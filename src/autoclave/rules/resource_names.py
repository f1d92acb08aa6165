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


def is_nvme_class(resource_class: str) -> bool:
    """Whether the class is one that :func:`nvme_resource_class` makes."""
    return resource_class.startswith(_NVME_PREFIX)


def provider_name(host: str, address: PCIAddress) -> str:
    """The name of a device's provider and deployable: ``<host>_<ADDRESS>``, the address in upper case.

    Nova names its PCI providers so too; that is how both see that they mean the same slot.
    """
    return f"{host}_{address.upper}"


def same_provider_name(one: str, other: str) -> bool:
    """Whether two provider names mean the same slot.

    Case does not count: Placement takes two names that differ only in it, but a slot is one device.
    """
    return one.lower() == other.lower()
