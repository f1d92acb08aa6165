"""Hold the persistent state of a simulated drive: its features, its namespaces, its last sanitize."""

from dataclasses import asdict, dataclass, field, replace
from enum import IntEnum
from typing import Any

from autoclave.simulator.faults import Active, FaultKind
from autoclave.simulator.nvme_status import CommandFailed, Status

HALFWAY = 50.0
"""The default percentage at which a fault occurs."""


class Action(IntEnum):
    """List the values of SANACT, Sanitize command dword 10, bits 2:0."""

    EXIT_FAILURE_MODE = 1
    BLOCK_ERASE = 2
    OVERWRITE = 3
    CRYPTO_ERASE = 4
    EXIT_MEDIA_VERIFICATION = 5


_SANICAP_BIT = {Action.CRYPTO_ERASE: 1 << 0, Action.BLOCK_ERASE: 1 << 1, Action.OVERWRITE: 1 << 2}


class Outcome(IntEnum):
    """List the values of SSTAT bits 2:0 of the Sanitize Status log page (81h)."""

    NEVER = 0
    COMPLETED = 1
    IN_PROGRESS = 2
    FAILED = 3
    COMPLETED_WITHOUT_DEALLOCATION = 4


_AUSE = 1 << 3
_NO_DEALLOCATE = 1 << 9
_ENTER_MEDIA_VERIFICATION = 1 << 10


@dataclass(frozen=True)
class Operation:
    """Describe the most recent sanitize operation of a drive.

    :param cdw10: dword 10 of the command that started it.
    :param outcome: an :class:`Outcome`.
    :param fraction: the completed part, 0 to 1.
    :param seen: the time of *fraction*, in seconds since the epoch.
    :param failure_mode: it failed, and the drive has not left failure mode yet.
    :param verifying: the erase is complete, and the drive is in Media Verification.
    """

    cdw10: int
    outcome: int
    fraction: float
    seen: float
    failure_mode: bool = False
    verifying: bool = False

    @classmethod
    def start(cls, cdw10: int, now: float) -> "Operation":
        return cls(cdw10=cdw10, outcome=Outcome.IN_PROGRESS, fraction=0.0, seen=now)

    @property
    def action(self) -> Action:
        return Action(self.cdw10 & 7)

    @property
    def running(self) -> bool:
        return self.outcome == Outcome.IN_PROGRESS

    @property
    def unrestricted(self) -> bool:
        """Return AUSE: after a failure, the host may leave failure mode without another sanitize."""
        return bool(self.cdw10 & _AUSE)

    def advanced(self, now: float, seconds: float, faults: Active) -> "Operation":
        """Return the operation at time *now*, for a duration of *seconds*, with *faults* active since *seen*."""
        if not self.running or self.verifying:
            return self
        if FaultKind.SANITIZE_SECONDS in faults:
            seconds = faults[FaultKind.SANITIZE_SECONDS] or 0.0
        elapsed = max(0.0, now - self.seen)
        fraction = min(1.0, self.fraction + elapsed / seconds) if seconds else 1.0
        if FaultKind.SANITIZE_HANGS in faults:
            fraction = min(fraction, max(self.fraction, _percent(faults, FaultKind.SANITIZE_HANGS)), 0.999)
        vanishes_at = faults.get(FaultKind.VANISHES)
        if vanishes_at is not None and vanishes_at < 100:
            # The drive vanishes with the next command, so the operation never advances beyond that point.
            fraction = min(fraction, max(self.fraction, vanishes_at / 100))
        if FaultKind.SANITIZE_FAILS in faults and fraction >= _percent(faults, FaultKind.SANITIZE_FAILS):
            return replace(self, fraction=fraction, seen=now, outcome=Outcome.FAILED, failure_mode=True)
        if fraction >= 1.0 and (self.cdw10 & _ENTER_MEDIA_VERIFICATION or FaultKind.SANITIZE_VERIFIES in faults):
            return replace(self, fraction=1.0, seen=now, verifying=True)
        if fraction >= 1.0:
            done = Outcome.COMPLETED_WITHOUT_DEALLOCATION if self.cdw10 & _NO_DEALLOCATE else Outcome.COMPLETED
            return replace(self, fraction=1.0, seen=now, outcome=done)
        return replace(self, fraction=fraction, seen=now)


def refuse_beside(operation: Operation | None) -> None:
    """Refuse the commands that a controller refuses while *operation* runs, and after it has failed.

    :raises CommandFailed: Sanitize In Progress or Sanitize Failed.
    """
    if operation and operation.running:
        raise CommandFailed(Status.SANITIZE_IN_PROGRESS)
    if operation and operation.failure_mode:
        raise CommandFailed(Status.SANITIZE_FAILED)


