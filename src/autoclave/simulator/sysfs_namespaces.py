"""The block devices of a simulated controller: their directories in sysfs and their nodes in ``/dev``.

A controller of a subsystem that can have several shows the kernel's native multipath layout: the
block device nvmeSnY belongs to the subsystem and takes its number, and each controller has a hidden
path nvmeScCnY to it.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autoclave.simulator import files
from autoclave.simulator.drive_state import DriveState, Namespace
from autoclave.simulator.sysfs_dirs import SysfsDirs

_BLOCK_EXT_MAJOR = 259
_NVME_GENERIC_MAJOR = 237
_SECTOR = 512
_FIRST_PARTITION_SECTOR = 2048


@dataclass(frozen=True)
class ControllerPlace:
    """Where a controller's namespaces appear.

    :param controller: the controller's directory.
    :param instance: the N of nvmeN.
    :param cntlid: the controller's id.
    :param head: the number in the names of its block devices.
    :param subsystem: the subsystem's directory, for the multipath layout; else None.
    :param other_controllers: directories of the controllers that share the subsystem.
    :param mounted: the first partition of each namespace is this host's.
    """

    controller: Path
    instance: int
    cntlid: int
    head: int
    subsystem: Path | None
    other_controllers: tuple[Path, ...]
    mounted: bool

    @property
    def disks(self) -> Path:
        """The directory that holds the block devices."""
        return self.subsystem or self.controller


class NamespaceNodes:
    """Adds and removes block devices.

    :param sys: the simulated ``/sys``.
    :param dev: the simulated ``/dev``.
    """

    def __init__(self, sys: Path, dev: Path, dirs: SysfsDirs) -> None:
        self._sys = sys
        self._dev = dev
        self._dirs = dirs

    def sync(self, place: ControllerPlace, state: DriveState, media: Mapping[int, Path]) -> None:
        """Make the controller's block devices those of the namespaces attached to it.

        :param media: the file with the bytes of each namespace.
        """
        wanted = {nsid: ns for nsid, ns in state.namespaces.items() if place.cntlid in ns.attached}
        there = _by_nsid(place.disks, f"nvme{place.head}n*")
        for nsid, disk in there.items():
            if nsid not in wanted or not _same_file(self._dev / disk.name, media[nsid]):
                self._remove(place, nsid)
        for nsid, namespace in wanted.items():
            self._add(place, nsid, namespace, media[nsid])

    def disks(self, place: ControllerPlace) -> dict[str, int]:
        """The namespace ids of the block devices, by their names."""
        return {disk.name: nsid for nsid, disk in _by_nsid(place.disks, f"nvme{place.head}n*").items()}

    def remove_all(self, place: ControllerPlace) -> None:
        """Remove what the controller has, and the block devices that no other controller reaches."""
        for nsid in _by_nsid(place.controller, "nvme*n*"):
            self._remove(place, nsid)

    def _add(self, place: ControllerPlace, nsid: int, namespace: Namespace, media: Path) -> None:
        there = _by_nsid(place.disks, f"nvme{place.head}n*")
        disk = there.get(nsid)
        if disk is None:
            # The kernel numbers namespaces in the order they come, whatever their ids.
            free = next(y for y in range(1, len(there) + 2) if not (place.disks / f"nvme{place.head}n{y}").exists())
            disk = place.disks / f"nvme{place.head}n{free}"
            self._add_disk(place, disk, free, nsid, namespace, media)
        else:
            self._dirs.rewrite(disk, _sizes(namespace))
        if place.subsystem is not None:
            number = disk.name.removeprefix(f"nvme{place.head}n")
            path = place.controller / f"nvme{place.head}c{place.instance}n{number}"
            if not path.exists():
                self._dirs.add(path, _block_files(nsid, namespace, hidden=True))
                files.link(self._sys / "block" / path.name, path)
            else:
                self._dirs.rewrite(path, _sizes(namespace))

    def _add_disk(
        self, place: ControllerPlace, disk: Path, number: int, nsid: int, namespace: Namespace, media: Path
    ) -> None:
        minor = place.head * 1024 + number * 4
        generic = _generic(disk)
        os.link(media, self._dev / disk.name)
        (self._dev / generic.name).touch()
        contents = _block_files(nsid, namespace, hidden=False) | {"dev": f"{_BLOCK_EXT_MAJOR}:{minor}"}
        partition = f"{disk.name}p1"
        if place.mounted:
            (self._dev / partition).touch()
            contents |= {
                f"{partition}/partition": "1",
                f"{partition}/start": str(_FIRST_PARTITION_SECTOR),
                f"{partition}/size": str(namespace.size // _SECTOR - _FIRST_PARTITION_SECTOR),
                f"{partition}/dev": f"{_BLOCK_EXT_MAJOR}:{minor + 1}",
                f"{partition}/holders/": "",
            }
        self._dirs.add(disk, contents)
        files.link(disk / "device", place.disks)
        self._dirs.add(generic, {"dev": f"{_NVME_GENERIC_MAJOR}:{minor}"})
        files.link(self._sys / "block" / disk.name, disk)
        files.link(self._sys / "class/block" / disk.name, disk)
        if place.mounted:
            files.link(self._sys / "class/block" / partition, disk / partition)

    def _remove(self, place: ControllerPlace, nsid: int) -> None:
        if place.subsystem is not None:
            path = _by_nsid(place.controller, "nvme*n*").get(nsid)
            if path is not None:
                (self._sys / "block" / path.name).unlink(missing_ok=True)
                self._dirs.remove(path)
            if any(nsid in _by_nsid(other, "nvme*n*") for other in place.other_controllers):
                return
        disk = _by_nsid(place.disks, f"nvme{place.head}n*").get(nsid)
        if disk is None:
            return
        for name in (disk.name, f"{disk.name}p1"):
            (self._sys / "block" / name).unlink(missing_ok=True)
            (self._sys / "class/block" / name).unlink(missing_ok=True)
            (self._dev / name).unlink(missing_ok=True)
        generic = _generic(disk)
        (self._dev / generic.name).unlink(missing_ok=True)
        self._dirs.remove(generic)
        self._dirs.remove(disk)


def _generic(disk: Path) -> Path:
    return disk.with_name(disk.name.replace("nvme", "ng"))


def _by_nsid(directory: Path, pattern: str) -> dict[int, Path]:
    return {int((child / "nsid").read_text()): child for child in directory.glob(pattern) if (child / "nsid").exists()}


def _same_file(node: Path, media: Path) -> bool:
    try:
        return node.samefile(media)
    except FileNotFoundError:
        return False


def _block_files(nsid: int, namespace: Namespace, *, hidden: bool) -> dict[str, str]:
    return {
        **_sizes(namespace),
        "nsid": str(nsid),
        "hidden": str(int(hidden)),
        "removable": "0",
        "ro": "0",
        "holders/": "",
        "slaves/": "",
    }


def _sizes(namespace: Namespace) -> dict[str, str]:
    """What a format changes."""
    return {
        "size": str(namespace.shown_size // _SECTOR),
        "queue/logical_block_size": str(namespace.block_size),
        "queue/physical_block_size": str(namespace.block_size),
    }
