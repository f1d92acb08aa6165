"""Who on this host uses the disks of a controller."""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autoclave.exceptions import DeviceInUse
from autoclave.hardware import attribute, zfs_label
from autoclave.hardware.block import open_block
from autoclave.hardware.host import HostPaths
from autoclave.hardware.mounts import Mount, mounts, swaps
from autoclave.hardware.nvme import Controller, Namespace, block_directory
from autoclave.hardware.open_files import programs_with_open

_SHOWN_MOUNTS = 3
_LOOKS = (0.1, 0.4)
"""Seconds to wait for an exclusive open by somebody else that may be as short a look as ours."""
_MAPPINGS = {"LVM": "LVM volume", "CRYPT": "encrypted volume", "mpath": "multipath device"}
"""Beginnings of ``dm/uuid``, up to the first dash."""


def holders(paths: HostPaths, controller: Controller) -> list[str]:
    """Everything that uses the controller's disks, one line of words each; empty: nobody does.

    What is mounted or swapped to, volumes and arrays and what is on them, file systems over several
    disks, loop devices, what an NVMe target exports, exclusive opens (which is how ZFS and mounts of
    other mount namespaces show), and programs that may write. Each disk is opened exclusively for a
    moment, so this is not for a disk that one of our own workers is erasing.

    :raises DeviceVanished: a disk went away.
    :raises HardwareError: something that would tell cannot be read.
    """
    uses = _Uses.of(paths)
    lines = []
    for namespace in controller.namespaces:
        directory = block_directory(paths, controller, namespace)
        found = list(uses.of_disk(directory, namespace.block_name))
        # A mounted partition also refuses the exclusive open: said once is enough.
        lines += found or _open_by(paths, namespace, directory)
    return lines


def _open_by(paths: HostPaths, namespace: Namespace, directory: Path) -> list[str]:
    nodes = [paths.dev / part.name for part in (directory, *_partitions(directory))]
    try:
        _open_exclusively(paths, namespace)
    except DeviceInUse as e:
        labelled = [node.name for node in nodes if zfs_label.is_on(paths, node)]
        hint = f"; a ZFS label is on {', '.join(labelled)}: is the pool imported?" if labelled else ""
        return [f"{holder}{hint}" for holder in e.holders]
    return [f"{file.node} is open for writing by {file}" for file in programs_with_open(paths, nodes) if file.writes]


def _open_exclusively(paths: HostPaths, namespace: Namespace) -> None:
    for patience in (*_LOOKS, None):
        try:
            with open_block(paths, namespace.path, writable=False):
                return
        except DeviceInUse:
            if patience is None:
                raise
            time.sleep(patience)


@dataclass(frozen=True)
class _Uses:
    """What the host says of all its disks, read once."""

    paths: HostPaths
    mounts: list[Mount]
    swaps: list[str]
    btrfs: list[tuple[str, str]]
    """Name of a block device, and the file system it is a member of."""
    loops: list[tuple[str, str]]
    """Name of a loop device, and the file behind it."""
    exports: list[tuple[str, str]]
    """NQN of a subsystem that the kernel's NVMe target serves, and what is behind one of its namespaces."""

    @classmethod
    def of(cls, paths: HostPaths) -> "_Uses":
        return cls(
            paths, mounts(paths), swaps(paths), list(_btrfs_members(paths)), list(_loops(paths)), list(_exports(paths))
        )

    def of_disk(self, directory: Path, label: str) -> Iterator[str]:
        """Who uses a block device: itself, its partitions, and whatever is built on them.

        :param directory: of the device in sysfs.
        :param label: what the operator knows it as.
        """
        for part in (directory, *_partitions(directory)):
            words = label if part == directory else _partition_label(part, label)
            yield from (f"{words} {use}" for use in self._direct(part))
            for holder in attribute.entries(part / "holders"):
                built = f"{_kind(holder)} on {words}"
                yield from list(self.of_disk(holder, built)) or [built]

    def _direct(self, block: Path) -> Iterator[str]:
        device = attribute.read(block / "dev")
        targets = [m for m in self.mounts if m.device == device or self._names(m.source, block)]
        if targets:
            shown = ", ".join(dict.fromkeys(mount.target for mount in targets[:_SHOWN_MOUNTS]))
            more = f" and {len(targets) - _SHOWN_MOUNTS} more places" if len(targets) > _SHOWN_MOUNTS else ""
            yield f"is mounted on {shown}{more} ({targets[0].fstype})"
        if any(self._names(swap, block) for swap in self.swaps):
            yield "is used as swap"
        for filesystem in [] if targets else [uuid for name, uuid in self.btrfs if name == block.name]:
            yield f"is a member of the mounted btrfs file system {filesystem}"
        for loop in [loop for loop, file in self.loops if self._names(file, block)]:
            yield f"is behind the loop device {loop}"
        for nqn in [nqn for nqn, device in self.exports if self._names(device, block)]:
            yield f"is exported to other hosts as {nqn} (nvmet)"
        if attribute.is_there(block / "bcache"):
            yield "belongs to bcache"

    def _names(self, text: str, block: Path) -> bool:
        """Whether a path of the host, or what it links to, is the device's node."""
        if not text.startswith("/dev/"):
            return False
        if text.startswith("/dev/mapper/") and attribute.is_there(block / "dm"):
            return text.removeprefix("/dev/mapper/") == attribute.read(block / "dm/name")
        return (self.paths.dev / text.removeprefix("/dev/")).resolve() == (self.paths.dev / block.name).resolve()


def _partitions(directory: Path) -> list[Path]:
    return [child for child in attribute.entries(directory) if attribute.is_there(child / "partition")]


def _partition_label(partition: Path, disk: str) -> str:
    """What to call it: its name says of which disk it is, but not of which array."""
    return partition.name if partition.name.startswith(disk) else f"{partition.name} of {disk}"


def _kind(block: Path) -> str:
    if attribute.is_there(block / "dm"):
        kind = attribute.read(block / "dm/uuid").partition("-")[0]
        return f"{_MAPPINGS.get(kind, 'device-mapper device')} {attribute.read(block / 'dm/name')}"
    if attribute.is_there(block / "md"):
        return f"RAID array {block.name} ({attribute.read(block / 'md/level')})"
    return block.name


def _btrfs_members(paths: HostPaths) -> Iterator[tuple[str, str]]:
    """A btrfs over several disks is mounted by the name of only one of them."""
    root = paths.sysfs / "fs/btrfs"
    for filesystem in attribute.entries(root) if attribute.is_there(root) else []:
        if attribute.is_there(filesystem / "devices"):
            yield from ((device.name, filesystem.name) for device in attribute.entries(filesystem / "devices"))


def _loops(paths: HostPaths) -> Iterator[tuple[str, str]]:
    """A loop device does not open what is behind it exclusively."""
    for block in attribute.entries(paths.sysfs / "class/block"):
        if block.name.startswith("loop") and attribute.is_there(block / "loop/backing_file"):
            yield block.name, attribute.read(block / "loop/backing_file")


def _exports(paths: HostPaths) -> Iterator[tuple[str, str]]:
    """An NVMe target does not open what it exports exclusively."""
    root = paths.sysfs / "kernel/config/nvmet/subsystems"
    for subsystem in attribute.entries(root) if attribute.is_there(root) else []:
        for namespace in attribute.entries(subsystem / "namespaces"):
            if attribute.read(namespace / "enable") == "1":
                yield subsystem.name, attribute.read(namespace / "device_path")
