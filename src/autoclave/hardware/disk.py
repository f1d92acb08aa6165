"""The port to one disk: reading and zeroing it, whoever holds it open."""

from pathlib import Path
from typing import Protocol

LARGEST_STEP = 256 * 1024 * 1024
"""Bytes that one request zeroes at most: whoever is killed meanwhile leaves no more than that to be done."""

MARKER_BYTES = 4096
"""Bytes of one marker, which is also what its offset must be a multiple of."""


class Disk(Protocol):
    """A disk held open exclusively. Made by :func:`autoclave.hardware.block.open_block`.

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

    def zero(self, offset: int, length: int) -> None:
        """Overwrite the range with zeroes. It cannot be stopped, so it is not longer than :data:`LARGEST_STEP`.

        :raises ValueError: there is no such range, or it is longer.
        :raises DeviceVanished: the disk is gone.
        :raises EraseFailed: it cannot be overwritten there; how much of the range was, is not known.
        """
        ...

    def write_marker(self, offset: int, seed: bytes) -> None:
        """Write :data:`MARKER_BYTES` that only *seed* tells, at *offset*.

        :raises ValueError: there is no such range.
        :raises DeviceVanished: the disk is gone.
        :raises EraseFailed: it cannot be written there.
        """
        ...

    def has_marker(self, offset: int, seed: bytes) -> bool:
        """Whether what is on the medium at *offset* is the marker of *seed*.

        :raises ValueError: there is no such range.
        :raises DeviceVanished: the disk is gone.
        :raises EraseFailed: it cannot be read there.
        """
        ...

    def flush(self) -> None:
        """Have the drive write its volatile cache: zeroes that a power cut takes back are none.

        :raises DeviceVanished: the disk is gone.
        :raises EraseFailed: it does not.
        """
        ...

    def close(self) -> None:
        """Let go of the disk."""
        ...
