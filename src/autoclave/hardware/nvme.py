"""Find an NVMe controller and its namespaces in sysfs, starting from the PCI address."""

import re
from dataclasses import dataclass
from pathlib import Path

from autoclave.exceptions import DeviceVanished, DriverMismatch, HardwareError
from autoclave.hardware import sysfs
from autoclave.hardware.host import HostPaths
from autoclave.hardware.sysfs import function_directory, pci_function
from autoclave.rules.pci_address import PCIAddress

CONTROLLER_NODE = r"/dev/nvme[0-9]+"
"""A regular expression for the nodes of controllers."""
DISK_NODE = r"/dev/nvme[0-9]+n[0-9]+"
"""A regular expression for the nodes of namespaces' block devices."""

_DRIVER = "nvme"
_CONTROLLER = re.compile(r"nvme\d+")
_DISK = re.compile(r"nvme\d+n\d+")
_HIDDEN_PATH = re.compile(r"nvme\d+c\d+n\d+")
_SECTOR = 512
"""The unit of a block device's ``size`` in sysfs, whatever its logical block size."""
_DEAD_STATES = frozenset({"dead", "deleting", "deleting (no IO)"})


@dataclass(frozen=True)
class Namespace:
    """Describe an attached namespace with a block device.

    :param nsid: the namespace id.
    :param block_name: the kernel's name of the block device, such as ``nvme3n1``. With native multipath, its first
        number is the subsystem's, not the controller's.
    :param path: the device node.
    :param size_bytes: its capacity.
    """

    nsid: int
    block_name: str
    path: Path
    size_bytes: int

    @property
    def generic(self) -> Path:
        """Return the node of its character device (Linux 5.13 and later), which bypasses the block device."""
        return self.path.with_name(self.block_name.replace("nvme", "ng"))


@dataclass(frozen=True)
class Controller:
    """Describe an NVMe controller bound to the kernel's nvme driver.

    :param name: the kernel's name, such as ``nvme0``.
    :param path: the device node of the controller.
    :param serial: as the drive reports it, without padding.
    :param model: as the drive reports it, without padding.
    :param state: the kernel's value: ``live``, ``resetting``, ``connecting``, ``deleting``, ``dead``.
    :param subsystem: the kernel's name of the subsystem, such as ``nvme-subsys2``.
    :param namespaces: in order of nsid.
    :param other_paths: other paths to the same media. These are controllers of the same subsystem that are or may
        become live, and the controller's own virtual functions. Their driver does not matter. The kernel does not show
        another physical function with another driver.
    """

    address: PCIAddress
    name: str
    path: Path
    serial: str
    model: str
    state: str
    subsystem: str | None
    namespaces: tuple[Namespace, ...]
    other_paths: tuple[str, ...]

    @property
    def size_bytes(self) -> int:
        """Return the capacity of all its namespaces."""
        return sum(namespace.size_bytes for namespace in self.namespaces)


def controller_at(paths: HostPaths, address: PCIAddress) -> Controller:
    """Return the controller at a PCI address, with its namespaces.

    :raises DeviceVanished: there is no function at this address, or it was removed during the call.
    :raises DriverMismatch: the function is bound to another driver than nvme, or to none.
    :raises HardwareError: one of its attributes cannot be read.
    """
    function = pci_function(paths, address)
    if function.driver != _DRIVER:
        raise DriverMismatch(
            f"{address} is bound to {function.driver or 'no driver'}, not to {_DRIVER}", driver=function.driver
        )
    directory = function_directory(paths, address)
    try:
        name = _controller_name(directory)
        try:
            return _read(paths, address, directory / "nvme" / name)
        except HardwareError as e:
            if sysfs.is_there(directory / "nvme" / name):
                raise
            raise DeviceVanished(f"the controller {name} at {address} went away while it was being read") from e
    except HardwareError as e:
        if isinstance(e, DeviceVanished) or sysfs.is_there(directory):
            raise
        raise DeviceVanished(f"the PCI function {address} went away while it was being read") from e


def block_directory(paths: HostPaths, controller: Controller, namespace: Namespace) -> Path:
    """Return the sysfs directory of a namespace's block device, with its partitions.

    :raises DeviceVanished: it is no longer there.
    """
    own = function_directory(paths, controller.address) / "nvme" / controller.name / namespace.block_name
    if sysfs.is_there(own):
        return own
    if controller.subsystem is not None:
        head = _subsystems(paths) / controller.subsystem / namespace.block_name
        if sysfs.is_there(head):
            return head
    raise DeviceVanished(f"the block device {namespace.block_name} of {controller.name} is no longer there")


