"""Erase a drive by exactly one action, without a fallback, and with proof."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from autoclave.exceptions import EraseUnsupported
from autoclave.hardware.command import Commands
from autoclave.hardware.erase.layout import RecordedLayout
from autoclave.hardware.erase.methods import METHODS
from autoclave.hardware.erase.work import EraseControl, EraseWork, Verify
from autoclave.hardware.host import HostPaths
from autoclave.hardware.nvme import Controller
from autoclave.hardware.nvme_cli import NvmeCli
from autoclave.rules.cleanup_policy import CleanupAction, missing
from autoclave.rules.drive_layout import DriveLayout

Evidence = Mapping[str, Any]
"""JSON-serialisable facts that prove a drive clean."""


class Eraser:
    """Erase drives of one host.

    :param poll_interval: seconds between two polls of a running sanitize.
    :param stall_timeout: seconds of unchanged progress after which it is reported as stalled.
    :param verify: how much is read back after zeroing.
    """

    def __init__(
        self,
        paths: HostPaths,
        commands: Commands,
        nvme: NvmeCli,
        *,
        poll_interval: float,
        stall_timeout: float,
        verify: Verify,
    ) -> None:
        self._paths = paths
        self._commands = commands
        self._nvme = nvme
        self._poll_interval = poll_interval
        self._stall_timeout = stall_timeout
        self._verify = verify

    def erase(
        self,
        controller: Controller,
        action: CleanupAction,
        control: EraseControl,
        recorded: DriveLayout | None = None,
    ) -> Evidence:
        """Erase the drive by *action* and return the evidence that proves it clean.

        The caller has verified that it is the right drive, and that nothing uses it. The evidence contains the layout
        of the drive afterwards, if it can be recorded.

        :param recorded: the recorded layout to restore, or None.
        :raises EraseUnsupported: the drive does not support the action; it was not modified.
        :raises EraseFailed: the erase failed or is not proved, or the drive does not have its layout.
        :raises VerifyFailed: it was erased, but the read-back found data.
        :raises EraseTimeout: the deadline passed first; the message describes what the drive may still be doing.
        :raises DeviceVanished: the drive was removed.
        :raises HardwareError: another error keeps the drive from being proved clean.
        """
        work = EraseWork(
            paths=self._paths,
            commands=self._commands,
            nvme=self._nvme.within(control.deadline, control.tools),
            controller=controller,
            action=action,
            control=control,
            poll_interval=self._poll_interval,
            stall_timeout=self._stall_timeout,
            verify=self._verify,
        )
        method = METHODS[action]
        began = datetime.now(UTC)
        with work.bounded("nothing was started"):
            version = work.nvme.version()
            identity = work.nvme.identify(controller.path)
        if missing(action, identity.capabilities) is not None:
            raise EraseUnsupported(f"{work.drive} reports that it does not support {action}; it was not touched")
        replaces = method.replaces_namespaces and identity.capabilities.namespace_management
        layout = RecordedLayout(work, recorded, identity, replaces_namespaces=replaces)
        facts = method.run(work, layout)
        proved = layout.proved()
        return {
            "action": str(action),
            "nvme_cli": version,
            "serial": identity.serial,
            "model": identity.model,
            "firmware": identity.firmware,
            "began": began.isoformat(timespec="seconds"),
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            **facts,
            **({"layout": proved.fields()} if proved is not None and proved.recordable else {}),
        }
