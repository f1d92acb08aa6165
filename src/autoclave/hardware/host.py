"""Where a host's kernel interfaces are: the real roots, or a simulated host's directory."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autoclave.hardware.helper import Helper


@dataclass(frozen=True)
class HostPaths:
    """Roots under which the agent looks for the kernel's interfaces.

    :param sysfs: normally ``/sys``.
    :param dev: normally ``/dev``.
    :param proc: normally ``/proc``.
    :param tools: directories searched for external tools before ``PATH``.
    :param helper: who does what needs root; None: this process does it itself.
    """

    sysfs: Path = Path("/sys")
    dev: Path = Path("/dev")
    proc: Path = Path("/proc")
    tools: tuple[Path, ...] = ()
    helper: "Helper | None" = None
