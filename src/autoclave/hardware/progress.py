"""How far a long piece of work on a drive is."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Progress:
    """How far an erase is.

    :param percent: 0 to 100, or None while the tool has not said.
    :param step: what is being done, in words an operator knows.
    :param stalled: progress has stood still for long, see ``[nvme] stall_timeout``.
    :param seconds_left: estimate, or None.
    """

    percent: float | None
    step: str
    stalled: bool = False
    seconds_left: float | None = None


class ProgressSink(Protocol):
    """Receives progress; must not raise."""

    def __call__(self, progress: Progress) -> None: ...
