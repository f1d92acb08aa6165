"""One run of an external tool: who is told of it, and what came of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


class ToolSink(Protocol):
    """Told of each external tool before it is waited for, and again when it has ended.

    The agent journals it, so that a restarted agent can wait out a tool that outlived its parent.
    A tool that cannot be ended is never reported as ended.
    """

    def started(self, pid: int, argv: Sequence[str]) -> None: ...
    def ended(self, pid: int) -> None: ...


@dataclass(frozen=True)
class Completed:
    """A command that ended by itself, in time.

    :param argv: the command, its first word resolved to the executable's path.
    :param returncode: its exit code; negative: the signal that ended it.
    :param stdout: what it wrote; bytes that are not UTF-8 stand as ``\\xNN``.
    :param stderr: likewise.
    """

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
