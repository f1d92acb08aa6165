"""Register the erase methods of NVMe drives.

Whatever depends on the method of an erase reads this table: the driver's look at a drive, the estimate, the commands
that the privileged helper runs, and the eraser. A new method is a module with a class such as :class:`EraseMethod`,
its line in :data:`METHODS`, and its row in :mod:`autoclave.rules.cleanup_policy`, which says what a controller needs
for it and which policy allows it.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from autoclave.hardware.erase.format import FormatMethod
from autoclave.hardware.erase.layout import RecordedLayout
from autoclave.hardware.erase.sanitize import SanitizeMethod
from autoclave.hardware.erase.work import EraseRates, EraseWork, Estimate
from autoclave.hardware.erase.zero import ZeroMethod
from autoclave.hardware.nvme import Controller
from autoclave.hardware.nvme_cli import NvmeCli
from autoclave.hardware.nvme_json import ControllerIdentity
from autoclave.rules.cleanup_policy import CleanupAction


class EraseMethod(Protocol):
    """One way to erase a drive."""

    @property
    def action(self) -> CleanupAction:
        """Its name in the policy, in ``std_board_info`` and in the evidence."""
        ...

    @property
    def replaces_namespaces(self) -> bool:
        """Whether it may make the namespaces of the drive anew, so that all of the storage is overwritten."""
        ...

    @property
    def commands(self) -> Mapping[str, str]:
        """Regular expressions of the arguments with which it runs external tools, by the name of the tool."""
        ...

    def lack(self, nvme: NvmeCli, controller: Controller, identity: ControllerIdentity) -> str | None:
        """Return why every erase of the drive by this method would fail, or None. Nothing is changed.

        :raises ToolFailed: the drive refuses a command that the method needs.
        :raises HardwareError: the drive does not answer now, from which nothing follows.
        """
        ...

    def estimate(self, nvme: NvmeCli, rates: EraseRates, controller: Controller) -> Estimate:
        """Return how long an erase of the drive takes."""
        ...

    def run(self, work: EraseWork, layout: RecordedLayout) -> Mapping[str, Any]:
        """Erase the drive, restore its layout, and return the evidence.

        :raises EraseUnsupported: the drive refuses the method; it was not touched.
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
