"""The bytes of a namespace: a sparse file, erased and searched without filling its holes."""

import os
from collections.abc import Iterator
from pathlib import Path

_CHUNK = 1 << 20


def make(path: Path, size: int) -> None:
    """Make *path* a file of *size* bytes that reads as zeros."""
    with path.open("wb") as media:
        media.truncate(size)


def written(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """The (offset, length) pieces of [*start*, *end*) that hold data, none longer than 1 MiB."""
    position = start
    while position < end:
        try:
            position = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole is left
            return
        stop = min(os.lseek(descriptor, position, os.SEEK_HOLE), end)
        while position < stop:
            length = min(_CHUNK, stop - position)
            yield position, length
            position += length


def zero(descriptor: int, offset: int, length: int) -> None:
    """Overwrite [*offset*, *offset* + *length*) with zeros; holes stay holes."""
    for start, size in written(descriptor, offset, offset + length):
        os.pwrite(descriptor, bytes(size), start)


def scramble(path: Path) -> None:
    """Replace what was ever written with noise, as a drive does that has thrown its key away."""
    with path.open("r+b", buffering=0) as media:
        for start, size in written(media.fileno(), 0, path.stat().st_size):
            os.pwrite(media.fileno(), os.urandom(size), start)


def move(source: Path, source_offset: int, target: Path, target_offset: int, length: int) -> None:
    """Copy *length* bytes between two files, growing *target* where needed."""
    with source.open("rb", buffering=0) as reader, target.open("r+b", buffering=0) as writer:
        for start, size in written(reader.fileno(), source_offset, source_offset + length):
            os.pwrite(writer.fileno(), os.pread(reader.fileno(), size, start), target_offset + start - source_offset)
        if target.stat().st_size < target_offset + length:
            writer.truncate(target_offset + length)


def find(path: Path, needle: bytes) -> int | None:
    """The offset of the first *needle* in the file, or None."""
    tail, previous_end = b"", -1
    with path.open("rb", buffering=0) as media:
        for start, size in written(media.fileno(), 0, path.stat().st_size):
            if start != previous_end:
                tail = b""
            block = tail + os.pread(media.fileno(), size, start)
            position = block.find(needle)
            if position >= 0:
                return start - len(tail) + position
            tail = block[-(len(needle) - 1) :] if len(needle) > 1 else b""
            previous_end = start + size
    return None
