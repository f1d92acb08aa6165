"""Find what on this host uses a disk or a PCI function.

Users are mounts, swap, volumes, exports of the kernel, programs, network interfaces, and the console. A ZFS label is
only a hint: a tenant may have left it.
"""

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoclave.exceptions import DeviceInUse, HardwareError
from autoclave.hardware import sysfs
from autoclave.hardware.block import open_soon, programs_with_open
from autoclave.hardware.host import HostPaths
from autoclave.hardware.nvme import Controller, Namespace, block_directory, controller_at
from autoclave.hardware.sysfs import PCIFunction, function_directory, vfio_nodes

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """Hold one line of ``/proc/self/mountinfo`` (proc(5)).

    :param device: major:minor as the file system reports it; a virtual number for btrfs and similar file systems.
    :param source: the mounted source, as given to mount.
    """

    device: str
    source: str
    target: str
    fstype: str


def mounts(paths: HostPaths) -> list[Mount]:
    """Return the mounts in this process's mount namespace.

    A line that cannot be parsed marks its own device as mounted, and no other.

    :raises HardwareError: the kernel does not list them.
    """
    file = paths.proc / "self/mountinfo"
    found = []
    for line in _lines(file):
        left, separator, right = line.partition(" - ")
        fields, more = left.split(" "), right.split(" ")
        if separator and len(fields) >= 6 and len(more) >= 2:
            found.append(Mount(fields[2], _plain(more[1]), _plain(fields[4]), more[0]))
        elif len(fields) > 2:
            found.append(Mount(fields[2], "", f"an unknown place by the line {line[:120]!r} of {file}", "unknown"))
    return found


def swaps(paths: HostPaths) -> list[str]:
    """Return the devices and files used as swap.

    :raises HardwareError: the kernel does not list them.
    """
    return [_plain(line.split()[0]) for line in _lines(paths.proc / "swaps")[1:]]


