"""Faults of a simulated host: set while it runs, and obeyed by its stand-in tools from then on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from autoclave.simulator import files

EVERY_DRIVE = "*"


class FaultKind(StrEnum):
    """What goes wrong. The text below each says what its value means."""

    SANITIZE_FAILS = "sanitize-fails"
    """The operation ends as failed, after so many percent (default 50); the data is still there."""
    SANITIZE_HANGS = "sanitize-hangs"
    """Progress stands still at so many percent (default 50) and never ends."""
    SANITIZE_VERIFIES = "sanitize-verifies"
    """The operation ends in Media Verification, and stays there until Sanitize action 5."""
    SANITIZE_SECONDS = "sanitize-seconds"
    """The operation takes so many seconds."""
    VANISHES = "vanishes"
    """The drive is gone with the next command, or once an erase has come to so many percent. Happens once."""
    FORMAT_FAILS = "format-fails"
    """Format NVM answers Internal Error, and has done nothing."""
    FORMAT_HANGS = "format-hangs"
    """Format NVM starts and does not end until its timeout, and has then done nothing."""
    FORMAT_REFUSED = "format-refused"
    """Format NVM answers Invalid Format, whatever OACS, FNA and the list of LBA formats claim."""
    FORMAT_LEAVES_DATA = "format-leaves-data"
    """Format NVM reports success and has erased nothing."""
    FORMAT_LEAVES_LAYOUT = "format-leaves-layout"
    """Format NVM reports success and has not changed the LBA format."""
    CREATE_NS_REFUSED = "create-ns-refused"
    """create-ns answers Invalid Command Opcode, whatever OACS claims."""
    CREATE_NS_NO_ROOM = "create-ns-no-room"
    """create-ns answers Namespace Insufficient Capacity, whatever size is asked for."""
    CREATE_NS_INVALID = "create-ns-invalid"
    """create-ns answers Invalid Field to sizes below so many MiB, or to every size."""
    LIST_NS_REFUSED = "list-ns-refused"
    """list-ns answers Invalid Field, as controllers of NVMe 1.0 do."""
    SANITIZE_LOG_REFUSED = "sanitize-log-refused"
    """sanitize-log answers Invalid Log Page."""
    NVME_MISSING = "nvme-missing"
    """The nvme command cannot be run. Of the whole host."""
    NVME_SLOW = "nvme-slow"
    """Every nvme command takes so many seconds longer."""
    NVME_BUSY = "nvme-busy"
    """Every nvme command fails with EAGAIN, as while the controller is being reset."""
    NVME_HANGS = "nvme-hangs"
    """Every nvme command starts and does not end."""
    NVME_GARBAGE = "nvme-garbage"
    """Every nvme command prints what is no answer, and exits with success."""
    NVME_EXITS_ZERO = "nvme-exits-zero"
    """nvme exits with success although it printed an error."""
    NVME_JSON_ERRORS = "nvme-json-errors"
    """nvme prints errors as JSON on its standard output, whatever its version does."""
    ZERO_FAILS = "zero-fails"
    """BLKZEROOUT, shred and write-zeroes stop with an I/O error after so many percent (default 50)."""
    ZERO_LEAVES_DATA = "zero-leaves-data"
    """BLKZEROOUT, shred and write-zeroes report success and have written nothing."""
    ZERO_BYTES_PER_SECOND = "zero-bytes-per-second"
    """BLKZEROOUT and shred write so many bytes a second."""
    BLOCK_DEVICES_LATE = "block-devices-late"
    """The host shows what namespace management and formats have changed once the fault is cleared, and not before."""
    HOST_ACTIVATES = "host-activates"
    """The host activates the volume group that a guest has left on the drive, when the drive comes back."""
    HOST_ASSEMBLES = "host-assembles"
    """The host assembles the RAID array that a guest has left on the drive, when the drive comes back."""
    VOLUMES_STAY = "volumes-stay"
    """vgchange and mdadm end nothing that is on the drive: a program has it open."""
    SPAWN_FAILS = "spawn-fails"
    """A guest that is made does not start. Of the whole host."""
    SPAWN_HANGS = "spawn-hangs"
    """A guest that is made hangs for so many seconds (default 60), and then does not start. Of the whole host."""
    DESTROY_FAILS = "destroy-fails"
    """A guest cannot be ended, and keeps what it has. Of the whole host."""


NEEDS_VALUE = frozenset({FaultKind.SANITIZE_SECONDS, FaultKind.NVME_SLOW, FaultKind.ZERO_BYTES_PER_SECOND})

OF_THE_HOST = frozenset({FaultKind.NVME_MISSING, FaultKind.SPAWN_FAILS, FaultKind.SPAWN_HANGS, FaultKind.DESTROY_FAILS})
"""Those that are not of one drive."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

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
"""The faults in force for one drive, with their values."""


class FaultBook:
    """The faults of one host, kept in ``faults.json``: ``{address or "*": {kind: value}}``.

    :param root: the simulated host's directory.
    """

    def __init__(self, root: Path) -> None:
        self._path = root / "faults.json"
        self._lock = root / "state" / "faults.lock"
        self._nvme = root / "bin" / "nvme"

    def read(self) -> dict[str, dict[str, float | None]]:
        """Every fault, as in the file."""
        try:
            book: dict[str, dict[str, float | None]] = files.read_json(self._path)
        except FileNotFoundError:
            return {}
        return book

    def active(self, addresses: Sequence[str]) -> Active:
        """The faults of the drive at *addresses*, including those of every drive; the drive's own win."""
        book = self.read()
        return {
            FaultKind(kind): value
            for address in (EVERY_DRIVE, *addresses)
            for kind, value in book.get(address, {}).items()
        }

    def set(self, address: str, *faults: Fault) -> None:
        """Put *faults* in force for *address*, or for every drive (``*``), besides those there are."""
        with files.locked(self._lock):
            book = self.read()
            book.setdefault(address, {}).update({str(fault.kind): fault.value for fault in faults})
            self._write(book)

    def clear(self, address: str | None = None, kind: FaultKind | None = None) -> None:
        """End faults: all of them, those of one address, of one kind, or of both."""
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
