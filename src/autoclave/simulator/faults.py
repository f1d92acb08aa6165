"""Inject faults into a running simulated host; its stand-in tools obey them from then on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from autoclave.simulator import files

EVERY_DRIVE = "*"


class FaultKind(StrEnum):
    """List the faults. Each member's text describes its effect and the meaning of its value."""

    SANITIZE_FAILS = "sanitize-fails"
    """The operation fails at the given percentage (default 50); the data is still there."""
    SANITIZE_HANGS = "sanitize-hangs"
    """The progress stops at the given percentage (default 50) and the operation never ends."""
    SANITIZE_VERIFIES = "sanitize-verifies"
    """The operation ends in Media Verification, and stays there until Sanitize action 5."""
    SANITIZE_SECONDS = "sanitize-seconds"
    """The operation takes the given seconds."""
    VANISHES = "vanishes"
    """The drive vanishes at the next command, or when an erase reaches the given percentage. It occurs once."""
    FORMAT_FAILS = "format-fails"
    """Format NVM returns Internal Error, and changes nothing."""
    FORMAT_HANGS = "format-hangs"
    """Format NVM hangs until its timeout, and changes nothing."""
    FORMAT_REFUSED = "format-refused"
    """Format NVM returns Invalid Format, whatever OACS, FNA and the list of LBA formats report."""
    FORMAT_LEAVES_DATA = "format-leaves-data"
    """Format NVM reports success without an erase."""
    FORMAT_LEAVES_LAYOUT = "format-leaves-layout"
    """Format NVM reports success without changing the LBA format."""
    CREATE_NS_REFUSED = "create-ns-refused"
    """create-ns returns Invalid Command Opcode, whatever OACS reports."""
    CREATE_NS_NO_ROOM = "create-ns-no-room"
    """create-ns returns Namespace Insufficient Capacity for every size."""
    CREATE_NS_INVALID = "create-ns-invalid"
    """create-ns returns Invalid Field for sizes below the given MiB, or for every size."""
    LIST_NS_REFUSED = "list-ns-refused"
    """list-ns returns Invalid Field, as controllers of NVMe 1.0 do."""
    SANITIZE_LOG_REFUSED = "sanitize-log-refused"
    """sanitize-log returns Invalid Log Page."""
    NVME_MISSING = "nvme-missing"
    """The nvme command cannot be run, on the whole host."""
    NVME_SLOW = "nvme-slow"
    """Every nvme command takes the given additional seconds."""
    NVME_BUSY = "nvme-busy"
    """Every nvme command fails with EAGAIN, as during a reset of the controller."""
    NVME_HANGS = "nvme-hangs"
    """Every nvme command hangs."""
    NVME_GARBAGE = "nvme-garbage"
    """Every nvme command prints garbage, and exits with success."""
    NVME_EXITS_ZERO = "nvme-exits-zero"
    """nvme exits with success although it printed an error."""
    NVME_JSON_ERRORS = "nvme-json-errors"
    """nvme prints errors as JSON on its standard output, in every version."""
    ZERO_FAILS = "zero-fails"
    """BLKZEROOUT, shred and write-zeroes fail with an I/O error at the given percentage (default 50)."""
    ZERO_LEAVES_DATA = "zero-leaves-data"
    """BLKZEROOUT, shred and write-zeroes report success without writing."""
    ZERO_BYTES_PER_SECOND = "zero-bytes-per-second"
    """BLKZEROOUT and shred write the given bytes per second."""
    BLOCK_DEVICES_LATE = "block-devices-late"
    """The host shows changes of namespace management and formats only after the fault is cleared."""
    HOST_ACTIVATES = "host-activates"
    """The host activates the volume group that a guest left on the drive, when the drive returns."""
    HOST_ASSEMBLES = "host-assembles"
    """The host assembles the RAID array that a guest left on the drive, when the drive returns."""
    VOLUMES_STAY = "volumes-stay"
    """vgchange and mdadm end no volume on the drive: a program has it open."""
    RESET_FAILS = "reset-fails"
    """The kernel refuses to reset the function."""
    CLEAR_FAILS = "clear-fails"
    """The operator's program ends with the given exit code (default 1)."""
    CLEAR_HANGS = "clear-hangs"
    """The operator's program does not end."""
    SPAWN_FAILS = "spawn-fails"
    """A new guest does not start, on the whole host."""
    SPAWN_HANGS = "spawn-hangs"
    """A new guest hangs for the given seconds (default 60), and then does not start, on the whole host."""
    DESTROY_FAILS = "destroy-fails"
    """A guest cannot be ended, and keeps its resources, on the whole host."""


NEEDS_VALUE = frozenset({FaultKind.SANITIZE_SECONDS, FaultKind.NVME_SLOW, FaultKind.ZERO_BYTES_PER_SECOND})

OF_THE_HOST = frozenset({FaultKind.NVME_MISSING, FaultKind.SPAWN_FAILS, FaultKind.SPAWN_HANGS, FaultKind.DESTROY_FAILS})
"""The faults of the whole host, not of one drive."""


@dataclass(frozen=True)
class Fault:
    """Hold one fault.

    :param value: see :class:`FaultKind`.
    """

    kind: FaultKind
    value: float | None = None

    def __post_init__(self) -> None:
        if self.value is None and self.kind in NEEDS_VALUE:
            raise ValueError(f"fault {self.kind} needs a value")
        if self.value is not None and self.value < 0:
            raise ValueError(f"fault {self.kind}: {self.value} is negative")


Active = Mapping[FaultKind, float | None]
"""The active faults of one drive, with their values."""


class FaultBook:
    """Store the faults of one host in ``faults.json``: ``{address or "*": {kind: value}}``.

    :param root: the simulated host's directory.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / "faults.json"
        self._lock = root / "state" / "faults.lock"
        self._nvme = root / "bin" / "nvme"

    def read(self) -> dict[str, dict[str, float | None]]:
        """Return every fault, as in the file."""
        try:
            book: dict[str, dict[str, float | None]] = files.read_json(self._path)
        except FileNotFoundError:
            return {}
        return book

    def active(self, addresses: Sequence[str]) -> Active:
        """Return the faults of the drive at *addresses*, including those of every drive; the drive's own take
        precedence.
        """
        book = self.read()
        return {
            FaultKind(kind): value
            for address in (EVERY_DRIVE, *addresses)
            for kind, value in book.get(address, {}).items()
        }

    def set(self, address: str, *faults: Fault) -> None:
        """Activate *faults* for *address*, or for every drive (``*``), in addition to active ones."""
        with files.locked(self._lock):
            book = self.read()
            book.setdefault(address, {}).update({str(fault.kind): fault.value for fault in faults})
            self._write(book)

    def clear(self, address: str | None = None, kind: FaultKind | None = None) -> None:
        """Clear faults: all of them, those of one address, of one kind, or of both."""
        with files.locked(self._lock):
            book = self.read()
            for where in list(book):
                if address in (None, where):
                    book[where] = {name: value for name, value in book[where].items() if kind not in (None, name)}
            self._write({where: kinds for where, kinds in book.items() if kinds})

    def _write(self, book: dict[str, dict[str, float | None]]) -> None:
        files.write_json(self._path, book)
        missing = any(FaultKind.NVME_MISSING in kinds for kinds in book.values())
        self._nvme.chmod(0o644 if missing else 0o755)
