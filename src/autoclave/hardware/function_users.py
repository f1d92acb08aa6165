"""Who on this host uses a PCI function: its network interfaces, its disks, its console."""

import os
from collections.abc import Sequence
from pathlib import Path

from autoclave.hardware import attribute
from autoclave.hardware.host import HostPaths
from autoclave.hardware.nvme import controller_at
from autoclave.hardware.sysfs import PCIFunction, function_directory
from autoclave.hardware.usage import holders

_IFF_UP = 1
"""Bit of an interface's ``flags``: somebody has set it up, whether there is a link or not."""


def is_with_vfio(paths: HostPaths, function: PCIFunction) -> bool:
    """Whether a driver has the function that QEMU can use it by: vfio-pci or a variant of it for the device.

    Variants have names of their own, and some are part of the host's driver; since Linux 6.1 all show a ``vfio-dev``.

    :raises HardwareError: the kernel does not say.
    """
    if function.driver is None:
        return False
    shown = attribute.is_there(function_directory(paths, function.address) / "vfio-dev")
    return shown or "vfio" in function.driver


def host_uses(paths: HostPaths, function: PCIFunction) -> list[str]:
    """Every use of the function by this host that sysfs shows, one line of words each; empty: none.

    Interfaces that are up or belong to a bond or a bridge, NVMe disks as :func:`~autoclave.hardware.usage.holders`
    says, any other disks, since what is on them is not looked at, and the display of the console. That one the host
    uses without a driver as well, as long as the firmware's framebuffer or VGA's text is what the console is on.

    :raises DeviceVanished: it went away.
    :raises HardwareError: something that would tell cannot be read.
    """
    if is_with_vfio(paths, function):
        return []
    directory = function_directory(paths, function.address)
    if function.driver is None:
        return _console(directory) if _console_needs_no_driver(paths, directory) else []
    return [*_interfaces(paths, directory), *_disks(paths, function, directory), *_console(directory)]


def objection(
    function: PCIFunction, users: Sequence[str], *, with_vfio: bool, managed: bool, virtual_functions: int
) -> str | None:
    """What speaks against giving the function to a guest, in words for the operator; None: nothing.

    :param users: what :func:`host_uses` says, unless the operator allows the function nevertheless.
    :param with_vfio: what :func:`is_with_vfio` says.
    :param managed: libvirt is to take the function from the driver that it is bound to.
    :param virtual_functions: how many it has itself.
    """
    if users:
        return (
            f"this host itself uses it ({'; '.join(users)}); to offer it nevertheless, add allow_host_device = "
            f"{function.address} to [agent]"
        )
    if not managed and not with_vfio:
        return (
            f"it is bound to {function.driver or 'no driver'}, and with managed=false nobody but the operator binds it "
            "to vfio-pci or its VFIO variant driver"
        )
    if virtual_functions:
        return (
            f"it has {virtual_functions} virtual functions, which would vanish: write 0 into its sriov_numvfs, or let "
            "an entry match them"
        )
    return None


def _interfaces(paths: HostPaths, directory: Path) -> list[str]:
    lines = []
    for interface in _below(directory, paths.sysfs / "class/net"):
        master = attribute.link_name(interface / "master")
        if master is not None:
            lines.append(f"interface {interface.name} belongs to {master}")
        elif attribute.number(interface / "flags", 16) & _IFF_UP:
            lines.append(f"interface {interface.name} is up")
    return lines


def _disks(paths: HostPaths, function: PCIFunction, directory: Path) -> list[str]:
    if function.driver == "nvme":
        return holders(paths, controller_at(paths, function.address))
    disks = _below(directory, paths.sysfs / "class/block")
    names = ", ".join(disk.name for disk in disks if not attribute.is_there(disk / "partition"))
    return [f"its driver {function.driver} gives this host the disks {names}"] if names else []


def _console(directory: Path) -> list[str]:
    return (
        ["it is the display of this host's console"] if attribute.read_if_there(directory / "boot_vga") == "1" else []
    )


def _console_needs_no_driver(paths: HostPaths, directory: Path) -> bool:
    """Whether the console draws on what the firmware has set up. VFIO ends that when it takes the display."""
    own = _real(directory)
    for entry in _entries(paths.sysfs / "class/graphics"):
        device = _real(entry)
        # Linux 6.9 and later show the firmware's framebuffer below the display, earlier ones as a device of its own.
        if device.is_relative_to(own) or any("framebuffer" in part for part in device.parts):
            return True
    return any(
        "VGA" in (attribute.read_if_there(entry / "name") or "") and attribute.read_if_there(entry / "bind") == "1"
        for entry in _entries(paths.sysfs / "class/vtconsole")
    )


def _entries(of_class: Path) -> list[Path]:
    return list(attribute.entries(of_class)) if attribute.is_there(of_class) else []


def _below(directory: Path, of_class: Path) -> list[Path]:
    """The entries of a class that belong to the function. A virtual function's are not its physical function's."""
    own = _real(directory)
    return [entry for entry in _entries(of_class) if _real(entry).is_relative_to(own)]


def _real(path: Path) -> Path:
    """Where a link leads; a link that leads to itself, nowhere. Path.resolve() raises for such a one."""
    return Path(os.path.realpath(path))
