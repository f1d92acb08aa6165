"""Faults that strike whatever command is run: it is late, it hangs, it finds no drive."""

import time
from collections.abc import Sequence

from autoclave.simulator.faults import FaultKind
from autoclave.simulator.slots import DriveSlots

_LOOK_AGAIN = 0.05
_FORMAT_TIMEOUT = 600.0
_ROUNDING = 1e-6
"""Percent that are lost between a share and what is shown of it."""


def delay(host: DriveSlots, addresses: Sequence[str]) -> None:
    """Be as slow as the faults say, and hang while they say so."""
    time.sleep(host.faults.active(addresses).get(FaultKind.NVME_SLOW) or 0)
    while FaultKind.NVME_HANGS in host.faults.active(addresses):
        time.sleep(_LOOK_AGAIN)


def hang_format(host: DriveSlots, address: str, seconds: float) -> None:
    """Hang as a drive whose format does not end, until the kernel gives the command up.

    :param seconds: after which that is; 0: the ten minutes of the tool.
    """
    until = time.monotonic() + (seconds or _FORMAT_TIMEOUT)
    while FaultKind.FORMAT_HANGS in host.faults.active([address]) and time.monotonic() < until:
        time.sleep(_LOOK_AGAIN)


def vanish(host: DriveSlots, address: str, percent: float | None) -> bool:
    """Pull the drive if it is to vanish now, and say whether it did.

    :param percent: how far an erase is, or None if there is none.
    """
    faults = host.faults.active([address])
    if FaultKind.VANISHES not in faults:
        return False
    at = faults[FaultKind.VANISHES]
    if at is not None and (percent is None or percent < at - _ROUNDING):
        return False
    host.faults.clear(address, FaultKind.VANISHES)
    host.pull(address)
    return True
