"""Read sysfs: PCI functions, attributes, and what identifies the machine."""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from oslo_log import log as logging

from autoclave.exceptions import DeviceVanished, HardwareError, SlotEmpty
from autoclave.hardware.host import HostPaths
from autoclave.rules.host_setup import HostHints, hint
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.plain_text import drive_text

LOG = logging.getLogger(__name__)


def read(path: Path) -> str:
    r"""Return the text of an attribute without padding, with each byte that is not UTF-8 as ``\xNN``.

    :raises HardwareError: it cannot be read.
    """
    try:
        return path.read_bytes().decode("utf-8", "backslashreplace").strip()
    except OSError as e:
        raise HardwareError(f"cannot read {path}: {e.strerror}") from e


def drive_string(path: Path) -> str:
    """Return a string that a drive reports about itself, normalized by :func:`drive_text`.

    :raises HardwareError: it cannot be read.
    """
    try:
        return drive_text(path.read_bytes().decode("utf-8", "backslashreplace"))
    except OSError as e:
        raise HardwareError(f"cannot read {path}: {e.strerror}") from e


def read_if_there(path: Path) -> str | None:
    """Return the text of an attribute, or None if the kernel does not have it.

    :raises HardwareError: it exists and cannot be read.
    """
    return read(path) if is_there(path) else None


def number(path: Path, base: int = 10) -> int:
    """Return the number in an attribute, decimal by default.

    :raises HardwareError: it cannot be read or is not a number.
    """
    text = read(path)
    try:
        return int(text, base)
    except ValueError:
        raise HardwareError(f"{path} has the value {text[:40]!r}, which is not a number") from None


def link_name(path: Path) -> str | None:
    """Return the last part of a link's target, such as ``nvme`` for ``driver``, or None without a link.

    :raises HardwareError: the link exists and cannot be read.
    """
    try:
        return os.path.basename(os.readlink(path))
    except FileNotFoundError:
        return None
    except OSError as e:
        raise HardwareError(f"cannot read the link {path}: {e.strerror}") from e


def entries(directory: Path) -> list[Path]:
    """Return the entries of a directory, sorted by name.

    :raises HardwareError: it cannot be listed.
    """
    try:
        return sorted(directory.iterdir())
    except OSError as e:
        raise HardwareError(f"cannot list {directory}: {e.strerror}") from e


def is_there(path: Path) -> bool:
    """Return whether an entry exists, including a broken link. Only an explicit error of the kernel means no.

    :raises HardwareError: the kernel reports another error.
    """
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):  # an attribute has no entries either
        return False
    except OSError as e:
        raise HardwareError(f"cannot access {path}: {e.strerror}") from e
    return True


BRIDGE_CLASS = "06"
"""The prefix of a bridge's class code. Guests never get bridges."""
STORAGE_CLASS = "01"
"""The prefix of a storage controller's class code."""
NVME_CLASS = "0108"
"""The prefix of an NVMe controller's class code, whatever its programming interface."""

_DEAD_VENDOR = "ffff"
"""The value that reads return if no device answers."""


