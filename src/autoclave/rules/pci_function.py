"""A PCI function of a host, as far as ``[pci] device_spec`` and Placement are concerned."""

from dataclasses import dataclass
from enum import StrEnum

from autoclave.rules.pci_address import PCIAddress


class DevType(StrEnum):
    """Nova's types: without SR-IOV, able to have virtual functions, and virtual."""

    PCI = "type-PCI"
    PF = "type-PF"
    VF = "type-VF"


@dataclass(frozen=True, slots=True)
class PCIFunction:
    """One function.

    :param vendor_id: four lower-case hexadecimal digits.
    :param product_id: likewise.
    :param parent: for a virtual function, its physical function; None where the host does not show it.
    """

    address: PCIAddress
    vendor_id: str
    product_id: str
    dev_type: DevType
    parent: PCIAddress | None = None