def commanded(previous: Operation | None, cdw10: int, sanicap: int, now: float) -> Operation | None:
    """Return the operation after the Sanitize command: a new one, or *previous* out of failure mode.

    After the failure of an operation without AUSE, only another one without AUSE is allowed. Otherwise, any operation
    and Exit Failure Mode are allowed.

    :raises CommandFailed: it is not supported, or not allowed now.
    """
    code = cdw10 & 7
    if previous and previous.verifying and code == Action.EXIT_MEDIA_VERIFICATION:
        return replace(previous, verifying=False, outcome=Outcome.COMPLETED)
    if previous and previous.running:
        raise CommandFailed(Status.SANITIZE_IN_PROGRESS)
    if not sanicap & 7:
        raise CommandFailed(Status.INVALID_OPCODE)
    failed_restricted = previous is not None and previous.failure_mode and not previous.unrestricted
    if code == Action.EXIT_FAILURE_MODE:
        if failed_restricted:
            raise CommandFailed(Status.SANITIZE_FAILED)
        return previous and replace(previous, failure_mode=False)
    if code not in tuple(_SANICAP_BIT) or not sanicap & _SANICAP_BIT[Action(code)]:
        raise CommandFailed(Status.INVALID_FIELD)
    started = Operation.start(cdw10, now)
    if failed_restricted and started.unrestricted:
        raise CommandFailed(Status.SANITIZE_FAILED)
    return started


def _percent(faults: Active, kind: FaultKind) -> float:
    value = faults[kind]
    return (HALFWAY if value is None else min(value, 100.0)) / 100


LBA_FORMATS: tuple[tuple[int, int], ...] = ((0, 9), (8, 9), (16, 9), (64, 9), (0, 12), (8, 12), (16, 12), (64, 12))
"""The LBA formats by index: (metadata bytes, log2 of the data bytes)."""

FNA_ALL, FNA_CRYPTO = 0b011, 0b100
"""FNA bits: formats and secure erases reach all namespaces; Format NVM has cryptographic erase."""

_OACS_FORMAT_NVM = 1 << 1
_OACS_NAMESPACE_MANAGEMENT = 1 << 3
_ONCS_WRITE_ZEROES = 1 << 3


@dataclass
class Namespace:
    """Describe one namespace.

    :param blocks: NSZE, in logical blocks.
    :param flbas: index into :data:`LBA_FORMATS`; bit 4 is set if metadata follows the data of each block.
    :param attached: ids of the controllers to which it is attached.
    :param shared: it may be attached to several controllers (NMIC bit 0).
    :param dps: protection information.
    :param without_storage: blocks by which NCAP is less than NSZE.
    """

    blocks: int
    flbas: int
    attached: list[int]
    shared: bool
    dps: int = 0
    without_storage: int = 0

    @property
    def lba_format(self) -> int:
        return self.flbas & 0xF

    @property
    def block_size(self) -> int:
        return 1 << LBA_FORMATS[self.lba_format][1]

    @property
    def shown_size(self) -> int:
        """Return the bytes of the block device: Linux shows none if it does not support the metadata."""
        return 0 if LBA_FORMATS[self.lba_format][0] else self.size

    @property
    def size(self) -> int:
        """Return its size in bytes."""
        return self.blocks * self.block_size


@dataclass
class DriveState:
    """Hold the state that a drive keeps without power."""

    serial: str
    model: str
    firmware: str
    nqn: str
    sanicap: int
    oacs: int
    oncs: int
    capacity: int
    sanitize_seconds: float
    withheld: int = 0
    granularity: int = 0
    reports_granularity: bool = False
    max_namespaces: int = 256
    namespaces: dict[int, Namespace] = field(default_factory=dict)
    operation: Operation | None = None
    global_erased: bool = False
    fna: int = 0

    @property
    def formats(self) -> bool:
        """Return whether it has the Format NVM command."""
        return bool(self.oacs & _OACS_FORMAT_NVM)

    @property
    def manages_namespaces(self) -> bool:
        """Return whether it has Namespace Management and Namespace Attachment."""
        return bool(self.oacs & _OACS_NAMESPACE_MANAGEMENT)

    @property
    def writes_zeroes(self) -> bool:
        """Return whether it has the Write Zeroes command."""
        return bool(self.oncs & _ONCS_WRITE_ZEROES)

    @property
    def unallocated(self) -> int:
        """Return the bytes in no namespace."""
        return self.capacity - sum(self.takes(namespace.size) for namespace in self.namespaces.values())

    @property
    def free(self) -> int:
        """Return the unallocated bytes that a namespace can get."""
        return self.unallocated - self.withheld

    def takes(self, size: int) -> int:
        """Return the bytes of capacity that a namespace of *size* occupies."""
        return -(-size // self.granularity) * self.granularity if self.granularity else size

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "DriveState":
        namespaces = {int(nsid): Namespace(**fields) for nsid, fields in document.pop("namespaces").items()}
        operation = document.pop("operation")
        return cls(**document, namespaces=namespaces, operation=operation and Operation(**operation))
