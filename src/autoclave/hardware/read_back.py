"""Whether zero is all there is on a disk: what is read back after an erase."""

import random
import time
from collections.abc import Iterator
from typing import Literal

from autoclave.exceptions import EraseFailed, EraseTimeout
from autoclave.hardware.block import CHUNK
from autoclave.hardware.deadline import Deadline
from autoclave.hardware.disk import Disk
from autoclave.hardware.progress import Progress, ProgressSink

_STRIDE = 4 * CHUNK
"""Bytes between two looks at the clock: so many that what it costs to ask for them does not show."""
_EDGE = 1024 * 1024
"""Bytes at each end: partition tables, superblocks, and the backups of both are there."""
_EDGES = 4096
"""Such edges that a drive has at least, or they are smaller."""
_LEAST, _MOST = 4, 256
"""Samples at even distances, and as many again where nobody can foresee."""
_NEIGHBOURS = 256 * 1024 * 1024
"""Bytes of a smaller drive for each of them: what reading back costs stays small beside the erasing."""
_SAMPLE = 64 * 1024
_ALIGNMENT = 4096


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
    edge = min(_EDGE, -(-size // _EDGES // _SAMPLE) * _SAMPLE)
    spread = max(_LEAST, min(_MOST, size // _NEIGHBOURS))
    if size <= 2 * edge + 2 * spread * _SAMPLE:
        yield 0, size
        return
    yield 0, edge
    yield size - edge, edge
    last = size - _SAMPLE
    for index in range(1, spread + 1):
        yield last * index // (spread + 1) // _ALIGNMENT * _ALIGNMENT, _SAMPLE
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
