"""The block port on a regular file: what stands for a disk where there is no block device."""

import errno
import fcntl
import os
import stat
from pathlib import Path

from autoclave.hardware.block import BlockDevice, claim
from autoclave.hardware.host import HostPaths
from autoclave.simulator import media

_SECTOR = 512


class FileDisk(BlockDevice):
    """A :class:`Disk` that is a file. It is held exclusively by flock(2); holes in it stay holes."""

    def _zero_out(self, offset: int, length: int) -> None:
        if fcntl.fcntl(self._fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if offset % _SECTOR or length % _SECTOR:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._write_zeroes(offset, length)

    def _write_zeroes(self, offset: int, length: int) -> None:
        media.zero(self._fd, offset, length)


def hold(paths: HostPaths, path: Path, *, writable: bool) -> FileDisk:
    """Of :class:`HoldDisk`."""
    return FileDisk(path, *claim_file(paths, path, writable=writable))


def claim_file(paths: HostPaths, path: Path, *, writable: bool) -> tuple[int, int]:
    """As :func:`autoclave.hardware.block.claim`, of a file."""
    return claim(paths, path, stat.S_ISREG, _claimed, writable=writable)


def _claimed(path: Path, access: int) -> tuple[int, int]:
    fd = os.open(path, access)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd, os.fstat(fd).st_size
    except OSError:
        os.close(fd)
        raise
