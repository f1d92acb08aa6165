"""Block devices: size, exclusive open, reading around the page cache, and whether zero is all there is."""

import ctypes
import errno
import fcntl
import mmap
import os
import random
import stat
import struct
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

from autoclave.exceptions import DeviceInUse, DeviceVanished, EraseFailed, EraseTimeout, HardwareError
from autoclave.hardware.deadline import Deadline
from autoclave.hardware.host import HostPaths
from autoclave.hardware.open_files import programs_with_open
from autoclave.hardware.progress import Progress, ProgressSink

CHUNK = 4 * 1024 * 1024
"""Bytes of the largest single read."""
_STRIDE = 16 * CHUNK
"""Bytes between two looks at the clock: so many that what it costs to ask for them does not show."""
_EDGE = 1024 * 1024
"""Bytes at each end: partition tables, superblocks, and the backups of both are there."""
_SPREAD = 256
"""Samples at even distances, and as many again where nobody can foresee."""
_NEIGHBOURS = 16 * 1024 * 1024
"""Bytes of a smaller drive for each of them: what reading back costs stays small beside the erasing."""
_SAMPLE = 64 * 1024
_ALIGNMENT = 4096
"""What direct I/O accepts on every drive: a multiple of any logical block size."""
_BLKGETSIZE64 = 0x80081272
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENXIO})


class Disk(Protocol):
    """A disk held open exclusively. Made by :func:`open_block`.

    What it holds is not handed out: who may ask whether a tenant's data is gone need not see it.
    """

    @property
    def path(self) -> Path:
        """Its device node."""
        ...

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    def nonzero_in(self, offset: int, length: int) -> int | None:
        """The offset of the first byte in the range that is not zero on the medium; None: all are.

        :raises ValueError: there is no such range.
        :raises DeviceVanished: the disk is gone.
        :raises EraseFailed: it cannot be read there.
        """
        ...

    def flush(self) -> None:
        """Have the drive write its volatile cache: zeroes that a power cut takes back are none.

        :raises EraseFailed: it does not.
        """
        ...

    def close(self) -> None:
        """Let go of the disk."""
        ...


