"""The guest's NVMe drives, seen past the system under test: sysfs for the way, O_DIRECT for the medium."""

import errno
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 20
ZEROS = bytes(CHUNK)
PATTERN = (b"This belongs to a tenant. " * (CHUNK // 26 + 1))[:CHUNK]


SECRET = b"Tenant's secret\n" * 32
"""What a guest writes (``lab/tenant.c``): one block of 512 bytes, at LBA 16."""
SECRET_AT = 16 * 512
SYSFS_PCI = Path("/sys/bus/pci")
LOOK = 10
"""Seconds that are more than the agent's periodic look at a drive takes; it opens the drive exclusively."""


@dataclass(frozen=True)
class Drive:
    """One drive with one namespace.

    :param address: the controller's PCI address.
    """

    serial: str
    address: str

    @property
    def node(self) -> Path:
        """The block device of its first namespace, as it is numbered now.

        :raises LookupError: it has none, or the nvme driver has not got it.
        """
        return Path("/dev", self._heads()[0])

    @property
    def usable(self) -> bool:
        """Whether the host's nvme driver has it, and shows its namespace."""
        return self.driver == "nvme" and any(Path("/dev", head).exists() for head in self._heads())

    @property
    def character_device(self) -> Path:
        """The device of its controller, for nvme-cli.

        :raises LookupError: the nvme driver has not got it.
        """
        return Path("/dev", self._controllers()[0].name)

    def _controllers(self) -> list[Path]:
        return list((SYSFS_PCI / "devices" / self.address).glob("nvme/nvme*"))

    def _heads(self) -> list[str]:
        heads = []
        for controller in self._controllers():
            # The block devices of a drive that may have several controllers are the subsystem's.
            subsystem = [path.parent for path in Path("/sys/class/nvme-subsystem").glob(f"*/{controller.name}")]
            heads += [head.name for at in (controller, *subsystem) for head in at.glob("nvme*n*")]
        return sorted(head for head in heads if "c" not in head)

    @property
    def driver(self) -> str | None:
        """The kernel driver that has it."""
        return driver_of(self.address)

    def virtual_function(self, number: int) -> str:
        """The address of one of its virtual functions, of which the first is 1."""
        return f"{self.address.rpartition('.')[0]}.{number}"

    def fill(self) -> int:
        """Write the pattern over all of it, and return the bytes written."""
        return sum(self.write(PATTERN, at=offset) for offset in range(0, self.size, CHUNK))

    def write(self, content: bytes, *, at: int) -> int:
        """Write *content*, whole blocks of it, and return the bytes written.

        :raises OSError: another program has it open exclusively for longer than the agent's periodic look takes.
        """
        with (
            self._open(os.O_WRONLY | os.O_EXCL, patience=LOOK) as fd,
            _buffer(content) as buffer,
            memoryview(buffer)[: len(content)] as part,
        ):
            return os.pwritev(fd, [part], at)

    def read(self, offset: int, length: int) -> bytes:
        """*length* bytes, up to one chunk, from a multiple of 4096 on, around the page cache."""
        with _buffer(bytes(CHUNK)) as buffer, self._open(os.O_RDONLY) as fd:
            os.preadv(fd, [buffer], offset)
            return buffer[:length]

    def differs_from(self, chunk: bytes) -> int | None:
        """The offset of the first chunk that is not *chunk*, or None if all of the drive repeats it."""
        with _buffer(bytes(CHUNK)) as buffer, self._open(os.O_RDONLY) as fd:
            for offset in range(0, self.size, CHUNK):
                read = os.preadv(fd, [buffer], offset)
                if read != CHUNK or buffer[:] != chunk:
                    return offset
        return None

    def holds(self, chunk: bytes) -> bool:
        """Whether *chunk* is one of the drive's chunks."""
        return any(self.read(offset, CHUNK) == chunk for offset in range(0, self.size, CHUNK))

    @property
    def holder(self) -> str:
        """What the kernel says to an exclusive open; empty: it can be had."""
        try:
            with self._open(os.O_RDONLY | os.O_EXCL):
                return ""
        except OSError as error:
            return str(error)

    @property
    def sectors_written(self) -> int:
        """Sectors that the kernel has written to it, by Write Zeroes too."""
        return int(Path("/sys/class/block", self.node.name, "stat").read_text(encoding="ascii").split()[6])

    @property
    def size(self) -> int:
        """Bytes."""
        sectors = Path("/sys/class/block", self.node.name, "size").read_text(encoding="ascii")
        return int(sectors) * 512

    @contextmanager
    def _open(self, mode: int, patience: float = 0) -> Iterator[int]:
        deadline = time.monotonic() + patience
        # Around the page cache: what it holds is no evidence of what the drive holds.
        while True:
            try:
                fd = os.open(self.node, mode | os.O_DIRECT)
                break
            except OSError as error:
                if error.errno != errno.EBUSY or time.monotonic() > deadline:
                    raise
            time.sleep(0.1)
        try:
            yield fd
        finally:
            os.close(fd)


def drives() -> dict[str, Drive]:
    """All drives by serial number; of one with two controllers, the last."""
    found = {}
    for controller in Path("/sys/class/nvme").iterdir():
        serial = (controller / "serial").read_text(encoding="ascii").strip()
        found[serial] = Drive(serial, (controller / "address").read_text(encoding="ascii").strip())
    return found


def driver_of(address: str) -> str | None:
    """The kernel driver that has a PCI function."""
    link = SYSFS_PCI / "devices" / address / "driver"
    return link.readlink().name if link.is_symlink() else None


def _buffer(content: bytes) -> mmap.mmap:
    """Memory that O_DIRECT accepts: a map begins on a page."""
    buffer = mmap.mmap(-1, CHUNK)
    buffer[: len(content)] = content
    return buffer
