"""An NVMe controller and its namespaces, found by following sysfs from the PCI address."""

from dataclasses import dataclass
from pathlib import Path

from autoclave.hardware.host import HostPaths
from autoclave.rules.pci_address import PCIAddress


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


@dataclass(frozen=True)
class Controller:
    """An NVMe controller bound to the kernel's nvme driver.

    :param name: the kernel's name, such as ``nvme0``.
    :param path: the device node of the controller.
    :param serial: as the drive says it, without padding; model and firmware likewise.
    :param state: the kernel's word: ``live``, ``resetting``, ``connecting``, ``deleting``, ``dead``.
    :param cntlid: the controller id, or None where the kernel does not say.
    :param subsystem: the kernel's name of the subsystem, such as ``nvme-subsys2``.
    :param namespaces: in order of nsid.
    :param other_paths: other live controllers of the same subsystem: second ways to the same media.
    """

    address: PCIAddress
    name: str
    path: Path
    serial: str
    model: str
    firmware: str
    state: str
    cntlid: int | None
    subsysnqn: str
    subsystem: str | None
    namespaces: tuple[Namespace, ...]
    other_paths: tuple[str, ...]


def controller_at(paths: HostPaths, address: PCIAddress) -> Controller:
    """The controller at a PCI address, with its namespaces.

    :raises DeviceVanished: there is no function at this address, or it went away while being read.
    :raises DriverMismatch: the function is bound to another driver than nvme, or to none.
    :raises HardwareError: something about it cannot be read.
    """
    raise NotImplementedError
