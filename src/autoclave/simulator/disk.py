"""Simulate block devices by regular files, with the faults of the drive behind them."""

import errno
import fcntl
import os
import stat
from pathlib import Path

from autoclave.hardware.block import BlockDevice, claim
from autoclave.hardware.host import HostPaths
from autoclave.simulator import drive_spec
from autoclave.simulator.slots import DriveSlots
from autoclave.simulator.zeroing import Zeroing

_SECTOR = 512
"""The unit of sizes in sysfs, and the alignment of zeroing, in bytes."""


class FileDisk(BlockDevice):
    """Implement :class:`Disk` on a file. flock(2) makes the access exclusive; holes in the file stay holes."""

    def _zero_out(self, offset: int, length: int) -> None:
        if fcntl.fcntl(self._fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if offset % _SECTOR or length % _SECTOR:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._write_zeroes(offset, length)

    def _write_zeroes(self, offset: int, length: int) -> None:
        drive_spec.zero(self._fd, offset, length)


def hold_file(paths: HostPaths, path: Path, *, writable: bool) -> FileDisk:
    """Implement :class:`HoldDisk`."""
    return FileDisk(path, *claim_file(paths, path, writable=writable))


def claim_file(paths: HostPaths, path: Path, *, writable: bool) -> tuple[int, int]:
    """Claim a file as :func:`autoclave.hardware.block.claim` claims a block device."""
    return claim(paths, path, stat.S_ISREG, _claimed, writable=writable)


def _claimed(path: Path, access: int) -> tuple[int, int]:
    fd = os.open(path, access)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd, os.fstat(fd).st_size
    except OSError:
        os.close(fd)
        raise


class SimulatedDisk(FileDisk):
    """Access a disk of *host*; the faults determine the duration and the result of zeroing."""

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
    """Return the size that the kernel shows: less than that of the media, or 0, for some formats."""
    try:
        return int((host.sysfs / "class/block" / path.name / "size").read_text()) * _SECTOR
    except FileNotFoundError:  # it vanished after it was opened, which every access will find
        return 0
