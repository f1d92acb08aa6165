"""Register the erase methods.

All code that depends on the method reads these tables. This is the drivers' inspection, the estimate, what the
privileged helper admits, and the eraser. A new method of drives needs a class such as :class:`EraseMethod`, a line in
:data:`METHODS`, and a row in :mod:`autoclave.rules.cleanup_policy`. That row defines the required capability, and the
policies that allow the method. A new method of other PCI functions needs a class such as
:class:`~autoclave.hardware.erase.function_work.FunctionMethod`, a line in :data:`FUNCTION_METHODS`, and its word in
:mod:`autoclave.rules.reclaim`.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from autoclave.hardware.erase.command import CommandMethod
from autoclave.hardware.erase.format import FormatMethod
from autoclave.hardware.erase.function_work import FunctionMethod
from autoclave.hardware.erase.layout import RecordedLayout
from autoclave.hardware.erase.reset import ResetMethod
from autoclave.hardware.erase.sanitize import SanitizeMethod
from autoclave.hardware.erase.work import EraseRates, EraseWork, Estimate
from autoclave.hardware.erase.zero import ZeroMethod
from autoclave.hardware.host import HostPaths
from autoclave.hardware.nvme import Controller
from autoclave.hardware.nvme_cli import NvmeCli
from autoclave.hardware.nvme_json import ControllerIdentity
from autoclave.hardware.sysfs import PCIFunction
from autoclave.rules.cleanup_policy import CleanupAction
from autoclave.rules.reclaim import ReclaimPolicy


class EraseMethod(Protocol):
    """Erase a drive in one specific way."""

    @property
    def action(self) -> CleanupAction:
        """Return its name in the policy, in ``std_board_info`` and in the evidence."""
        ...

    @property
    def replaces_namespaces(self) -> bool:
        """Return whether it may recreate the namespaces of the drive, so that all storage is overwritten."""
        ...

    @property
    def commands(self) -> Mapping[str, str]:
        """Return regular expressions for the arguments of its external tools, by the name of the tool."""
        ...

    def lack(self, nvme: NvmeCli, controller: Controller, identity: ControllerIdentity) -> str | None:
        """Return why every erase of the drive by this method would fail, or None. Change nothing.

        :raises ToolFailed: the drive refuses a command that the method needs.
        :raises HardwareError: the drive does not answer now, which proves nothing.
        """
        ...

    def estimate(self, nvme: NvmeCli, rates: EraseRates, controller: Controller) -> Estimate:
        """Return the estimated duration of an erase of the drive."""
        ...

    def run(self, work: EraseWork, layout: RecordedLayout) -> Mapping[str, Any]:
        """Erase the drive, restore its layout, and return the evidence.

        :raises EraseUnsupported: the drive refuses the method; it was not modified.
        :raises HardwareError: the drive is not proved clean; see :meth:`Eraser.erase` for the kinds.
        """
        ...


_REGISTERED: tuple[EraseMethod, ...] = (
    SanitizeMethod.crypto(),
    SanitizeMethod.block(),
    FormatMethod.crypto(),
    FormatMethod.user_data(),
    ZeroMethod.by_kernel(),
    ZeroMethod.by_shred(),
)

METHODS: Mapping[CleanupAction, EraseMethod] = {method.action: method for method in _REGISTERED}
"""The erase method of each action."""

_OF_FUNCTIONS: tuple[FunctionMethod, ...] = (ResetMethod(), CommandMethod())

FUNCTION_METHODS: Mapping[str, FunctionMethod] = {method.action: method for method in _OF_FUNCTIONS}
"""The methods of PCI functions other than NVMe drives, by ``clear_action``. None is ever chosen by default."""


def function_lack(paths: HostPaths, function: PCIFunction, policy: ReclaimPolicy) -> str | None:
    """Return why the policy cannot be followed for a function, or None. Change nothing.

    :raises HardwareError: the function does not answer now, which proves nothing.
    """
    if policy.cleanup_action is None:
        return None
    lack = FUNCTION_METHODS[policy.cleanup_action].lack(paths, function, policy.command)
    return None if lack is None else f"clear_action={policy.cleanup_action} cannot be used: {lack}"
