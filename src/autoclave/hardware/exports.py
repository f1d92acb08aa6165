"""What the kernel of this host serves to others from files and devices, without an exclusive open of them."""

import errno
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from autoclave.exceptions import HardwareError
from autoclave.hardware import attribute
from autoclave.hardware.host import HostPaths

_FILEIO = re.compile(r"\bFile: (/\S+)")
"""How the ``info`` of a LIO backstore of the kind fileio names what is behind it."""


@dataclass(frozen=True)
class Export:
    """Something that the kernel serves.

    :param path: what is behind it, as it was configured.
    :param use: what it is used for, in words that follow the name of the device.
    """

    path: str
    use: str


def exports(paths: HostPaths) -> list[Export]:
    """Loop devices, NVMe and SCSI targets, and USB gadgets.

    :raises HardwareError: the kernel does not say what one of them serves.
    """
    return [export for kind in _KINDS for export in kind(paths)]


def _loops(paths: HostPaths) -> Iterator[Export]:
    for block in attribute.entries(paths.sysfs / "class/block"):
        if block.name.startswith("loop") and (file := _path(block / "loop/backing_file")):
            yield Export(file, f"is behind the loop device {block.name}")


def _nvme_namespaces(paths: HostPaths) -> Iterator[Export]:
    for subsystem in _listed(paths.sysfs / "kernel/config/nvmet/subsystems"):
        for namespace in _listed(subsystem / "namespaces"):
            if _path(namespace / "enable") == "1" and (device := _path(namespace / "device_path")):
                yield Export(device, f"is exported to other hosts as {subsystem.name} (nvmet)")


def _nvme_controllers(paths: HostPaths) -> Iterator[Export]:
    """A target in passthru mode takes a whole controller, by its character device."""
    for subsystem in _listed(paths.sysfs / "kernel/config/nvmet/subsystems"):
        passthru = subsystem / "passthru"
        if _path(passthru / "enable") == "1" and (device := _path(passthru / "device_path")):
            yield Export(device, f"is exported to other hosts as {subsystem.name} (nvmet, passthru)")


def _scsi_backstores(paths: HostPaths) -> Iterator[Export]:
    for adapter in _listed(paths.sysfs / "kernel/config/target/core"):
        for backstore in _listed(adapter):
            use = f"is exported by LIO as {adapter.name}/{backstore.name}"
            # What was told to it, and what it has opened: fileio does so without O_EXCL.
            if device := _path(backstore / "udev_path"):
                yield Export(device, use)
            if opened := _FILEIO.search(_path(backstore / "info") or ""):
                yield Export(opened[1], use)


def _usb_gadgets(paths: HostPaths) -> Iterator[Export]:
    for gadget in _listed(paths.sysfs / "kernel/config/usb_gadget"):
        for function in _listed(gadget / "functions"):
            for unit in _listed(function):
                if unit.name.startswith("lun.") and (file := _path(unit / "file")):
                    yield Export(file, f"is exported by the USB gadget {gadget.name} ({function.name})")


_KINDS: tuple[Callable[[HostPaths], Iterator[Export]], ...] = (
    _loops,
    _nvme_namespaces,
    _nvme_controllers,
    _scsi_backstores,
    _usb_gadgets,
)


def _listed(directory: Path) -> list[Path]:
    """The entries of a directory; empty where the kernel does not have it, or not any longer."""
    if not os.path.isdir(directory):
        return []
    try:
        return attribute.entries(directory)
    except HardwareError:
        if not attribute.is_there(directory):
            return []
        raise


def _path(file: Path) -> str | None:
    """The text of an attribute; None where there is no such attribute, or where it names no device node.

    :raises HardwareError: it is there and cannot be read.
    """
    try:
        return attribute.read_if_there(file)
    except HardwareError as e:
        # The export has ended while it was read, or is of a path longer than any of a device node.
        if not attribute.is_there(file) or (
            isinstance(e.__cause__, OSError) and e.__cause__.errno == errno.ENAMETOOLONG
        ):
            return None
        raise
