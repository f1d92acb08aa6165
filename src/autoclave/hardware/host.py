"""Where a host's kernel interfaces are: the real roots, or a simulated host's directory."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autoclave.hardware.disk import Disk
from autoclave.hardware.helper import Helper
from autoclave.hardware.tool import Completed


class HoldDisk(Protocol):
    """Holds a disk open exclusively; see :func:`block.hold`."""

    def __call__(self, paths: "HostPaths", path: Path, *, writable: bool) -> Disk: ...


class AnswerTool(Protocol):
    """Answers a command of a simulated host in this process."""

    def __call__(self, argv: Sequence[str]) -> Completed | None:
        """Return what the program would say; None: it has to be run."""
        ...


@dataclass(frozen=True)
class HostPaths:
    """Roots under which the agent looks for the kernel's interfaces.

    :param sysfs: normally ``/sys``.
    :param dev: normally ``/dev``.
    :param proc: normally ``/proc``.
    :param etc: normally ``/etc``; the machine id, and settings of the tools that could take guests' drives.
    :param tools: directories searched for external tools before ``PATH``.
    :param hold_disk: what the nodes of disks stand for; None: block devices.
    :param answer_tool: what answers external tools instead of their programs; None: they are run.
    :param helper: who does what needs root; None: this process does it itself.
    """

    sysfs: Path = Path("/sys")
    dev: Path = Path("/dev")
    proc: Path = Path("/proc")
    etc: Path = Path("/etc")
    tools: tuple[Path, ...] = ()
    hold_disk: HoldDisk | None = None
    helper: Helper | None = None
    answer_tool: AnswerTool | None = None
