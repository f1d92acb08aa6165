"""External commands: found, run without a shell, ended in time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from autoclave.hardware.deadline import Deadline
from autoclave.hardware.host import HostPaths


class ToolSink(Protocol):
    """Told of each external tool before it is waited for, and again when it has ended.

    The agent journals it, so that a restarted agent can wait out a tool that outlived its parent.
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


class Commands:
    """Runs the tools of one host.

    :param paths: whose ``tools`` are searched before ``PATH``.
    """

    def __init__(self, paths: HostPaths) -> None:
        self.paths = paths

    def find(self, name: str) -> str:
        """The path of the executable *name*.

        :raises ToolMissing: there is none.
        """
        raise NotImplementedError

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: Deadline,
        tools: ToolSink | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> Completed:
        """Run *argv* and return what it said, whatever its exit code.

        :raises ToolMissing: the executable does not exist or may not be run.
        :raises ToolTimeout: the deadline passed; its whole process group was killed.
        :raises ToolGarbage: it wrote more than can be a sensible answer; it was killed likewise.
        """
        raise NotImplementedError
