"""Disks that the privileged process holds, what it sees of their users, and what tells the machine and its cards."""

import secrets
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from autoclave.exceptions import HardwareError
from autoclave.hardware import card_serial as card_serials
from autoclave.hardware import host_hints, open_files, zfs_label
from autoclave.hardware.block import BlockDevice, hold
from autoclave.hardware.host import HostPaths
from autoclave.hardware.privileged import admission, entrypoint

_PATHS = HostPaths()

_held: dict[str, tuple[BlockDevice, threading.Lock]] = {}
"""Two requests at once must not share a buffer, nor use a descriptor that the other has closed."""


@contextmanager
def _disk(token: str) -> Iterator[BlockDevice]:
    device, lock = _held.get(token, (None, None))
    if device is not None and lock is not None:
        with lock:
            if token in _held:
                yield device
                return
    raise HardwareError("the privileged helper does not hold this disk: it was started anew meanwhile")


@entrypoint
def hold_disk(path: str, writable: bool) -> tuple[str, int]:
    """Hold a disk exclusively: a token for the other requests, and its size in bytes."""
    device = hold(_PATHS, admission.disk(path), writable=writable)
    token = secrets.token_hex(16)
    _held[token] = device, threading.Lock()
    return token, device.size


@entrypoint
def nonzero_in(token: str, offset: int, length: int) -> int | None:
    """See :meth:`Disk.nonzero_in`."""
    with _disk(token) as device:
        return device.nonzero_in(offset, length)


@entrypoint
def zero(token: str, offset: int, length: int) -> None:
    """See :meth:`Disk.zero`."""
    with _disk(token) as device:
        device.zero(offset, length)


@entrypoint
def write_marker(token: str, offset: int, seed: bytes) -> None:
    """See :meth:`Disk.write_marker`."""
    with _disk(token) as device:
        device.write_marker(offset, seed)


@entrypoint
def has_marker(token: str, offset: int, seed: bytes) -> bool:
    """See :meth:`Disk.has_marker`."""
    with _disk(token) as device:
        return device.has_marker(offset, seed)


@entrypoint
def flush(token: str) -> None:
    """See :meth:`Disk.flush`."""
    with _disk(token) as device:
        device.flush()


@entrypoint
def let_go(token: str) -> None:
    """Close a disk that is held."""
    with _disk(token) as device:
        del _held[token]
        device.close()


@entrypoint
def programs_with_open(nodes: Sequence[str]) -> list[tuple[str, int, str, bool]]:
    """The fields of each :class:`OpenFile`."""
    found = open_files.programs_with_open(_PATHS, admission.nodes(nodes))
    return [(str(file.node), file.pid, file.program, file.writes) for file in found]


@entrypoint
def has_zfs_label(node: str) -> bool:
    """See :func:`zfs_label.is_on`."""
    return zfs_label.is_on(_PATHS, admission.nodes([node])[0])


@entrypoint
def card_serial(address: str, vital_product_data: bool) -> str | None:
    """See :func:`card_serial.card_serial`. The agent gets the serial, and nothing else of what is read for it."""
    return card_serials.card_serial(_PATHS, admission.function(address), vital_product_data=vital_product_data)


@entrypoint
def product_uuid() -> str | None:
    """See :func:`host_hints.product_uuid`."""
    return host_hints.product_uuid(_PATHS)
