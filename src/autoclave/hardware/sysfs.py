"""The PCI functions of a host, as sysfs shows them."""

from dataclasses import dataclass

from autoclave.hardware.host import HostPaths
from autoclave.rules.pci_address import PCIAddress


@dataclass(frozen=True)
class PCIFunction:
    """One PCI function.

    :param vendor_id: four lower-case hexadecimal digits.
    :param product_id: likewise.
    :param class_code: six lower-case hexadecimal digits; NVMe is ``010802``.
    :param driver: the kernel driver it is bound to, or None.
    :param iommu_group: the group's number, or None without an IOMMU.
    :param numa_node: None where the platform does not say.
    :param physfn: for a VF: its PF.
    :param is_pf: it can have VFs (``sriov_totalvfs`` above zero).
    """

    address: PCIAddress
    vendor_id: str
    product_id: str
    class_code: str
    driver: str | None
    iommu_group: str | None
    numa_node: int | None
    physfn: PCIAddress | None
    is_pf: bool


@dataclass(frozen=True)
class Unreadable:
    """A function that is there, but does not say what it is.

    :param address: the name of its sysfs entry.
    """

    address: str
    reason: str


def pci_functions(paths: HostPaths) -> tuple[list[PCIFunction], list[Unreadable]]:
    """All functions of the host in bus order, and those that cannot be read.

    :raises HardwareError: the bus itself cannot be listed.
    """
    raise NotImplementedError


def pci_function(paths: HostPaths, address: PCIAddress) -> PCIFunction:
    """One function.

    :raises DeviceVanished: there is none at this address.
    :raises HardwareError: it cannot be read.
    """
    raise NotImplementedError


def iommu_group_members(paths: HostPaths, address: PCIAddress) -> list[PCIAddress]:
    """The other functions that go to a guest with this one; empty also without an IOMMU."""
    raise NotImplementedError
