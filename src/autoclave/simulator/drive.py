"""Simulate a drive: namespaces, media and sanitize, in files that outlive every process."""

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from autoclave.exceptions import SimulatorError
from autoclave.simulator import drive_spec, files
from autoclave.simulator.drive_spec import BLOCK, MIB, DriveSpec
from autoclave.simulator.drive_state import (
    FNA_ALL,
    FNA_CRYPTO,
    HALFWAY,
    LBA_FORMATS,
    Action,
    DriveState,
    Namespace,
    Outcome,
    commanded,
    refuse_beside,
)
from autoclave.simulator.faults import Active, FaultKind
from autoclave.simulator.nvme_status import CommandFailed, Status

_FLBAS = 0x1F
_PROTECTION = 8
"""The bytes of metadata that protection information needs."""
_CRYPTO_ERASE = 2


class Drive:
    """Change a drive under its lock; :meth:`open` creates it and advances it to the current time.

    :param directory: the directory of its state and media.
    :param faults: its active faults.
    """

    def __init__(self, directory: Path, state: DriveState, faults: Active) -> None:
        self.directory = directory
        self.state = state
        self.faults = faults

    @classmethod
    def make(cls, directory: Path, spec: DriveSpec, cntlids: Sequence[int]) -> None:
        """Create a drive from *spec*, with its namespaces attached to controllers *cntlids*.

        :raises SimulatorError: this machine lacks the space.
        """
        directory.mkdir(parents=True)
        try:
            cls._make(directory, spec, cntlids)
        except (OSError, OverflowError) as error:
            shutil.rmtree(directory)
            raise SimulatorError(f"{spec.address}: drive {spec.serial} of {spec.size_bytes} bytes: {error}") from error

    @classmethod
    def _make(cls, directory: Path, spec: DriveSpec, cntlids: Sequence[int]) -> None:
        state = DriveState(
            serial=spec.serial,
            model=spec.model,
            firmware=spec.firmware,
            nqn=spec.nqn,
            sanicap=spec.sanicap,
            oacs=spec.oacs,
            oncs=spec.oncs,
            fna=spec.fna,
            capacity=spec.size_bytes + spec.unallocated_bytes + spec.withheld_bytes,
            sanitize_seconds=spec.sanitize_seconds,
            withheld=spec.withheld_bytes,
            granularity=spec.granularity,
            reports_granularity=spec.reports_granularity,
            max_namespaces=spec.max_namespaces,
        )
        shared = spec.subsystem is not None
        blocks = spec.size_bytes // max(1, spec.namespaces) // BLOCK
        for nsid in range(1, spec.namespaces + 1):
            state.namespaces[nsid] = Namespace(blocks=blocks, flbas=0, attached=list(cntlids), shared=shared)
        drive = cls(directory, state, {})
        for nsid, namespace in state.namespaces.items():
            drive_spec.make(drive.media(nsid), namespace.size)
        drive_spec.make(drive.unallocated_media, state.free)
        drive.save()

    @classmethod
    @contextmanager
    def open(cls, directory: Path, faults: Active) -> Iterator["Drive"]:
        """Lock the drive, advance it to the current time, and save the caller's changes unless it raises."""
        with files.locked(directory / "lock"):
            drive = cls(directory, cls.peek_state(directory), faults)
            drive._settle(time.time())
            yield drive
            drive.save()

    @staticmethod
    def peek_state(directory: Path) -> DriveState:
        """Return the last saved state of the drive, without waiting for its lock."""
        return DriveState.from_json(files.read_json(directory / "state.json"))

    def save(self) -> None:
        files.write_json(self.directory / "state.json", self.state.to_json())

    def media(self, nsid: int) -> Path:
        """Return the file with the bytes of namespace *nsid*."""
        return self.directory / f"ns{nsid}"

    @property
    def unallocated_media(self) -> Path:
        """Return the file with the unallocated bytes, including those of deleted namespaces."""
        return self.directory / "unallocated"

    @property
    def all_media(self) -> list[Path]:
        return [*(self.media(nsid) for nsid in self.state.namespaces), self.unallocated_media]

    @property
    def progress(self) -> float | None:
        """Return the percentage of the running sanitize, or None."""
        operation = self.state.operation
        return operation.fraction * 100 if operation and operation.running else None

    def _settle(self, now: float) -> None:
        before = self.state.operation
        if before is None or not before.running:
            return
        after = before.advanced(now, self.state.sanitize_seconds, self.faults)
        done = after.outcome in (Outcome.COMPLETED, Outcome.COMPLETED_WITHOUT_DEALLOCATION)
        if done or (after.verifying and not before.verifying):
            # Erase the media first: a crash between the two leaves an operation that still runs.
            self._erase(after.action)
            self.state.global_erased = True
        self.state.operation = after
        self.save()

    def _erase(self, action: Action) -> None:
        for path in self.all_media:
            self._erase_media(path, crypto=action == Action.CRYPTO_ERASE)

    def _erase_media(self, path: Path, *, crypto: bool) -> None:
        if crypto:
            drive_spec.scramble(path)
        else:
            self._zero(path, 0, path.stat().st_size)

    def check_not_sanitizing(self) -> None:
        """Refuse the commands that a controller refuses during a sanitize and after a failed one.

        :raises CommandFailed: Sanitize In Progress or Sanitize Failed.
        """
        refuse_beside(self.state.operation)

    def sanitize(self, cdw10: int) -> None:
        """Execute the Sanitize command: start an operation, or leave failure mode.

        :raises CommandFailed: it is not supported, or not allowed now.
        """
        self.state.operation = commanded(self.state.operation, cdw10, self.state.sanicap, time.time())
        if self.progress is not None:
            self.state.global_erased = False

    def format(self, nsid: int | None, flbas: int, dps: int, erase: int) -> None:
        """Execute the Format NVM command. Without a secure erase all bytes stay the same, the worst permitted case.

        :param nsid: the namespace; None for all.
        :param erase: SES: 1 user data erase, 2 cryptographic erase.
        :raises CommandFailed: see the NVMe specification.
        """
        if not self.state.formats:
            raise CommandFailed(Status.INVALID_OPCODE)
        self.check_not_sanitizing()
        if FaultKind.FORMAT_FAILS in self.faults or FaultKind.FORMAT_HANGS in self.faults:
            raise CommandFailed(Status.INTERNAL_ERROR)
        metadata = LBA_FORMATS[flbas & 0xF][0] if flbas & 0xF < len(LBA_FORMATS) else None
        if FaultKind.FORMAT_REFUSED in self.faults or metadata is None or (dps & 7 and metadata < _PROTECTION):
            raise CommandFailed(Status.INVALID_FORMAT)
        if erase > _CRYPTO_ERASE or (erase == _CRYPTO_ERASE and not self.state.fna & FNA_CRYPTO):
            raise CommandFailed(Status.INVALID_FIELD)
        if nsid is not None:
            self.namespace(nsid)
        meant = list(self.state.namespaces) if nsid is None or self.state.fna & FNA_ALL else [nsid]
        for each in meant:
            if erase and FaultKind.FORMAT_LEAVES_DATA not in self.faults:
                self._erase_media(self.media(each), crypto=erase == _CRYPTO_ERASE)
            if FaultKind.FORMAT_LEAVES_LAYOUT not in self.faults:
                namespace = self.state.namespaces[each]
                namespace.flbas, namespace.dps = flbas, dps
                # The media keep their size: bytes that do not fill a large block are usable again with smaller ones.
                namespace.blocks = self.media(each).stat().st_size // namespace.block_size

    def create_namespace(self, blocks: int, flbas: int, *, shared: bool, dps: int = 0) -> int:
        """Execute the Namespace Management command, create; return the new id, which is not attached.

        It gets unallocated blocks, and their former data can be read.

        :raises CommandFailed: see the NVMe specification.
        """
        if not self.state.manages_namespaces or FaultKind.CREATE_NS_REFUSED in self.faults:
            raise CommandFailed(Status.INVALID_OPCODE)
        self.check_not_sanitizing()
        if not blocks or flbas & ~_FLBAS or flbas & 0xF >= len(LBA_FORMATS):
            raise CommandFailed(Status.INVALID_FIELD)
        created = Namespace(blocks=blocks, flbas=flbas, attached=[], shared=shared, dps=dps)
        if FaultKind.CREATE_NS_INVALID in self.faults:
            least = self.faults[FaultKind.CREATE_NS_INVALID]
            if least is None or created.size < least * MIB:
                raise CommandFailed(Status.INVALID_FIELD)
        if self.state.takes(created.size) > self.state.free or FaultKind.CREATE_NS_NO_ROOM in self.faults:
            raise CommandFailed(Status.INSUFFICIENT_CAPACITY)
        nsid = next((n for n in range(1, self.state.max_namespaces + 1) if n not in self.state.namespaces), None)
        if nsid is None:
            raise CommandFailed(Status.NSID_UNAVAILABLE)
        left = self.state.free - created.size
        drive_spec.make(self.media(nsid), 0)
        drive_spec.move(self.unallocated_media, 0, self.media(nsid), 0, created.size)
        remainder = self.directory / "unallocated.new"
        drive_spec.make(remainder, 0)
        drive_spec.move(self.unallocated_media, created.size, remainder, 0, left)
        remainder.replace(self.unallocated_media)
        self.state.namespaces[nsid] = created
        return nsid

    def delete_namespace(self, nsid: int) -> None:
        """Execute the Namespace Management command, delete; it detaches the namespace.

        :raises CommandFailed: the namespace does not exist, or the command is not supported.
        """
        if not self.state.manages_namespaces:
            raise CommandFailed(Status.INVALID_OPCODE)
        self.check_not_sanitizing()
        namespace = self.namespace(nsid)
        drive_spec.move(self.media(nsid), 0, self.unallocated_media, self.state.free, namespace.size)
        self.media(nsid).unlink()
        del self.state.namespaces[nsid]

    def attach(self, nsid: int, cntlids: Sequence[int]) -> None:
        """Execute the Namespace Attachment command, attach.

        :raises CommandFailed: the namespace does not exist, is attached already, or is private.
        """
        namespace = self._attachment(nsid)
        if any(cntlid in namespace.attached for cntlid in cntlids):
            raise CommandFailed(Status.ALREADY_ATTACHED)
        if not namespace.shared and len(namespace.attached) + len(cntlids) > 1:
            raise CommandFailed(Status.NAMESPACE_IS_PRIVATE)
        namespace.attached.extend(cntlids)

    def detach(self, nsid: int, cntlids: Sequence[int]) -> None:
        """Execute the Namespace Attachment command, detach.

        :raises CommandFailed: the namespace does not exist, or is not attached.
        """
        namespace = self._attachment(nsid)
        if any(cntlid not in namespace.attached for cntlid in cntlids):
            raise CommandFailed(Status.NOT_ATTACHED)
        namespace.attached = [cntlid for cntlid in namespace.attached if cntlid not in cntlids]

    def _attachment(self, nsid: int) -> Namespace:
        if not self.state.manages_namespaces:
            raise CommandFailed(Status.INVALID_OPCODE)
        self.check_not_sanitizing()
        return self.namespace(nsid)

    def namespace(self, nsid: int) -> Namespace:
        """Return namespace *nsid*, attached or not.

        :raises CommandFailed: it does not exist.
        """
        if nsid not in self.state.namespaces:
            raise CommandFailed(Status.INVALID_NAMESPACE)
        return self.state.namespaces[nsid]

    def write_zeroes(self, nsid: int, first_block: int, blocks: int) -> None:
        """Execute the Write Zeroes command.

        :param blocks: at most 65,536 (the command's count is 16 bits wide, and zero-based).
        :raises CommandFailed: see the NVMe specification.
        """
        if not self.state.writes_zeroes:
            raise CommandFailed(Status.INVALID_OPCODE)
        self.check_not_sanitizing()
        namespace = self.namespace(nsid)
        if first_block + blocks > namespace.blocks:
            raise CommandFailed(Status.LBA_OUT_OF_RANGE)
        end = (first_block + blocks) / namespace.blocks * 100
        if FaultKind.ZERO_FAILS in self.faults and end > self.zero_fails_at:
            raise CommandFailed(Status.WRITE_FAULT)
        if FaultKind.ZERO_LEAVES_DATA not in self.faults:
            self.zero(nsid, first_block * namespace.block_size, blocks * namespace.block_size)

    @property
    def zero_fails_at(self) -> float:
        """Return the percentage at which zeroing fails, if the fault is active."""
        value = self.faults.get(FaultKind.ZERO_FAILS)
        return HALFWAY if value is None else value

    def zero(self, nsid: int, offset: int, length: int) -> None:
        """Write zeros, for any command. Offsets and lengths here and below are in bytes."""
        self.state.global_erased = False
        self._zero(self.media(nsid), offset, length)

    @staticmethod
    def _zero(path: Path, offset: int, length: int) -> None:
        with path.open("r+b", buffering=0) as opened:
            drive_spec.zero(opened.fileno(), offset, length)

    def write(self, nsid: int, offset: int, data: bytes) -> None:
        """Write *data*, as any user of the drive does.

        :raises CommandFailed: a sanitize is running or has failed, or the range is out of bounds.
        """
        self.check_not_sanitizing()
        if offset < 0 or offset + len(data) > self.namespace(nsid).size:
            raise CommandFailed(Status.LBA_OUT_OF_RANGE)
        self.state.global_erased = False
        with self.media(nsid).open("r+b") as target:
            target.seek(offset)
            target.write(data)

    def peek(self, nsid: int, offset: int, length: int) -> bytes:
        """Return the bytes on the media, whatever the controller would return.

        :raises CommandFailed: the namespace does not exist, or the range is out of bounds.
        """
        if offset < 0 or length < 0 or offset + length > self.namespace(nsid).size:
            raise CommandFailed(Status.LBA_OUT_OF_RANGE)
        with self.media(nsid).open("rb") as source:
            source.seek(offset)
            return source.read(length)

    def find(self, data: bytes) -> bool:
        """Return whether *data* is anywhere on the media, in a namespace or not."""
        return any(drive_spec.find(path, data) is not None for path in self.all_media)
