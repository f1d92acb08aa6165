"""One erase of one drive: what every part of it needs to know."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Protocol

from autoclave.exceptions import DeviceVanished, EraseFailed, EraseTimeout, ToolError, ToolTimeout, WrongDrive
from autoclave.hardware.command import Commands
from autoclave.hardware.deadline import Deadline
from autoclave.hardware.host import HostPaths
from autoclave.hardware.nvme import Controller, controller_at
from autoclave.hardware.nvme_cli import NvmeCli
from autoclave.hardware.nvme_json import NamespaceIdentity
from autoclave.hardware.progress import ProgressSink
from autoclave.hardware.progress_meter import ProgressMeter
from autoclave.hardware.tool import ToolSink
from autoclave.rules.cleanup_policy import CleanupAction

LEFT_BEHIND = "it is partly overwritten"
"""What an operator must know of a drive whose zeroing has ended early."""

Verify = Literal["none", "sample", "full"]
"""``[nvme] verify``: what is read back after zeroing."""


@dataclass(frozen=True)
class Estimate:
    """A duration and where it comes from.

    :param seconds: None: it cannot be told.
    :param basis: in words an operator knows.
    """

    seconds: float | None
    basis: str


class EraseControl(Protocol):
    """When the erase must be done, and who is told of it."""

    @property
    def deadline(self) -> Deadline: ...
    @property
    def progress(self) -> ProgressSink: ...
    @property
    def tools(self) -> ToolSink: ...


@dataclass(frozen=True)
class EraseWork:
    """One erase of one drive.

    :param nvme: bound to the control's deadline.
    :param poll_interval: seconds between two looks at the drive.
    :param stall_timeout: seconds of unchanged progress after which it is reported as stalled.
    """

    paths: HostPaths
    commands: Commands
    nvme: NvmeCli
    controller: Controller
    action: CleanupAction
    control: EraseControl
    poll_interval: float
    stall_timeout: float
    verify: Verify
    meters: list[ProgressMeter] = field(default_factory=list, init=False, repr=False, compare=False)

    @property
    def drive(self) -> str:
        """What messages call it."""
        return f"{self.controller.address} ({self.controller.name}, serial {self.controller.serial})"

    def meter(self, step: str) -> ProgressMeter:
        """Progress of one step."""
        self.meters.append(ProgressMeter(self.control.progress, step, stall_timeout=self.stall_timeout))
        return self.meters[-1]

    def pause(self) -> None:
        """Wait until the next look, or until the deadline."""
        time.sleep(min(self.poll_interval, self.control.deadline.remaining()))

    def out_of_time(self, left_behind: str) -> EraseTimeout:
        """The error for a deadline that has passed.

        :param left_behind: what an operator must know of the drive now.
        """
        stalled = self.meters[-1].standstill if self.meters else None
        why = f" ({stalled})" if stalled else ""
        return EraseTimeout(f"{self.drive} was not erased within [nvme] cleanup_timeout{why}; {left_behind}")

    def namespace(self, nsid: int) -> NamespaceIdentity:
        """What the drive says of a namespace that is attached to it.

        :raises EraseFailed: it is no longer attached.
        """
        identity = self.nvme.identify_namespace(self.controller.path, nsid)
        if not identity.active:
            raise EraseFailed(
                f"{self.drive}: nvme id-ns {self.controller.path} -n {nsid} shows no blocks: the namespace was "
                "detached or deleted while the drive was being erased; find the program on this host that did so"
            )
        return identity

    @contextmanager
    def bounded(self, left_behind: str) -> Iterator[None]:
        """Give the failures of tools within the context their meaning for the erase.

        :param left_behind: as in :meth:`out_of_time`.
        :raises EraseTimeout: a tool was ended because the deadline has passed.
        :raises DeviceVanished: a tool failed because the controller is gone.
        """
        try:
            yield
        except ToolError as e:
            if isinstance(e, ToolTimeout) and self.control.deadline.passed:
                raise self.out_of_time(left_behind) from e
            self.must_be_there(e)
            raise

    def must_be_there(self, suspicion: Exception) -> None:
        """See whether a failure only means that the controller has gone.

        :raises DeviceVanished: it has.
        """
        here = self.paths.sysfs / "bus/pci/devices" / str(self.controller.address) / "nvme" / self.controller.name
        if not here.exists():
            raise DeviceVanished(f"{self.drive} went away while it was being erased: {suspicion}") from suspicion

    def must_be_same_drive(self) -> Controller:
        """Make sure that the controller's name still means the drive in the slot, and return what it is now.

        The kernel gives the name of a drive that was pulled to the next one that is plugged in, anywhere on the host.
        What is said of the drive by its name counts only between two calls of this.

        :raises WrongDrive: another drive is in the slot, or the one that is has another name now.
        :raises HardwareError: nothing can be said of the slot.
        """
        before, now = self.controller, controller_at(self.paths, self.controller.address)
        if (now.name, now.serial, now.model) != (before.name, before.serial, before.model):
            raise WrongDrive(
                f"{self.drive} is no longer what it was while it was being erased: its slot has {now.name} now, "
                f"{now.model} {now.serial}"
            )
        return now
