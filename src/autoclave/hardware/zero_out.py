"""Zeroing by the kernel, step by step, on the descriptor that holds the disk."""

import time

from autoclave.exceptions import EraseFailed
from autoclave.hardware.disk import LARGEST_STEP, Disk
from autoclave.hardware.erase.work import LEFT_BEHIND, EraseWork
from autoclave.hardware.progress_meter import ProgressMeter

NAME = "BLKZEROOUT"
"""The ioctl."""

SMALLEST_STEP = 1 << 20
_QUICK, _SLOW = 0.1, 0.5
"""Seconds of a step after which the next one is twice, or half, as large.

A step cannot be stopped: it bounds what is still zeroed after the deadline, and after whoever does it was killed.
"""


def zero_out(work: EraseWork, disk: Disk, meter: ProgressMeter) -> None:
    """Overwrite all of the disk.

    :raises EraseTimeout: the deadline passed first.
    :raises DeviceVanished: the drive went away.
    :raises EraseFailed: it cannot be overwritten.
    """
    offset, step, rate = 0, SMALLEST_STEP, 0.0
    while offset < disk.size:
        if work.control.deadline.passed:
            raise work.out_of_time(LEFT_BEHIND)
        length = min(step, disk.size - offset, _in_time(rate, work.control.deadline.remaining()))
        began = time.monotonic()
        try:
            disk.zero(offset, length)
        except EraseFailed as error:
            work.must_be_there(error)
            raise
        spent = time.monotonic() - began
        rate = length / spent if spent > 0 else 0.0
        if spent < _QUICK:
            step = min(2 * step, LARGEST_STEP)
        elif spent > _SLOW:
            step = max(step // 2, SMALLEST_STEP)
        offset += length
        meter.update(100.0 * offset / disk.size)


def _in_time(rate: float, seconds: float) -> int:
    """How many bytes, in whole smallest steps, may be begun with *seconds* left: no more than the last rate allows.

    :param rate: bytes per second; 0: not known yet.
    """
    if rate <= 0:
        return SMALLEST_STEP
    return max(int(rate * seconds) // SMALLEST_STEP, 1) * SMALLEST_STEP