class BlockDevice:
    """A disk that this process itself holds open; see :class:`Disk`."""

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self.path = path
        self.size = size
        self._fd = fd
        self._pieces = _Piece(), _Piece()

    def read(self, offset: int, length: int) -> bytes:
        """*length* bytes from *offset* on, from the medium and not from the page cache.

        :raises ValueError: there is no such range.
        :raises DeviceVanished: the disk is gone.
        :raises EraseFailed: it cannot be read there.
        """
        piece, _ = self._pieces
        parts = []
        for start, stop in self._ranges(offset, length):
            self._read_into(piece, start, stop)
            parts.append(piece.memory[max(offset - start, 0) : stop - start])
        return b"".join(parts)

    def nonzero_in(self, offset: int, length: int) -> int | None:
        """See :class:`Disk`."""
        ranges = self._ranges(offset, length)
        half = len(ranges) // 2
        if not half:
            return self._first_nonzero(self._pieces[0], ranges, offset)
        # Two halves at once: one is read while the other is looked at.
        with ThreadPoolExecutor(2) as both:
            halves = both.map(self._first_nonzero, self._pieces, (ranges[:half], ranges[half:]), (offset, offset))
            return next((found for found in halves if found is not None), None)

    def _first_nonzero(self, piece: "_Piece", ranges: Sequence[tuple[int, int]], offset: int) -> int | None:
        for start, stop in ranges:
            self._read_into(piece, start, stop)
            skipped = max(offset - start, 0)
            found = piece.first_nonzero(skipped, stop - start)
            if found is not None:
                return start + found
        return None

    def flush(self) -> None:
        """See :class:`Disk`."""
        try:
            os.fsync(self._fd)
        except OSError as e:
            raise EraseFailed(f"the zeroes on {self.path} could not be flushed to the medium: {e.strerror}") from e

    def _ranges(self, offset: int, length: int) -> list[tuple[int, int]]:
        """The range in pieces that direct I/O takes: each begins aligned, and so perhaps before the range."""
        if not 0 <= offset <= offset + length <= self.size:
            raise ValueError(f"{self.path} has {self.size} bytes, not {length} from {offset} on")
        self._check_still_there()
        end = offset + length
        return [(start, min(end, start + CHUNK)) for start in range(offset - offset % _ALIGNMENT, end, CHUNK)]

    def _read_into(self, piece: "_Piece", start: int, stop: int) -> None:
        """One direct read from the aligned offset *start* to at least *stop*."""
        whole = -(-(stop - start) // _ALIGNMENT) * _ALIGNMENT
        try:
            # Both views are released here: the traceback of a failed read would keep them, and so the memory.
            with memoryview(piece.memory) as buffer, buffer[:whole] as target:
                got = os.preadv(self._fd, [target], start)
        except OSError as e:
            self._check_still_there()
            if e.errno in _GONE:
                raise DeviceVanished(f"{self.path} went away while offset {start} was being read") from e
            raise EraseFailed(f"{self.path} cannot be read at offset {start}: {e.strerror}") from e
        if got < stop - start:
            raise EraseFailed(f"{self.path} ends at offset {start + got}, though it said that it has {self.size} bytes")

    def _check_still_there(self) -> None:
        """A pulled drive may go on answering with EIO, an unlinked file even with data."""
        try:
            there, ours = os.stat(self.path), os.fstat(self._fd)
        except OSError as e:
            raise DeviceVanished(f"{self.path} is no longer there: {e.strerror}") from e
        same = there.st_rdev == ours.st_rdev if stat.S_ISBLK(ours.st_mode) else os.path.samestat(there, ours)
        if not same:
            raise DeviceVanished(f"{self.path} is another device now than the one that was opened")

    def close(self) -> None:
        """Let go of the disk."""
        os.close(self._fd)
        for piece in self._pieces:
            piece.close()


class _Piece:
    """Memory that one read fills: aligned to pages, as direct I/O demands."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, CHUNK)
        self._pinned = ctypes.c_char.from_buffer(self.memory)
        self._address = ctypes.addressof(self._pinned)

    def first_nonzero(self, begin: int, end: int) -> int | None:
        """The first position from *begin* to *end* that is not zero."""
        # The C library's comparison copies nothing and lets other threads run meanwhile, which no operator of Python
        # does; it is searched only when there is something to find.
        if _memcmp(self._address + begin, _ZEROS._address, end - begin) == 0:
            return None
        return next(n for n in range(begin, end) if self.memory[n])

    def close(self) -> None:
        """Give the memory back."""
        del self._pinned
        self.memory.close()


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
_memcmp.restype = ctypes.c_int
_ZEROS = _Piece()
"""Never written to."""


@contextmanager
def open_block(paths: HostPaths, path: Path, *, writable: bool = True) -> Iterator[Disk]:
    """Hold the disk at *path* open exclusively: no mount, swap, volume or second exclusive open gets it.

    Tools that open it exclusively themselves, as blkdiscard does, are refused meanwhile. A regular file,
    which is a simulated host's disk, is locked with flock(2) instead.

    :param writable: also make sure that it can be written. A pure look does without, because udev
        takes the close of a writable descriptor for a change and probes the disk again.
    :raises DeviceVanished: there is no such disk.
    :raises DeviceInUse: another program or the kernel has it open exclusively.
    :raises HardwareError: it is read-only, or cannot be opened for another reason.
    """
    disk: Disk
    if paths.helper is not None:
        disk = paths.helper.open_block(path, writable=writable)
    else:
        disk = hold(paths, path, writable=writable)
    try:
        yield disk
    finally:
        disk.close()


def hold(paths: HostPaths, path: Path, *, writable: bool) -> BlockDevice:
    """As :func:`open_block`, by this process, until it is closed."""
    return BlockDevice(path, *_open(paths, path, os.O_RDWR if writable else os.O_RDONLY))


def _open(paths: HostPaths, path: Path, access: int) -> tuple[int, int]:
    """A descriptor that holds the disk, and the disk's size."""
    try:
        mode = os.stat(path).st_mode
        if stat.S_ISBLK(mode):
            fd = os.open(path, access | os.O_EXCL | os.O_DIRECT | os.O_CLOEXEC)
        elif stat.S_ISREG(mode):
            fd = os.open(path, access | os.O_CLOEXEC)
        else:
            raise HardwareError(f"{path} is no block device")
    except OSError as e:
        raise _refusal(paths, path, e) from e
    try:
        if stat.S_ISBLK(mode):
            return fd, struct.unpack("=Q", fcntl.ioctl(fd, _BLKGETSIZE64, b"\0" * 8))[0]
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return fd, os.fstat(fd).st_size
    except OSError as e:
        os.close(fd)
        raise _refusal(paths, path, e) from e


def _refusal(paths: HostPaths, path: Path, error: OSError) -> HardwareError:
    if error.errno in _GONE:
        return DeviceVanished(f"there is no disk at {path}: {error.strerror}")
    if error.errno in (errno.EBUSY, errno.EWOULDBLOCK):
        programs = ", ".join(map(str, programs_with_open(paths, [path])))
        who = programs or "the kernel itself or a program that cannot be seen (a mount elsewhere, ZFS, LVM, RAID)"
        line = f"{path} is open exclusively by {who}"
        return DeviceInUse(line, [line])
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return HardwareError(f"{path} is read-only or may not be opened: {error.strerror}")
    return HardwareError(f"{path} cannot be opened: {error.strerror}")


def first_nonzero(
    device: Disk, *, mode: Literal["sample", "full"], deadline: Deadline, progress: ProgressSink
) -> int | None:
    """The offset of a byte that is not zero, or None if all that was looked at is zero.

    :param mode: ``full`` looks at every byte and returns the first offset; ``sample`` looks at both ends,
        at even distances between them, and at random.
    :raises EraseTimeout: the deadline passed first.
    :raises DeviceVanished: the disk went away.
    :raises EraseFailed: it cannot be read, or has no capacity at all, which proves nothing.
    """
    if device.size == 0:
        raise EraseFailed(f"{device.path} has no capacity: there is nothing to read back")
    ranges = list(_samples(device.size)) if mode == "sample" else [(0, device.size)]
    total = sum(length for _, length in ranges)
    meter = _Meter(f"reading back {device.path.name} ({mode})", total, progress)
    for start, length in ranges:
        for offset in range(start, start + length, _STRIDE):
            if deadline.passed:
                raise EraseTimeout(f"no time was left to read {device.path} back, at {meter.percent} percent of it")
            stretch = min(_STRIDE, start + length - offset)
            found = device.nonzero_in(offset, stretch)
            if found is not None:
                return found
            meter.add(stretch)
    return None


def _samples(size: int) -> Iterator[tuple[int, int]]:
    """Offset and length of what is looked at; all of it where that is no more."""
    if size <= 2 * _EDGE + 2 * _SPREAD * _SAMPLE:
        yield 0, size
        return
    spread = min(_SPREAD, size // _NEIGHBOURS)
    yield 0, _EDGE
    yield size - _EDGE, _EDGE
    last = size - _SAMPLE
    for index in range(spread):
        yield last * index // (spread - 1) // _ALIGNMENT * _ALIGNMENT, _SAMPLE
    chance = random.SystemRandom()
    for _ in range(spread):
        yield chance.randrange(last // _ALIGNMENT + 1) * _ALIGNMENT, _SAMPLE


class _Meter:
    """Tells of every whole percent once."""

    def __init__(self, step: str, total: int, progress: ProgressSink) -> None:
        self.percent = 0
        self._step, self._total, self._progress = step, total, progress
        self._done = 0
        self._since = time.monotonic()
        progress(Progress(0.0, step))

    def add(self, done: int) -> None:
        self._done += done
        percent = 100 * self._done // self._total
        if percent > self.percent:
            self.percent = percent
            spent = time.monotonic() - self._since
            left = spent * (self._total - self._done) / self._done
            self._progress(Progress(float(percent), self._step, seconds_left=left))
