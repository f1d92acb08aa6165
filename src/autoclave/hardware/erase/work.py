"""Carry what every part of an erase needs: the drive, its progress, its rate.

One erase of one drive: what every part of it needs to know.

Turns the percentages of a tool into progress, and notices when they stand still.

How fast drives of this host were overwritten: what an estimate for the next one rests on.
"""

import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Literal, Protocol

from oslo_log import log as logging

from autoclave.exceptions import DeviceVanished, EraseFailed, EraseTimeout, ToolError, ToolTimeout, WrongDrive
from autoclave.hardware.command import Commands
from autoclave.hardware.host import Deadline, HostPaths, Progress, ProgressSink, ToolSink
from autoclave.hardware.nvme import Controller, controller_at
from autoclave.hardware.nvme_cli import NvmeCli
from autoclave.hardware.nvme_json import NamespaceIdentity
from autoclave.rules.cleanup_policy import CleanupAction


class ProgressMeter:
    """Reports one step of an erase, from entering it as a context to leaving it.

    Standing still is noticed without a call of :meth:`update`, since a tool that hangs causes none;
    it is then reported from another thread. Two reports are never made at a time.

    :param step: what is being done, in words an operator knows.
    :param stall_timeout: seconds of unchanged progress after which it is reported as stalled.
    """

    def __init__(self, sink: ProgressSink, step: str, *, stall_timeout: float) -> None:
        self._sink = sink
        self._step = step
        self._stall_timeout = stall_timeout
        self._lock = threading.Condition()
        self._percent: float | None = None
        self._first: tuple[float, float] | None = None
        self._changed = 0.0
        self._stalled = self._over = False

    def __enter__(self) -> "ProgressMeter":
        with self._lock:
            self._changed = time.monotonic()
            self._report()
        threading.Thread(target=self._watch, name=f"watches {self._step}", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._lock:
            self._over = True
            self._lock.notify()

    def update(self, percent: float) -> None:
        """Say how far it is, 0 to 100."""
        with self._lock:
            if percent != self._percent:
                self._percent = percent
                self._changed = time.monotonic()
                self._first = self._first or (self._changed, percent)
                if self._stalled:
                    self._stalled = False
                    self._lock.notify()
            self._report()

    @property
    def standstill(self) -> str | None:
        """Where progress has stalled, and for how long; None: it has not."""
        with self._lock:
            if not self._stalled:
                return None
            where = "without any progress" if self._percent is None else f"at {self._percent:.0f} %"
            return f"{self._step} has stalled {where} for {time.monotonic() - self._changed:.0f} s"

    def _watch(self) -> None:
        with self._lock:
            while not self._over:
                patience = self._changed + self._stall_timeout - time.monotonic()
                if patience > 0:
                    self._lock.wait(patience)
                elif not self._stalled:
                    self._stalled = True
                    self._report()
                else:
                    self._lock.wait()

    def _report(self) -> None:
        self._sink(Progress(self._percent, self._step, stalled=self._stalled, seconds_left=self._seconds_left()))

    def _seconds_left(self) -> float | None:
        """At the pace so far; none is known before the second figure, nor while it stands still."""
        if self._first is None or self._percent is None or self._stalled:
            return None
        began, at_first = self._first
        gained = self._percent - at_first
        return (time.monotonic() - began) * (100.0 - self._percent) / gained if gained > 0 else None


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


LOG = logging.getLogger(__name__)

FILE_NAME = "erase-rates.json"


class EraseRates:
    """Bytes per second by drive model and cleanup action, remembered in one file of the agent's.

    What is remembered is only for people to read. A file that cannot be read or written is a warning, and is
    never a reason not to erase.

    :param directory: the agent's data directory.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME

    def of(self, model: str, action: str) -> float | None:
        """What drives of *model* did last; None: none was overwritten here yet."""
        rate = self._read().get(model, {}).get(action)
        return float(rate) if isinstance(rate, int | float) and rate > 0 else None

    def remember(self, model: str, action: str, size: int, seconds: float) -> None:
        """A drive of *model* had *size* bytes overwritten in *seconds*."""
        if seconds <= 0 or not size:
            return
        rates = self._read()
        rates.setdefault(model, {})[action] = size / seconds
        fresh = self._path.with_suffix(f".{os.getpid()}")
        try:
            fresh.write_text(json.dumps(rates, indent=1, sort_keys=True), encoding="utf-8")
            fresh.replace(self._path)
        except OSError as error:
            LOG.warning("How long the erase took cannot be remembered in %s: %s", self._path, error.strerror)

    def _read(self) -> dict[str, dict[str, float]]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            LOG.warning("How long earlier erases took cannot be read from %s: %s", self._path, error)
            return {}
        sound = isinstance(found, dict) and all(isinstance(rates, dict) for rates in found.values())
        return found if sound else {}
