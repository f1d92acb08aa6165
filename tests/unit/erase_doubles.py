"""What tests of erasing stand on: somebody who watches, and a way to the Eraser."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from autoclave.exceptions import ToolTimeout
from autoclave.hardware.command import Commands
from autoclave.hardware.erase.eraser import Eraser
from autoclave.hardware.host import Completed, Deadline, HostPaths, Progress
from autoclave.hardware.nvme_cli import NvmeCli


class Watcher:
    """A control that remembers what it was told. It is its own sink of tools.

    :param seconds: until the deadline.
    :attr on_progress: called with each progress.
    """

    def __init__(self, seconds: float = 60) -> None:
        self.deadline = Deadline.after(seconds)
        self.seen: list[Progress] = []
        self.running: dict[int, list[str]] = {}
        self.argvs: list[list[str]] = []
        self.on_progress: Callable[[Progress], None] = lambda progress: None

    def progress(self, progress: Progress) -> None:
        self.seen.append(progress)
        self.on_progress(progress)

    @property
    def tools(self) -> "Watcher":
        return self

    def started(self, pid: int, argv: list[str]) -> None:
        self.running[pid] = list(argv)
        self.argvs.append(list(argv))

    def ended(self, pid: int) -> None:
        del self.running[pid]

    @property
    def steps(self) -> list[str]:
        """The steps in their order, each once."""
        return list(dict.fromkeys(progress.step for progress in self.seen))


def by_programs(paths: HostPaths) -> HostPaths:
    """A simulated host each of whose tools is run as a program, as on a real one: a watcher sees no others."""
    return replace(paths, answer_tool=None)


def eraser(paths: HostPaths, **changes: object) -> Eraser:
    """An Eraser that is in a hurry."""
    commands = Commands(paths)
    settings = {"poll_interval": 0.01, "stall_timeout": 60.0, "verify": "full"} | changes
    return Eraser(paths, commands, NvmeCli(commands, command_timeout=30), **settings)


def hangs(paths: HostPaths, watcher: Watcher, hanging: Callable[[Sequence[str]], bool]) -> HostPaths:
    """Return the host on which a command hangs until the watcher's deadline, without the wait for it.

    :param hanging: whether a command is the one that hangs.
    """

    def answer(argv: Sequence[str]) -> Completed | None:
        if hanging(argv):
            watcher.deadline = Deadline.after(0)
            raise ToolTimeout(f"nvme {argv[1]} ran past its deadline and was killed", argv)
        return None if paths.answer_tool is None else paths.answer_tool(argv)

    return replace(paths, answer_tool=answer)
