"""Faults that strike whatever command is run: it is late, it hangs, it finds no drive."""

import time
from collections.abc import Sequence

from autoclave.simulator.faults import FaultKind
from autoclave.simulator.slots import DriveSlots

_LOOK_AGAIN = 0.05


def delay(host: DriveSlots, addresses: Sequence[str]) -> None:
    """Be as slow as the faults say, and hang while they say so."""
    time.sleep(host.faults.active(addresses).get(FaultKind.NVME_SLOW) or 0)
    while FaultKind.NVME_HANGS in host.faults.active(addresses):
        time.sleep(_LOOK_AGAIN)


def vanish(host: DriveSlots, address: str, percent: float | None) -> bool:
    """Pull the drive if it is to vanish now, and say whether it did.

    :param percent: how far an erase is, or None if there is none.
    """
    faults = host.faults.active([address])
    if FaultKind.VANISHES not in faults:
        return False
    at = faults[FaultKind.VANISHES]
    if at is not None and (percent is None or percent < at):
        return False
    host.faults.clear(address, FaultKind.VANISHES)
    host.pull(address)
    return True
