"""Block devices: size, exclusive open, reading around the page cache."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from autoclave.hardware.deadline import Deadline
from autoclave.hardware.host import HostPaths
from autoclave.hardware.progress import ProgressSink


class BlockDevice:
    """A disk held open.

    :attr path: its device node.
    :attr size: bytes.
    """

    path: Path
    size: int

    def read(self, offset: int, length: int) -> bytes:
        """*length* bytes from *offset* on, from the medium and not from the page cache.

        :raises DeviceVanished: the disk is gone.
        :raises EraseFailed: it cannot be read there.
        """
        raise NotImplementedError


@contextmanager
def open_block(paths: HostPaths, path: Path) -> Iterator[BlockDevice]:
    """Hold the disk at *path* open, exclusively where it is a real block device.

    :raises DeviceVanished: there is no such disk.
    :raises DeviceInUse: another program or the kernel has it open exclusively.
    :raises HardwareError: it cannot be opened.
    """
    raise NotImplementedError
    yield


def first_nonzero(
    device: BlockDevice, *, mode: Literal["sample", "full"], deadline: Deadline, progress: ProgressSink
) -> int | None:
    """The offset of a byte that is not zero, or None if all that was looked at is zero.

    :raises EraseTimeout: the deadline passed first.
    :raises DeviceVanished: the disk went away.
    :raises EraseFailed: it cannot be read.
    """
    raise NotImplementedError
