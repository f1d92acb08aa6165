"""The block device of a simulated drive: its file, and the faults of the drive behind it."""

from pathlib import Path

from autoclave.hardware.host import HostPaths
from autoclave.simulator.file_disk import FileDisk, claim_file
from autoclave.simulator.slots import DriveSlots
from autoclave.simulator.zeroing import Zeroing


class SimulatedDisk(FileDisk):
    """A disk of *host*; zeroing it takes the time and has the outcome that the faults say."""

    def __init__(self, host: DriveSlots, path: Path, fd: int, size: int) -> None:
        super().__init__(path, fd, size)
        self._zeroing = Zeroing(host, str(path))

    def _write_zeroes(self, offset: int, length: int) -> None:
        for _ in self._zeroing.run(offset, offset + length):
            pass


def hold(host: DriveSlots, paths: HostPaths, path: Path, *, writable: bool) -> SimulatedDisk:
    """Hold a disk of *host* exclusively."""
    return SimulatedDisk(host, path, *claim_file(paths, path, writable=writable))