def _controller_name(function: Path) -> str:
    names = []
    if sysfs.is_there(function / "nvme"):
        names = [entry.name for entry in sysfs.entries(function / "nvme") if _CONTROLLER.fullmatch(entry.name)]
    if len(names) != 1:
        raise HardwareError(
            f"the nvme driver has {function.name}, but shows {', '.join(names) or 'no controller'} for it: "
            "its probe failed or has not finished; see the kernel's log"
        )
    return names[0]


def _read(paths: HostPaths, address: PCIAddress, directory: Path) -> Controller:
    nqn = sysfs.read(directory / "subsysnqn")
    subsystem = _subsystem_of(paths, directory)
    return Controller(
        address=address,
        name=directory.name,
        path=paths.dev / directory.name,
        serial=sysfs.drive_string(directory / "serial"),
        model=sysfs.drive_string(directory / "model"),
        state=sysfs.read(directory / "state"),
        subsystem=None if subsystem is None else subsystem.name,
        namespaces=_namespaces(paths, directory, subsystem),
        other_paths=(*_other_paths(paths, directory.name, subsystem, nqn), *_virtual_functions(paths, address)),
    )


def _subsystems(paths: HostPaths) -> Path:
    return paths.sysfs / "class/nvme-subsystem"


def _subsystem_of(paths: HostPaths, controller: Path) -> Path | None:
    """Return the subsystem that links to the controller, or None if this kernel does not show subsystems."""
    if not sysfs.is_there(_subsystems(paths)):
        return None
    found = [s for s in sysfs.entries(_subsystems(paths)) if sysfs.is_there(s / controller.name)]
    if len(found) != 1:
        raise HardwareError(
            f"{controller.name} belongs to {len(found)} subsystems in {_subsystems(paths)} instead of one"
        )
    return found[0]


def _namespaces(paths: HostPaths, controller: Path, subsystem: Path | None) -> tuple[Namespace, ...]:
    found = []
    for child in sysfs.entries(controller):
        if _DISK.fullmatch(child.name):
            disk = child
        elif _HIDDEN_PATH.fullmatch(child.name):
            disk = _head(child, subsystem)
        else:
            continue
        size = sysfs.number(disk / "size") * _SECTOR
        found.append(Namespace(sysfs.number(disk / "nsid"), disk.name, paths.dev / disk.name, size))
    return tuple(sorted(found, key=lambda namespace: namespace.nsid))


def _head(path: Path, subsystem: Path | None) -> Path:
    """Return the multipath block device to which a hidden path belongs.

    Match by nsid, and by wwid if the kernel shows it. Private namespaces of two controllers of one subsystem may have
    the same nsid.
    """
    nsid = sysfs.number(path / "nsid")
    wwid = sysfs.read_if_there(path / "wwid")
    disks = [] if subsystem is None else [d for d in sysfs.entries(subsystem) if _DISK.fullmatch(d.name)]
    heads = [
        disk for disk in disks if sysfs.number(disk / "nsid") == nsid and sysfs.read_if_there(disk / "wwid") == wwid
    ]
    if len(heads) != 1:
        raise HardwareError(
            f"{path.name} (nsid {nsid}) is a path to a multipath block device, but "
            f"{subsystem.name if subsystem else 'an unknown subsystem'} shows {len(heads)} such devices instead of one"
        )
    return heads[0]


def _other_paths(paths: HostPaths, name: str, subsystem: Path | None, nqn: str) -> list[str]:
    """Return the names of other controllers that reach the same media.

    An old kernel shows no subsystems. There, controllers with the same NQN belong together.
    """
    where = paths.sysfs / "class/nvme" if subsystem is None else subsystem
    others = []
    for entry in sysfs.entries(where):
        if entry.name == name or not _CONTROLLER.fullmatch(entry.name):
            continue
        try:
            same = subsystem is not None or sysfs.read(entry / "subsysnqn") == nqn
            if same and sysfs.read(entry / "state") not in _DEAD_STATES:
                others.append(entry.name)
        except HardwareError:
            if sysfs.is_there(entry):
                raise
    return others


def _virtual_functions(paths: HostPaths, address: PCIAddress) -> list[str]:
    """Return the enabled virtual functions, which are controllers themselves: guests that have one share the media."""
    links = [e for e in sysfs.entries(function_directory(paths, address)) if e.name.startswith("virtfn")]
    return [f"the virtual function {sysfs.link_name(link)}" for link in links]
