"""Zero simulated disks piece by piece, as the faults require.

Simulated disks and the stand-in for shred share :class:`Zeroing`. The functions simulate faults of every command: it is
slow, it hangs, or its drive vanishes.
"""

import errno
import os
import time
from collections.abc import Iterator, Sequence

from autoclave.exceptions import SimulatorError
from autoclave.simulator.faults import FaultKind
from autoclave.simulator.nvme_status import CommandFailed
from autoclave.simulator.slots import DeviceNode, DriveSlots, find_node

_LOOK_AGAIN = 0.05
_FORMAT_TIMEOUT = 600.0
_ROUNDING = 1e-6
"""The rounding error of a percentage."""


def delay(host: DriveSlots, addresses: Sequence[str]) -> None:
    """Be as slow as the faults require, and hang while they require it."""
    time.sleep(host.faults.active(addresses).get(FaultKind.NVME_SLOW) or 0)
    while FaultKind.NVME_HANGS in host.faults.active(addresses):
        time.sleep(_LOOK_AGAIN)


def hang_format(host: DriveSlots, address: str, seconds: float) -> None:
    """Hang like a drive whose format does not end, until the kernel aborts the command.

    :param seconds: the timeout of the command; 0 for the ten minutes of the tool.
    """
    until = time.monotonic() + (seconds or _FORMAT_TIMEOUT)
    while FaultKind.FORMAT_HANGS in host.faults.active([address]) and time.monotonic() < until:
        time.sleep(_LOOK_AGAIN)


def vanish(host: DriveSlots, address: str, percent: float | None) -> bool:
    """Pull the drive if it is to vanish now, and return whether it was pulled.

    :param percent: the progress of an erase, or None without one.
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


_PIECE = 4 << 20
_PIECES_PER_SECOND = 20
_SECTOR = 512


class Zeroing:
    """Zero one block device of *host*.

    :raises OSError: the block device does not exist.
    """

    def __init__(self, host: DriveSlots, path: str) -> None:
        node = find_node(host, path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, "no such device", path)
        if node.nsid is None:
            raise OSError(errno.ENOTBLK, "a controller is no block device", path)
        self._host = host
        self._path = path
        self._address, self._nsid = node.slot.address, node.nsid
        with host.drive(self._address) as drive:
            self.size = drive.namespace(self._nsid).size

    def run(self, offset: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
        """Write the zeros; yield (offset, length) of each piece when it is on the media.

        :param end: the end; None for the end of the device.
        :raises OSError: EIO if the device is gone or the drive refuses.
        """
        end = self.size if end is None else end
        while offset < end:
            length = self._write(offset, end)
            yield offset, length
            offset += length

    def check_writable(self) -> None:
        """Accept a write of other bytes as the drive does, after which it no longer counts as erased.

        :raises OSError: EIO if the device is gone or the drive refuses.
        """
        try:
            with self._host.drive(self._address) as drive:
                drive.check_not_sanitizing()
                drive.state.global_erased = False
        except (CommandFailed, SimulatorError) as error:
            raise _io_error() from error

    def _write(self, offset: int, end: int) -> int:
        node = find_node(self._host, self._path)
        if not self._is_mine(node) or vanish(self._host, self._address, offset / self.size * 100):
            raise _io_error()
        try:
            with self._host.drive(self._address) as drive:
                drive.check_not_sanitizing()
                faults = drive.faults
                rate = faults.get(FaultKind.ZERO_BYTES_PER_SECOND)
                length = _PIECE if rate is None else max(_SECTOR, int(rate / _PIECES_PER_SECOND) // _SECTOR * _SECTOR)
                length = min(length, _PIECE, end - offset)
                if FaultKind.ZERO_FAILS in faults and (offset + length) / self.size * 100 > drive.zero_fails_at:
                    raise _io_error()
                if FaultKind.ZERO_LEAVES_DATA not in faults:
                    drive.zero(self._nsid, offset, length)
        except (CommandFailed, SimulatorError) as error:
            raise _io_error() from error
        if rate is not None:
            time.sleep(length / rate if rate else 1)
        return length

    def _is_mine(self, node: DeviceNode | None) -> bool:
        return node is not None and (node.slot.address, node.nsid) == (self._address, self._nsid)


def _io_error() -> OSError:
    """Return EIO, the only error that the kernel reports for a failed drive."""
    return OSError(errno.EIO, os.strerror(errno.EIO))
