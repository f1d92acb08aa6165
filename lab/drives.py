"""The guest's NVMe drives, seen past the system under test: sysfs for the way, O_DIRECT for the medium."""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 20
PATTERN = (b"This belongs to a tenant. " * (CHUNK // 26 + 1))[:CHUNK]


@dataclass(frozen=True)
class Drive:
    """One drive with one namespace.

    :param address: the controller's PCI address.
    :param node: the block device.
    """

    serial: str
    address: str
    node: Path

    def fill(self) -> int:
        """Write the pattern over all of it, and return the bytes written."""
        with _buffer(PATTERN) as buffer, self._open(os.O_WRONLY) as fd:
            return sum(os.pwritev(fd, [buffer], offset) for offset in range(0, self.size, CHUNK))

    def differs_from(self, chunk: bytes) -> int | None:
        """The offset of the first chunk that is not *chunk*, or None if all of the drive repeats it."""
        with _buffer(bytes(CHUNK)) as buffer, self._open(os.O_RDONLY) as fd:
            for offset in range(0, self.size, CHUNK):
                read = os.preadv(fd, [buffer], offset)
                if read != CHUNK or buffer[:] != chunk:
                    return offset
        return None

    @property
    def size(self) -> int:
        """Bytes."""
        sectors = Path("/sys/class/block", self.node.name, "size").read_text(encoding="ascii")
        return int(sectors) * 512

    @contextmanager
    def _open(self, mode: int) -> Iterator[int]:
        # Around the page cache: what it holds is no evidence of what the drive holds.
        fd = os.open(self.node, mode | os.O_DIRECT | os.O_EXCL)
        try:
            yield fd
        finally:
            os.close(fd)


def drives() -> dict[str, Drive]:
    """All drives by serial number."""
    found = {}
    for controller in Path("/sys/class/nvme").iterdir():
        serial = (controller / "serial").read_text(encoding="ascii").strip()
        (namespace,) = controller.glob("nvme*n*")
        address = (controller / "address").read_text(encoding="ascii").strip()
        found[serial] = Drive(serial, address, Path("/dev", namespace.name))
    return found


def _buffer(content: bytes) -> mmap.mmap:
    """Memory that O_DIRECT accepts: a map begins on a page."""
    buffer = mmap.mmap(-1, CHUNK)
    buffer[:] = content
    return buffer
