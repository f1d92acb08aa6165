"""Who on this host uses the disks of a controller."""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoclave.exceptions import DeviceInUse
from autoclave.hardware import attribute, zfs_label
from autoclave.hardware.block import open_soon
from autoclave.hardware.exports import Export, exports
from autoclave.hardware.host import HostPaths
from autoclave.hardware.mounts import Mount, mounts, swaps
from autoclave.hardware.nvme import Controller, Namespace, block_directory
from autoclave.hardware.open_files import programs_with_open
from autoclave.hardware.sysfs import vfio_nodes

_SHOWN_MOUNTS = 3
_MAPPINGS = {"LVM": "LVM volume", "CRYPT": "encrypted volume", "mpath": "multipath device"}
"""Beginnings of ``dm/uuid``, up to the first dash."""


def holders(paths: HostPaths, controller: Controller) -> list[str]:
    """Everything that uses the controller's disks, one line of words each; empty: nothing does.

    What is mounted or swapped to, volumes and arrays and what is on them, file systems over several
    disks, what the kernel serves to others, exclusive opens (which is how ZFS and mounts of
    other mount namespaces show), and programs that may write, by whichever node: of the disk, of the namespace
    (``/dev/ng0n1``), of the controller, or of VFIO. Each disk is opened exclusively for a
    moment, so this is not for a disk that one of our own workers is erasing.

    :raises DeviceVanished: a disk went away.
    :raises HardwareError: something that would tell cannot be read.
    """
    uses = HostUses.of(paths)
    lines: list[str] = []
    ways_in = [controller.path]
    for namespace in controller.namespaces:
        directory = block_directory(paths, controller, namespace)
        nodes = [paths.dev / part.name for part in (directory, *partitions(directory))]
        # A mounted partition also refuses the exclusive open: said once is enough.
        found = list(uses.of_disk(directory, namespace.block_name)) or _exclusively_open(paths, namespace, nodes)
        lines += found
        ways_in += [namespace.generic, *([] if found else nodes)]
    lines += [f"{controller.name} {use}" for use in uses.of_node(controller.path)]
    return [*lines, *_programs(paths, ways_in, vfio_nodes(paths, controller.address))]


def _exclusively_open(paths: HostPaths, namespace: Namespace, nodes: Sequence[Path]) -> list[str]:
    try:
        open_soon(paths, namespace.path, writable=False).close()
    except DeviceInUse as e:
        labelled = [node.name for node in nodes if zfs_label.is_on(paths, node)]
        hint = f"; a ZFS label is on {', '.join(labelled)}: is the pool imported?" if labelled else ""
        return [f"{holder}{hint}" for holder in e.holders]
    return []


def _programs(paths: HostPaths, ways_in: Sequence[Path], by_vfio: Sequence[Path]) -> list[str]:
    """Programs that may write by one of the nodes. To reach the drive through VFIO, reading is enough."""
    return [
        f"{file.node} is open {'by' if file.node in by_vfio else 'for writing by'} {file}"
        for file in programs_with_open(paths, [*ways_in, *by_vfio])
        if file.writes or file.node in by_vfio
    ]


@dataclass(frozen=True)
class HostUses:
    """What the host says of all its disks, read once."""

    paths: HostPaths
    mounts: list[Mount]
    swaps: list[str]
    btrfs: list[tuple[str, str]]
    """Name of a block device, and the file system it is a member of."""
    exports: list[Export]

    @classmethod
    def of(cls, paths: HostPaths) -> "HostUses":
        return cls(paths, mounts(paths), swaps(paths), list(_btrfs_members(paths)), exports(paths))

    def of_disk(self, directory: Path, label: str) -> Iterator[str]:
        """Who uses a block device: itself, its partitions, and whatever is built on them.

        :param directory: of the device in sysfs.
        :param label: what the operator knows it as.
        """
        for part in (directory, *partitions(directory)):
            words = label if part == directory else _partition_label(part, label)
            yield from (f"{words} {use}" for use in self.direct(part))
            for holder in attribute.entries(part / "holders"):
                built = f"{_kind(holder)} on {words}"
                yield from list(self.of_disk(holder, built)) or [built]

    def direct(self, block: Path) -> Iterator[str]:
        """Return what a block device itself is used for, without what is built on it."""
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
        yield from dict.fromkeys(export.use for export in self.exports if self._names(export.path, block))
        if attribute.is_there(block / "bcache"):
            yield "belongs to bcache"

    def _names(self, text: str, block: Path) -> bool:
        """Whether a path of the host, or what it links to, is the device's node."""
        if not text.startswith("/dev/"):
            return False
        if text.startswith("/dev/mapper/") and attribute.is_there(block / "dm"):
            return text.removeprefix("/dev/mapper/") == attribute.read(block / "dm/name")
        return self._is(text, self.paths.dev / block.name)

    def of_node(self, node: Path) -> list[str]:
        """What the kernel serves a character device as."""
        return [e.use for e in self.exports if e.path.startswith("/dev/") and self._is(e.path, node)]

    def _is(self, text: str, node: Path) -> bool:
        # A link that leads to itself is none to the node, and says nothing of others.
        return os.path.realpath(self.paths.dev / text.removeprefix("/dev/")) == os.path.realpath(node)


def partitions(directory: Path) -> list[Path]:
    """Return the directories of a block device's partitions."""
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
