"""The block device of a simulated drive: its file, and the faults of the drive behind it."""

from pathlib import Path

from autoclave.hardware.host import HostPaths
from autoclave.simulator.file_disk import FileDisk, claim_file
from autoclave.simulator.slots import DriveSlots
from autoclave.simulator.zeroing import Zeroing

_SECTOR = 512
"""The unit of sizes in sysfs."""


class SimulatedDisk(FileDisk):
    """A disk of *host*; zeroing it takes the time and has the outcome that the faults say."""

    def __init__(self, host: DriveSlots, path: Path, fd: int, size: int) -> None:
        super().__init__(path, fd, size)
        self._zeroing = Zeroing(host, str(path))

    def write_marker(self, offset: int, seed: bytes) -> None:
        self._zeroing.check_writable()
        super().write_marker(offset, seed)

    def _write_zeroes(self, offset: int, length: int) -> None:
        for _ in self._zeroing.run(offset, offset + length):
            pass


def hold(host: DriveSlots, paths: HostPaths, path: Path, *, writable: bool) -> SimulatedDisk:
    """Hold a disk of *host* exclusively."""
    descriptor, size = claim_file(paths, path, writable=writable)
    return SimulatedDisk(host, path, descriptor, min(size, _shown_size(host, path)))


def _shown_size(host: DriveSlots, path: Path) -> int:
    """What the kernel shows of the namespace; it may be less than the media hold, and is 0 for some formats."""
    try:
        return int((host.sysfs / "class/block" / path.name / "size").read_text()) * _SECTOR
    except FileNotFoundError:  # it vanished since it was opened, as every access to it will find
        return 0
