"""A chunked HTTP body (RFC 9112, 7.1) of which no more is in memory than was asked for."""

from typing import BinaryIO

_LONGEST_LINE = 4096
"""Bytes of a chunk's head, or of one trailer."""
_MOST_TRAILERS = 64
_HEX_DIGITS = frozenset(b"0123456789abcdefABCDEF")
_MOST_DIGITS = 16
"""Of a chunk's size: 2**64 bytes are more than anybody sends."""


class ChunkedBody:
    """The body that *stream* holds. cheroot's own reads a chunk as a whole, whatever size its sender gives it.

    :param stream: stands at the first chunk; it is at the next request when the body has been read.
    """

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._left = 0
        self._first = True
        self.closed = False
        """Whether it has been read to its end."""
        self._broken: ValueError | None = None

    def read(self, size: int = -1) -> bytes:
        """At most *size* bytes, fewer at the end only; negative: all that is left.

        :raises ValueError: it breaks off, or is none that HTTP knows. From then on always: behind what nobody
            understands, what looks like the next chunk, or like the end, may be anything.
        """
        if self._broken is not None:
            raise self._broken
        try:
            return self._read(size)
        except ValueError as error:
            self._broken = error
            raise

    def _read(self, size: int) -> bytes:
        pieces: list[bytes] = []
        missing = size
        while missing and not self.closed:
            if not self._left:
                self._begin_chunk()
                continue
            piece = self._stream.read(min(self._left, missing) if size >= 0 else self._left)
            if not piece:
                raise ValueError(f"It ended {self._left} bytes before its chunk did.")
            self._left -= len(piece)
            missing -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)

    def _begin_chunk(self) -> None:
        if not self._first and self._line():
            raise ValueError("A chunk is longer than its head says.")
        self._first = False
        digits = self._line().partition(b";")[0].strip()
        if not 0 < len(digits) <= _MOST_DIGITS or not _HEX_DIGITS.issuperset(digits):
            raise ValueError(f"{digits[:20]!r} is no size of a chunk.")
        self._left = int(digits, 16)
        if not self._left:
            self._skip_trailers()

    def _skip_trailers(self) -> None:
        for _ in range(_MOST_TRAILERS):
            if not self._line():
                self.closed = True
                return
        raise ValueError(f"It has more than {_MOST_TRAILERS} trailers.")

    def _line(self) -> bytes:
        line = self._stream.readline(_LONGEST_LINE)
        if not line.endswith(b"\r\n"):
            raise ValueError("A line of it does not end, or not as HTTP's do.")
        return line[:-2]
