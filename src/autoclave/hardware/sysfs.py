"""The PCI functions of a host, as sysfs shows them."""

import re
from dataclasses import dataclass
from pathlib import Path

from autoclave.exceptions import DeviceVanished, HardwareError, SlotEmpty
from autoclave.hardware import attribute
from autoclave.hardware.host import HostPaths
from autoclave.rules.pci_address import PCIAddress

BRIDGE_CLASS = "06"
"""How the class code of a bridge begins. No guest gets one."""
NVME_CLASS = "0108"
"""How that of an NVMe controller begins, whatever its programming interface."""

_DEAD_VENDOR = "ffff"
"""What reads give that no device answers."""


@dataclass(frozen=True)
class PCIFunction:
    """One PCI function.

    :param vendor_id: four lower-case hexadecimal digits.
    :param product_id: likewise.
    :param class_code: six lower-case hexadecimal digits; NVMe is ``010802``.
    :param driver: the kernel driver it is bound to, or None.
    :param iommu_group: the group's number, or None without an IOMMU.
    :param physfn: for a VF: its PF.
    :param is_pf: it can have VFs (``sriov_totalvfs`` above zero).
    """

    address: PCIAddress
    vendor_id: str
    product_id: str
    class_code: str
    driver: str | None
    iommu_group: str | None
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
    functions: list[PCIFunction] = []
    unreadable: list[Unreadable] = []
    for entry in attribute.entries(_bus(paths)):
        try:
            functions.append(pci_function(paths, PCIAddress.parse(entry.name)))
        except DeviceVanished:
            continue
        except (HardwareError, ValueError) as e:
            unreadable.append(Unreadable(entry.name, str(e)))
    return sorted(functions, key=lambda function: function.address), unreadable


def pci_function(paths: HostPaths, address: PCIAddress) -> PCIFunction:
    """One function.

    :raises SlotEmpty: there is none at this address, or it went away while being read.
    :raises HardwareError: it cannot be read.
    """
    directory = function_directory(paths, address)
    try:
        return _read(directory, address)
    except HardwareError as e:
        if attribute.is_there(directory):
            raise
        raise SlotEmpty(f"there is no PCI function {address} on this host") from e


def physical_of(paths: HostPaths, name: str) -> str | None:
    """Return the name of the physical function of the sysfs entry *name*; None if it is no virtual function.

    :raises HardwareError: the link cannot be read.
    """
    return attribute.link_name(_bus(paths) / name / "physfn")


def iommu_group_members(paths: HostPaths, address: PCIAddress) -> list[PCIAddress]:
    """The other functions of its IOMMU group, in bus order; empty also without an IOMMU.

    They go to a guest together or not at all (bridges stay, but are listed too).

    :raises DeviceVanished: there is no function at this address.
    :raises HardwareError: the group cannot be read.
    """
    group = function_directory(paths, address) / "iommu_group"
    if pci_function(paths, address).iommu_group is None:
        return []
    # Members on other buses, such as platform devices, have no PCI address to show.
    names = [entry.name for entry in attribute.entries(group / "devices")]
    members = [PCIAddress.parse(name) for name in names if re.fullmatch(r"[0-9a-f]{4,8}(:[0-9a-f]{2}){2}\.[0-7]", name)]
    return sorted(member for member in members if member != address)


def vfio_nodes(paths: HostPaths, address: PCIAddress) -> list[Path]:
    """The nodes by which a program can have the function through VFIO, whether they are there or not.

    Those of its group, and with IOMMUFD (Linux 6.6) the node of the device itself.
    """
    directory = function_directory(paths, address)
    group = attribute.link_name(directory / "iommu_group")
    of_group = [] if group is None else [paths.dev / "vfio" / name for name in (group, f"noiommu-{group}")]
    devices = directory / "vfio-dev"
    names = [entry.name for entry in attribute.entries(devices)] if attribute.is_there(devices) else []
    return [*of_group, *(paths.dev / "vfio/devices" / name for name in names)]


def function_directory(paths: HostPaths, address: PCIAddress) -> Path:
    """Where sysfs keeps the function."""
    return _bus(paths) / str(address)


def _bus(paths: HostPaths) -> Path:
    return paths.sysfs / "bus/pci/devices"


def _read(directory: Path, address: PCIAddress) -> PCIFunction:
    vendor = _hex(directory / "vendor", 4)
    if vendor == _DEAD_VENDOR:
        raise HardwareError(f"{address} answers with nothing but ones: the device is dead or has no power")
    physfn = attribute.link_name(directory / "physfn")
    try:
        return PCIFunction(
            address=address,
            vendor_id=vendor,
            product_id=_hex(directory / "device", 4),
            class_code=_hex(directory / "class", 6),
            driver=attribute.link_name(directory / "driver"),
            iommu_group=attribute.link_name(directory / "iommu_group"),
            physfn=None if physfn is None else PCIAddress.parse(physfn),
            is_pf=int(attribute.read_if_there(directory / "sriov_totalvfs") or 0) > 0,
        )
    except ValueError as e:
        raise HardwareError(f"sysfs says something about {address} that cannot be understood: {e}") from e


def _hex(path: Path, digits: int) -> str:
    text = attribute.read(path).lower()
    found = re.fullmatch(rf"0x([0-9a-f]{{{digits}}})", text)
    if found is None:
        raise HardwareError(f"{path} says {text[:40]!r}, where 0x and {digits} hexadecimal digits belong")
    return found[1]
