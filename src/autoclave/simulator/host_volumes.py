"""Simulate volume groups and RAID arrays that a host activates from the data on a returned drive."""

import hashlib
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from autoclave.simulator import files
from autoclave.simulator.faults import Active, FaultKind
from autoclave.simulator.sysfs import SysfsDirs

LVM_LABEL = (512, b"LABELONE")
"""The offset of the label of a physical volume, and its first bytes."""
MD_SUPERBLOCK = (4096, b"\xfc\x4e\x2b\xa9")
"""The offset of the superblock of a RAID array, version 1.2, and its first bytes."""

_LVM_ID = 32
_LAST_MD = 127
_SIZE = "2048"


@dataclass(frozen=True)
class Volume:
    """Describe a logical volume, or an array.

    :param directory: its block device in sysfs.
    :param group: the UUID of its volume group, without dashes; None for an array.
    :param disks: names of its underlying block devices.
    """

    directory: Path
    group: str | None
    disks: tuple[str, ...]


class HostVolumes:
    """Manage block devices on top of drives of the simulated host in *root*.

    They simulate udev rules and services that examine every new disk. They disappear with their drive.
    """

    def __init__(self, root: Path) -> None:
        self._sys = root / "sys"
        self._dev = root / "dev"
        self._dirs = SysfsDirs(root / "state" / "staging")

    def appear(self, disk: str, media: Path, faults: Active) -> None:
        """Activate the volumes on the block device *disk*, if the faults require it.

        :param media: the file with its bytes.
        """
        if FaultKind.HOST_ACTIVATES in faults and _is_on(media, *LVM_LABEL):
            identity = hashlib.sha256(str(media).encode()).hexdigest()
            number = next(n for n in count() if not (self._virtual / f"dm-{n}").exists())
            self._add(f"dm-{number}", f"253:{number}", disk, {
                "dm/name": "vg0-data", "dm/uuid": f"LVM-{identity}", "dm/suspended": "0",
            })  # fmt: skip
        if FaultKind.HOST_ASSEMBLES in faults and _is_on(media, *MD_SUPERBLOCK):
            number = next(n for n in range(_LAST_MD, 0, -1) if not (self._virtual / f"md{n}").exists())
            self._add(f"md{number}", f"9:{number}", disk, {"md/level": "raid1", "md/metadata_version": "1.2"})

    def all(self) -> list[Volume]:
        """Return all volumes."""
        return [_volume(directory) for directory in sorted(self._virtual.glob("*")) if (directory / "slaves").is_dir()]

    def remove(self, volume: Volume) -> None:
        """Deactivate a volume."""
        name = volume.directory.name
        for disk in volume.disks:
            (self._sys / "class/block" / disk / "holders" / name).unlink(missing_ok=True)
        for entry in (self._sys / "block" / name, self._sys / "class/block" / name, self._dev / name):
            entry.unlink(missing_ok=True)
        self._dirs.remove(volume.directory)

    def drop_stranded(self) -> None:
        """Remove the volumes whose disk is gone."""
        for volume in self.all():
            if not all((self._sys / "class/block" / disk).exists() for disk in volume.disks):
                self.remove(volume)

    def _add(self, name: str, number: str, disk: str, attributes: dict[str, str]) -> None:
        self._virtual.mkdir(parents=True, exist_ok=True)
        below = (self._sys / "class/block" / disk).resolve()
        directory = self._virtual / name
        self._dirs.add(directory, {"dev": number, "size": _SIZE, "holders/": "", "slaves/": "", **attributes})
        files.link(directory / "slaves" / disk, below)
        (self._dev / name).touch()
        files.link(self._sys / "block" / name, directory)
        files.link(self._sys / "class/block" / name, directory)
        files.link(below / "holders" / name, directory)

    @property
    def _virtual(self) -> Path:
        return self._sys / "devices/virtual/block"


def _volume(directory: Path) -> Volume:
    disks = tuple(sorted(path.name for path in (directory / "slaves").iterdir()))
    uuid = directory / "dm/uuid"
    group = uuid.read_text().strip().removeprefix("LVM-")[:_LVM_ID] if uuid.exists() else None
    return Volume(directory, group, disks)


def _is_on(media: Path, offset: int, magic: bytes) -> bool:
    with media.open("rb") as opened:
        opened.seek(offset)
        return opened.read(len(magic)) == magic
