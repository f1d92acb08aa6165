"""An NVMe controller and its namespaces, found by following sysfs from the PCI address."""

import re
from dataclasses import dataclass
from pathlib import Path

from autoclave.exceptions import DeviceVanished, DriverMismatch, HardwareError
from autoclave.hardware import sysfs
from autoclave.hardware.host import HostPaths
from autoclave.hardware.sysfs import function_directory, pci_function
from autoclave.rules.pci_address import PCIAddress

CONTROLLER_NODE = r"/dev/nvme[0-9]+"
"""The nodes of controllers, as a regular expression."""
DISK_NODE = r"/dev/nvme[0-9]+n[0-9]+"
"""The nodes of namespaces' block devices, as a regular expression."""

_DRIVER = "nvme"
_CONTROLLER = re.compile(r"nvme\d+")
_DISK = re.compile(r"nvme\d+n\d+")
_HIDDEN_PATH = re.compile(r"nvme\d+c\d+n\d+")
_SECTOR = 512
"""The unit of a block device's ``size`` in sysfs, whatever its logical blocks are."""
_DEAD_STATES = frozenset({"dead", "deleting", "deleting (no IO)"})


@dataclass(frozen=True)
class Namespace:
    """An attached namespace with a block device.

    :param nsid: the namespace id.
    :param block_name: the kernel's name of the block device, such as ``nvme3n1``. With native
        multipath its first number is the subsystem's, not the controller's.
    :param path: the device node.
    :param size_bytes: its capacity.
    """

    nsid: int
    block_name: str
    path: Path
    size_bytes: int

    @property
    def generic(self) -> Path:
        """The node of its character device (Linux 5.13 and later), which takes commands past the block device."""
        return self.path.with_name(self.block_name.replace("nvme", "ng"))


@dataclass(frozen=True)
class Controller:
    """An NVMe controller bound to the kernel's nvme driver.

    :param name: the kernel's name, such as ``nvme0``.
    :param path: the device node of the controller.
    :param serial: as the drive says it, without padding; the model likewise.
    :param state: the kernel's word: ``live``, ``resetting``, ``connecting``, ``deleting``, ``dead``.
    :param subsystem: the kernel's name of the subsystem, such as ``nvme-subsys2``.
    :param namespaces: in order of nsid.
    :param other_paths: second ways to the same media: other controllers of the same subsystem that are live or may
        become so again, and the controller's own virtual functions, whoever has them. Another physical
        function that another driver has is not seen by the kernel, nor here.
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
        """The capacity of all its namespaces."""
        return sum(namespace.size_bytes for namespace in self.namespaces)


def controller_at(paths: HostPaths, address: PCIAddress) -> Controller:
    """The controller at a PCI address, with its namespaces.

    :raises DeviceVanished: there is no function at this address, or it went away while being read.
    :raises DriverMismatch: the function is bound to another driver than nvme, or to none.
    :raises HardwareError: something about it cannot be read.
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
    """Where sysfs keeps the block device of a namespace, with its partitions.

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
            "its probe failed or is not over; see the kernel's log"
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
    """The subsystem that links to the controller; None: this kernel does not show subsystems."""
    if not sysfs.is_there(_subsystems(paths)):
        return None
    found = [s for s in sysfs.entries(_subsystems(paths)) if sysfs.is_there(s / controller.name)]
    if len(found) != 1:
        raise HardwareError(
            f"{controller.name} belongs to {len(found)} subsystems in {_subsystems(paths)}, where it must be one"
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
    """The multipath block device to which a hidden path belongs.

    Matched by nsid, and by wwid where the kernel shows it: private namespaces of two controllers of
    one subsystem may have the same nsid.
    """
    nsid = sysfs.number(path / "nsid")
    wwid = sysfs.read_if_there(path / "wwid")
    disks = [] if subsystem is None else [d for d in sysfs.entries(subsystem) if _DISK.fullmatch(d.name)]
    heads = [
        disk for disk in disks if sysfs.number(disk / "nsid") == nsid and sysfs.read_if_there(disk / "wwid") == wwid
    ]
    if len(heads) != 1:
        raise HardwareError(
            f"{path.name} (nsid {nsid}) is a path to a multipath block device, of which "
            f"{subsystem.name if subsystem else 'an unknown subsystem'} shows {len(heads)}, where it must be one"
        )
    return heads[0]


def _other_paths(paths: HostPaths, name: str, subsystem: Path | None, nqn: str) -> list[str]:
    """Controllers that reach the same media.

    An old kernel shows no subsystems; the NQN that all controllers of one have is then what tells.
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
    """The enabled virtual functions, each a controller of its own: guests that have one share the media."""
    links = [e for e in sysfs.entries(function_directory(paths, address)) if e.name.startswith("virtfn")]
    return [f"the virtual function {sysfs.link_name(link)}" for link in links]