def _lines(file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8", errors="backslashreplace")
    except OSError as e:
        raise HardwareError(f"cannot determine what this host uses: {file} cannot be read: {e.strerror}") from e
    return [line for line in text.split("\n") if line.strip()]


def _plain(text: str) -> str:
    """Decode the octal escapes of blanks, line ends and backslashes."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)


_MAGIC = 0x00BAB10C
"""The magic number of an uberblock ("ZFS On-Disk Specification", 1.3)."""
_ARRAY = range(128 * 1024, 256 * 1024, 1024)
"""The offsets at which uberblocks of the first label may begin."""


def is_on(paths: HostPaths, node: Path) -> bool:
    """Return whether *node* has a ZFS label; also False if it is unreadable, since the result is only a hint."""
    if paths.helper is not None:
        return paths.helper.has_zfs_label(node)
    try:
        with open(node, "rb") as disk:
            label = disk.read(_ARRAY.stop)
    except OSError:
        return False
    return any(
        label[offset : offset + 8] in (_MAGIC.to_bytes(8, "little"), _MAGIC.to_bytes(8, "big")) for offset in _ARRAY
    )


_FILEIO = re.compile(r"\bFile: (/\S+)")
"""Matches the backing path in the ``info`` of a LIO backstore of type fileio."""


@dataclass(frozen=True)
class Export:
    """Describe a file or device that the kernel exports.

    :param path: its backing path, as configured.
    :param use: its use, as words that follow the name of the device.
    """

    path: str
    use: str


def exports(paths: HostPaths) -> list[Export]:
    """Return loop devices, NVMe and SCSI targets, and USB gadgets.

    The kernel serves them without an exclusive open of the device behind them.

    :raises HardwareError: the kernel does not show the backing path of one of them.
    """
    return [export for kind in _KINDS for export in kind(paths)]


def _loops(paths: HostPaths) -> Iterator[Export]:
    for block in sysfs.entries(paths.sysfs / "class/block"):
        if block.name.startswith("loop") and (file := _path(block / "loop/backing_file")):
            yield Export(file, f"is behind the loop device {block.name}")


def _nvme_namespaces(paths: HostPaths) -> Iterator[Export]:
    for subsystem in _listed(paths.sysfs / "kernel/config/nvmet/subsystems"):
        for namespace in _listed(subsystem / "namespaces"):
            if _path(namespace / "enable") == "1" and (device := _path(namespace / "device_path")):
                yield Export(device, f"is exported to other hosts as {subsystem.name} (nvmet)")


def _nvme_controllers(paths: HostPaths) -> Iterator[Export]:
    """Yield the targets in passthru mode, which take a whole controller by its character device."""
    for subsystem in _listed(paths.sysfs / "kernel/config/nvmet/subsystems"):
        passthru = subsystem / "passthru"
        if _path(passthru / "enable") == "1" and (device := _path(passthru / "device_path")):
            yield Export(device, f"is exported to other hosts as {subsystem.name} (nvmet, passthru)")


def _scsi_backstores(paths: HostPaths) -> Iterator[Export]:
    for adapter in _listed(paths.sysfs / "kernel/config/target/core"):
        for backstore in _listed(adapter):
            use = f"is exported by LIO as {adapter.name}/{backstore.name}"
            # Read the configured path and the opened one: fileio opens without O_EXCL.
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
    """Return the entries of a directory; empty if it does not exist or was just removed."""
    if not os.path.isdir(directory):
        return []
    try:
        return sysfs.entries(directory)
    except HardwareError:
        if not sysfs.is_there(directory):
            return []
        raise


def _path(file: Path) -> str | None:
    """Return the text of an attribute, or None if it does not exist or cannot refer to a device node.

    :raises HardwareError: it exists and cannot be read.
    """
    try:
        return sysfs.read_if_there(file)
    except HardwareError as e:
        # The export ended during the read, or has a path longer than that of any device node.
        if not sysfs.is_there(file) or (isinstance(e.__cause__, OSError) and e.__cause__.errno == errno.ENAMETOOLONG):
            return None
        raise


_SHOWN_MOUNTS = 3
_MAPPINGS = {"LVM": "LVM volume", "CRYPT": "encrypted volume", "mpath": "multipath device"}
"""The kind by the prefix of ``dm/uuid`` up to the first dash."""


def holders(paths: HostPaths, controller: Controller) -> list[str]:
    """Return all uses of the controller's disks, one line each; empty if they are unused.

    It lists mounts, swap, volumes and arrays with their users, file systems over several disks, and exports of the
    kernel. Exclusive opens also reveal ZFS and mounts in other mount namespaces. Programs that may write are found
    through the nodes of the disk, the namespace (``/dev/ng0n1``), the controller and VFIO. Each disk is briefly opened
    exclusively, so never call this for a disk that a worker erases.

    :raises DeviceVanished: a disk was removed.
    :raises HardwareError: one of the sources cannot be read.
    """
    uses = HostUses.of(paths)
    lines: list[str] = []
    ways_in = [controller.path]
    for namespace in controller.namespaces:
        directory = block_directory(paths, controller, namespace)
        nodes = [paths.dev / part.name for part in (directory, *partitions(directory))]
        # A mounted partition also refuses the exclusive open: report it once.
        found = list(uses.of_disk(directory, namespace.block_name)) or _exclusively_open(paths, namespace, nodes)
        lines += found
        ways_in += [namespace.generic, *([] if found else nodes)]
    lines += [f"{controller.name} {use}" for use in uses.of_node(controller.path)]
    return [*lines, *_programs(paths, ways_in, vfio_nodes(paths, controller.address))]


def _exclusively_open(paths: HostPaths, namespace: Namespace, nodes: Sequence[Path]) -> list[str]:
    try:
        open_soon(paths, namespace.path, writable=False).close()
    except DeviceInUse as e:
        labelled = [node.name for node in nodes if is_on(paths, node)]
        hint = f"; a ZFS label is on {', '.join(labelled)}: is the pool imported?" if labelled else ""
        return [f"{holder}{hint}" for holder in e.holders]
    return []


def _programs(paths: HostPaths, ways_in: Sequence[Path], by_vfio: Sequence[Path]) -> list[str]:
    """Return the programs that may write through one of the nodes. Through VFIO, read access is enough."""
    return [
        f"{file.node} is open {'by' if file.node in by_vfio else 'for writing by'} {file}"
        for file in programs_with_open(paths, [*ways_in, *by_vfio])
        if file.writes or file.node in by_vfio
    ]


@dataclass(frozen=True)
class HostUses:
    """Hold one snapshot of all mounts, swap and exports of the host."""

    paths: HostPaths
    mounts: list[Mount]
    swaps: list[str]
    btrfs: list[tuple[str, str]]
    """The name of a block device, and the file system to which it belongs."""
    exports: list[Export]

    @classmethod
    def of(cls, paths: HostPaths) -> "HostUses":
        return cls(paths, mounts(paths), swaps(paths), list(_btrfs_members(paths)), exports(paths))

    def of_disk(self, directory: Path, label: str) -> Iterator[str]:
        """Yield the uses of a block device: its own, those of its partitions, and those of volumes on them.

        :param directory: the directory of the device in sysfs.
        :param label: the operator's name for it.
        """
        for part in (directory, *partitions(directory)):
            words = label if part == directory else _partition_label(part, label)
            yield from (f"{words} {use}" for use in self.direct(part))
            for holder in sysfs.entries(part / "holders"):
                built = f"{_kind(holder)} on {words}"
                yield from list(self.of_disk(holder, built)) or [built]

    def direct(self, block: Path) -> Iterator[str]:
        """Yield the uses of a block device itself, without those of volumes on it."""
        device = sysfs.read(block / "dev")
        targets = [m for m in self.mounts if m.device == device or self._names(m.source, block)]
        if targets:
            shown = ", ".join(dict.fromkeys(mount.target for mount in targets[:_SHOWN_MOUNTS]))
            more = f" and {len(targets) - _SHOWN_MOUNTS} more places" if len(targets) > _SHOWN_MOUNTS else ""
            yield f"is mounted on {shown}{more} ({targets[0].fstype})"
        if any(self._names(swap, block) for swap in self.swaps):
            yield "is used as swap"
        for filesystem in [] if targets else [uuid for name, uuid in self.btrfs if name == block.name]:
            yield f"is a member of the mounted btrfs file system {filesystem}"
        yield from dict.fromkeys(export.use for export in self.exports if self._names(export.path, block))
        if sysfs.is_there(block / "bcache"):
            yield "belongs to bcache"

    def _names(self, text: str, block: Path) -> bool:
        """Return whether a path of the host, or the target of that link, is the device's node."""
        if not text.startswith("/dev/"):
            return False
        if text.startswith("/dev/mapper/") and sysfs.is_there(block / "dm"):
            return text.removeprefix("/dev/mapper/") == sysfs.read(block / "dm/name")
        return self._is(text, self.paths.dev / block.name)

    def of_node(self, node: Path) -> list[str]:
        """Return the exports of a character device."""
        return [e.use for e in self.exports if e.path.startswith("/dev/") and self._is(e.path, node)]

    def _is(self, text: str, node: Path) -> bool:
        # A link that leads to itself never refers to the node, and does not affect the others.
        return os.path.realpath(self.paths.dev / text.removeprefix("/dev/")) == os.path.realpath(node)


def partitions(directory: Path) -> list[Path]:
    """Return the directories of a block device's partitions."""
    return [child for child in sysfs.entries(directory) if sysfs.is_there(child / "partition")]


def _partition_label(partition: Path, disk: str) -> str:
    """Return the label of a partition. Its own name identifies its disk, but not its array."""
    return partition.name if partition.name.startswith(disk) else f"{partition.name} of {disk}"


def _kind(block: Path) -> str:
    if sysfs.is_there(block / "dm"):
        kind = sysfs.read(block / "dm/uuid").partition("-")[0]
        return f"{_MAPPINGS.get(kind, 'device-mapper device')} {sysfs.read(block / 'dm/name')}"
    if sysfs.is_there(block / "md"):
        return f"RAID array {block.name} ({sysfs.read(block / 'md/level')})"
    return block.name


def _btrfs_members(paths: HostPaths) -> Iterator[tuple[str, str]]:
    """Yield the members of each btrfs: one over several disks is mounted by the name of only one of them."""
    root = paths.sysfs / "fs/btrfs"
    for filesystem in sysfs.entries(root) if sysfs.is_there(root) else []:
        if sysfs.is_there(filesystem / "devices"):
            yield from ((device.name, filesystem.name) for device in sysfs.entries(filesystem / "devices"))


_IFF_UP = 1
"""The bit of an interface's ``flags`` that is set if it is up, with or without a link."""


def is_with_vfio(paths: HostPaths, function: PCIFunction) -> bool:
    """Return whether a driver for VFIO has the function: vfio-pci or a variant driver of the device.

    Variant drivers have names of their own, and some are part of the host's driver. Since Linux 6.1, all of them show a
    ``vfio-dev``.

    :raises HardwareError: the kernel does not show it.
    """
    if function.driver is None:
        return False
    shown = sysfs.is_there(function_directory(paths, function.address) / "vfio-dev")
    return shown or "vfio" in function.driver


def host_uses(paths: HostPaths, function: PCIFunction) -> list[str]:
    """Return all uses of the function by this host that sysfs shows, one line each; empty if unused.

    These are interfaces that are up or belong to a bond or a bridge, and the uses of NVMe disks from
    :func:`~autoclave.hardware.usage.holders`. All other disks count as used, since their content is not examined. The
    display of the console counts even without a driver, while the console is on the firmware's framebuffer or VGA's
    text.

    :raises DeviceVanished: it was removed.
    :raises HardwareError: one of the sources cannot be read.
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
    """Return why the function must not be passed to a guest, in an operator's terms, or None.

    :param users: the result of :func:`host_uses`; empty if the operator allows the function nevertheless.
    :param with_vfio: the result of :func:`is_with_vfio`.
    :param managed: libvirt should detach the function from its driver.
    :param virtual_functions: the number of its virtual functions.
    """
    if users:
        return (
            f"this host uses it ({'; '.join(users)}); to offer it anyway, add allow_host_device = "
            f"{function.address} to [agent]"
        )
    if not managed and not with_vfio:
        return (
            f"it is bound to {function.driver or 'no driver'}, and with managed=false only the operator binds it "
            "to vfio-pci or its VFIO variant driver"
        )
    if virtual_functions:
        return (
            f"it has {virtual_functions} virtual functions, which would disappear: write 0 into its sriov_numvfs, or "
            "let an entry match them"
        )
    return None


def _interfaces(paths: HostPaths, directory: Path) -> list[str]:
    lines = []
    for interface in _below(directory, paths.sysfs / "class/net"):
        master = sysfs.link_name(interface / "master")
        if master is not None:
            lines.append(f"interface {interface.name} belongs to {master}")
        elif sysfs.number(interface / "flags", 16) & _IFF_UP:
            lines.append(f"interface {interface.name} is up")
    return lines


def _disks(paths: HostPaths, function: PCIFunction, directory: Path) -> list[str]:
    if function.driver == "nvme":
        return holders(paths, controller_at(paths, function.address))
    disks = _below(directory, paths.sysfs / "class/block")
    names = ", ".join(disk.name for disk in disks if not sysfs.is_there(disk / "partition"))
    return [f"its driver {function.driver} provides this host's disks {names}"] if names else []


def _console(directory: Path) -> list[str]:
    return ["it is the display of this host's console"] if sysfs.read_if_there(directory / "boot_vga") == "1" else []


def _console_needs_no_driver(paths: HostPaths, directory: Path) -> bool:
    """Return whether the console uses what the firmware has set up. VFIO ends that when it takes the display."""
    own = _real(directory)
    for entry in _entries(paths.sysfs / "class/graphics"):
        device = _real(entry)
        # Linux 6.9 and later show the firmware's framebuffer below the display, earlier ones as a separate device.
        if device.is_relative_to(own) or any("framebuffer" in part for part in device.parts):
            return True
    return any(
        "VGA" in (sysfs.read_if_there(entry / "name") or "") and sysfs.read_if_there(entry / "bind") == "1"
        for entry in _entries(paths.sysfs / "class/vtconsole")
    )


def _entries(of_class: Path) -> list[Path]:
    return list(sysfs.entries(of_class)) if sysfs.is_there(of_class) else []


def _below(directory: Path, of_class: Path) -> list[Path]:
    """Return the entries of a class that belong to the function, without those of its virtual functions."""
    own = _real(directory)
    return [entry for entry in _entries(of_class) if _real(entry).is_relative_to(own)]


def _real(path: Path) -> Path:
    """Resolve a link; a link to itself resolves to itself, whereas Path.resolve() raises an error."""
    return Path(os.path.realpath(path))