@dataclass(frozen=True)
class PCIFunction:
    """Describe one PCI function.

    :param vendor_id: four lower-case hexadecimal digits.
    :param product_id: four lower-case hexadecimal digits.
    :param class_code: six lower-case hexadecimal digits; NVMe is ``010802``.
    :param driver: its kernel driver, or None.
    :param iommu_group: the group's number, or None without an IOMMU.
    :param physfn: for a virtual function, its physical function.
    :param is_pf: it can have virtual functions (``sriov_totalvfs`` above zero).
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
    """Describe a function that exists but cannot be identified.

    :param address: the name of its sysfs entry.
    """

    address: str
    reason: str


def pci_functions(paths: HostPaths) -> tuple[list[PCIFunction], list[Unreadable]]:
    """Return all functions of the host in bus order, and those that cannot be read.

    :raises HardwareError: the bus itself cannot be listed.
    """
    functions: list[PCIFunction] = []
    unreadable: list[Unreadable] = []
    for entry in entries(_bus(paths)):
        try:
            functions.append(pci_function(paths, PCIAddress.parse(entry.name)))
        except DeviceVanished:
            continue
        except (HardwareError, ValueError) as e:
            unreadable.append(Unreadable(entry.name, str(e)))
    return sorted(functions, key=lambda function: function.address), unreadable


def pci_function(paths: HostPaths, address: PCIAddress) -> PCIFunction:
    """Return the function at an address.

    :raises SlotEmpty: there is none at this address, or it was removed during the call.
    :raises HardwareError: it cannot be read.
    """
    directory = function_directory(paths, address)
    try:
        return _read(directory, address)
    except HardwareError as e:
        if is_there(directory):
            raise
        raise SlotEmpty(f"there is no PCI function {address} on this host") from e


def physical_of(paths: HostPaths, name: str) -> str | None:
    """Return the name of the physical function of the sysfs entry *name*, or None without one.

    :raises HardwareError: the link cannot be read.
    """
    return link_name(_bus(paths) / name / "physfn")


def iommu_group_members(paths: HostPaths, address: PCIAddress) -> list[PCIAddress]:
    """Return the other functions of its IOMMU group in bus order; empty also without an IOMMU.

    They can only be passed to a guest together. Bridges stay with the host, but are listed too.

    :raises DeviceVanished: there is no function at this address.
    :raises HardwareError: the group cannot be read.
    """
    group = function_directory(paths, address) / "iommu_group"
    if pci_function(paths, address).iommu_group is None:
        return []
    # Members on other buses, such as platform devices, have no PCI address.
    names = [entry.name for entry in entries(group / "devices")]
    members = [PCIAddress.parse(name) for name in names if re.fullmatch(r"[0-9a-f]{4,8}(:[0-9a-f]{2}){2}\.[0-7]", name)]
    return sorted(member for member in members if member != address)


def vfio_nodes(paths: HostPaths, address: PCIAddress) -> list[Path]:
    """Return the nodes that give a program access to the function through VFIO, existing or not.

    These are the nodes of its group and, with IOMMUFD (Linux 6.6), the node of the device itself.
    """
    directory = function_directory(paths, address)
    group = link_name(directory / "iommu_group")
    of_group = [] if group is None else [paths.dev / "vfio" / name for name in (group, f"noiommu-{group}")]
    devices = directory / "vfio-dev"
    names = [entry.name for entry in entries(devices)] if is_there(devices) else []
    return [*of_group, *(paths.dev / "vfio/devices" / name for name in names)]


def function_directory(paths: HostPaths, address: PCIAddress) -> Path:
    """Return the sysfs directory of the function."""
    return _bus(paths) / str(address)


def _bus(paths: HostPaths) -> Path:
    return paths.sysfs / "bus/pci/devices"


def _read(directory: Path, address: PCIAddress) -> PCIFunction:
    vendor = _hex(directory / "vendor", 4)
    if vendor == _DEAD_VENDOR:
        raise HardwareError(f"{address} answers with nothing but ones: the device is dead or has no power")
    physfn = link_name(directory / "physfn")
    try:
        return PCIFunction(
            address=address,
            vendor_id=vendor,
            product_id=_hex(directory / "device", 4),
            class_code=_hex(directory / "class", 6),
            driver=link_name(directory / "driver"),
            iommu_group=link_name(directory / "iommu_group"),
            physfn=None if physfn is None else PCIAddress.parse(physfn),
            is_pf=int(read_if_there(directory / "sriov_totalvfs") or 0) > 0,
        )
    except ValueError as e:
        raise HardwareError(f"sysfs has an invalid value for {address}: {e}") from e


def _hex(path: Path, digits: int) -> str:
    text = read(path).lower()
    found = re.fullmatch(rf"0x([0-9a-f]{{{digits}}})", text)
    if found is None:
        raise HardwareError(f"{path} has the value {text[:40]!r}, not 0x and {digits} hexadecimal digits")
    return found[1]


def read_hints(paths: HostPaths) -> HostHints:
    """Return the hints of this host; a missing or unreadable one is None."""
    return HostHints(_unless_unreadable(machine_id, paths), _unless_unreadable(product_uuid, paths))


def machine_id(paths: HostPaths) -> str | None:
    """Return the machine id of the operating system, or None without one.

    :raises HardwareError: it cannot be read.
    """
    return hint(read_if_there(paths.etc / "machine-id") or "")


def product_uuid(paths: HostPaths) -> str | None:
    """Return the product UUID of the firmware, or None without one.

    :raises HardwareError: it cannot be read.
    """
    if paths.helper is not None:
        return paths.helper.product_uuid()
    return hint(read_if_there(paths.sysfs / "class/dmi/id/product_uuid") or "")


def _unless_unreadable(read: Callable[[HostPaths], str | None], paths: HostPaths) -> str | None:
    try:
        return read(paths)
    except HardwareError as error:
        LOG.info("A renamed host cannot be recognized by this identifier: %s", error)
        return None
