"""Where a host's kernel interfaces are: the real roots, or a simulated host's directory."""

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autoclave.hardware.disk import Disk
from autoclave.hardware.helper import Helper


class HoldDisk(Protocol):
    """Holds a disk open exclusively; see :func:`block.hold`."""

    def __call__(self, paths: "HostPaths", path: Path, *, writable: bool) -> Disk: ...


@dataclass(frozen=True)
class HostPaths:
    """Roots under which the agent looks for the kernel's interfaces.

    :param sysfs: normally ``/sys``.
    :param dev: normally ``/dev``.
    :param proc: normally ``/proc``.
    :param etc: normally ``/etc``; only the machine id is read there.
    :param tools: directories searched for external tools before ``PATH``.
    :param hold_disk: what the nodes of disks stand for; None: block devices.
    :param helper: who does what needs root; None: this process does it itself.
    """

    sysfs: Path = Path("/sys")
    dev: Path = Path("/dev")
    proc: Path = Path("/proc")
    etc: Path = Path("/etc")
    tools: tuple[Path, ...] = ()
    hold_disk: HoldDisk | None = None
    helper: Helper | None = None
