"""Hold what an erase of a PCI function needs, for any of its methods."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from autoclave.hardware.command import Commands
from autoclave.hardware.erase.work import EraseControl, ProgressMeter
from autoclave.hardware.host import HostPaths
from autoclave.hardware.sysfs import PCIFunction


@dataclass(frozen=True)
class FunctionWork:
    """Hold the context of one cleaning of one function.

    :param device_uuid: its device.
    :param command: the configured program and its arguments; empty for methods without one.
    :param stall_timeout: seconds of unchanged progress after which it is reported as stalled.
    """

    paths: HostPaths
    commands: Commands
    function: PCIFunction
    device_uuid: str
    command: Sequence[str]
    control: EraseControl
    stall_timeout: float

    @property
    def name(self) -> str:
        """Return the name of the function in messages."""
        return f"{self.function.address} ({self.function.vendor_id}:{self.function.product_id})"

    def meter(self, step: str) -> ProgressMeter:
        """Create the progress meter of one step."""
        return ProgressMeter(self.control.progress, step, stall_timeout=self.stall_timeout)


class FunctionMethod(Protocol):
    """Clean a PCI function in one specific way."""

    @property
    def action(self) -> str:
        """Return its name in the configuration, in ``std_board_info`` and in the evidence."""
        ...

    @property
    def attributes(self) -> Mapping[str, str]:
        """Return regular expressions for the text of each sysfs attribute that it writes."""
        ...

    def lack(self, paths: HostPaths, function: PCIFunction, command: Sequence[str]) -> str | None:
        """Return why every cleaning of the function by this method would fail, or None. Change nothing.

        :raises HardwareError: the function does not answer now, which proves nothing.
        """
        ...

    def run(self, work: FunctionWork) -> Mapping[str, Any]:
        """Clean the function, and return the evidence.

        :raises HardwareError: the function is not clean.
        """
        ...
