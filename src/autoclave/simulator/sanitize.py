"""A sanitize operation, from the command that starts it to the status it leaves behind."""

from dataclasses import dataclass, replace
from enum import IntEnum

from autoclave.simulator.faults import Active, FaultKind

HALFWAY = 50.0
"""Percent at which a fault strikes that says nothing else."""


class Action(IntEnum):
    """SANACT, Sanitize command dword 10, bits 2:0."""

    EXIT_FAILURE_MODE = 1
    BLOCK_ERASE = 2
    OVERWRITE = 3
    CRYPTO_ERASE = 4


class Outcome(IntEnum):
    """SSTAT bits 2:0 of the Sanitize Status log page (81h)."""

    NEVER = 0
    COMPLETED = 1
    IN_PROGRESS = 2
    FAILED = 3
    COMPLETED_WITHOUT_DEALLOCATION = 4


_AUSE = 1 << 3
_NO_DEALLOCATE = 1 << 9


@dataclass(frozen=True)
class Operation:
    """The most recent sanitize operation of a drive.

    :param cdw10: dword 10 of the command that started it.
    :param outcome: an :class:`Outcome`.
    :param fraction: how much of it is done, 0 to 1.
    :param seen: the time, in seconds since the epoch, at which *fraction* was right.
    :param failure_mode: it failed, and nothing has got the drive out of that yet.
    """

    cdw10: int
    outcome: int
    fraction: float
    seen: float
    failure_mode: bool = False

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
        """AUSE: after a failure the host may leave failure mode without another sanitize."""
        return bool(self.cdw10 & _AUSE)

    def advanced(self, now: float, seconds: float, faults: Active) -> "Operation":
        """The operation as it is at *now*, if it takes *seconds* and *faults* have held since it was last seen."""
        if not self.running:
            return self
        if FaultKind.SANITIZE_SECONDS in faults:
            seconds = faults[FaultKind.SANITIZE_SECONDS] or 0.0
        elapsed = max(0.0, now - self.seen)
        fraction = min(1.0, self.fraction + elapsed / seconds) if seconds else 1.0
        if FaultKind.SANITIZE_HANGS in faults:
            fraction = min(fraction, max(self.fraction, _percent(faults, FaultKind.SANITIZE_HANGS)), 0.999)
        if FaultKind.SANITIZE_FAILS in faults and fraction >= _percent(faults, FaultKind.SANITIZE_FAILS):
            return replace(self, fraction=fraction, seen=now, outcome=Outcome.FAILED, failure_mode=True)
        if fraction >= 1.0:
            done = Outcome.COMPLETED_WITHOUT_DEALLOCATION if self.cdw10 & _NO_DEALLOCATE else Outcome.COMPLETED
            return replace(self, fraction=1.0, seen=now, outcome=done)
        return replace(self, fraction=fraction, seen=now)


def _percent(faults: Active, kind: FaultKind) -> float:
    value = faults[kind]
    return (HALFWAY if value is None else min(value, 100.0)) / 100
