"""Hold what every part of an erase needs: the drive, its progress, its rate."""

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

LOG = logging.getLogger(__name__)


class ProgressMeter:
    """Report one step of an erase while its context is open.

    A separate thread reports a stalled step, since a hanging tool never calls :meth:`update`. Reports are never made
    concurrently.

    :param step: the current step, in an operator's terms.
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

    def update(self, percent: float, step: str | None = None) -> None:
        """Report the progress, 0 to 100, and a new name of the step if it has one."""
        with self._lock:
            self._step = step or self._step
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
        """Describe where progress has stalled, and for how long; None if it has not."""
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
        """Estimate the seconds left at the pace so far; None before the second value, and while stalled."""
        if self._first is None or self._percent is None or self._stalled:
            return None
        began, at_first = self._first
        gained = self._percent - at_first
        return (time.monotonic() - began) * (100.0 - self._percent) / gained if gained > 0 else None


LEFT_BEHIND = "it is partly overwritten"
"""The state, for the operator, of a drive whose zeroing ended early."""

Verify = Literal["none", "sample", "full"]
"""The values of ``[nvme] verify``: how much is read back after zeroing."""


@dataclass(frozen=True)
class Estimate:
    """Hold an estimated duration and its source.

    :param seconds: None if unknown.
    :param basis: its source, in an operator's terms.
    """

    seconds: float | None
    basis: str


class EraseControl(Protocol):
    """Provide the deadline of the erase, and the receivers of its reports."""

    @property
    def deadline(self) -> Deadline: ...
    @property
    def progress(self) -> ProgressSink: ...
    @property
    def tools(self) -> ToolSink: ...


@dataclass(frozen=True)
class EraseWork:
    """Hold the context of one erase of one drive.

    :param nvme: bound to the control's deadline.
    :param poll_interval: seconds between two polls of the drive.
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
        """Return the name of the drive in messages."""
        return f"{self.controller.address} ({self.controller.name}, serial {self.controller.serial})"

    def meter(self, step: str) -> ProgressMeter:
        """Create the progress meter of one step."""
        self.meters.append(ProgressMeter(self.control.progress, step, stall_timeout=self.stall_timeout))
        return self.meters[-1]

    def pause(self) -> None:
        """Wait until the next poll, or until the deadline."""
        time.sleep(min(self.poll_interval, self.control.deadline.remaining()))

    def out_of_time(self, left_behind: str) -> EraseTimeout:
        """Return the error for an expired deadline.

        :param left_behind: the current state of the drive, for the operator.
        """
        stalled = self.meters[-1].standstill if self.meters else None
        why = f" ({stalled})" if stalled else ""
        return EraseTimeout(f"{self.drive} was not erased within [nvme] cleanup_timeout{why}; {left_behind}")

    def namespace(self, nsid: int) -> NamespaceIdentity:
        """Identify a namespace that is attached to the drive.

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
        """Convert errors of tools inside the context into errors of the erase.

        :param left_behind: as in :meth:`out_of_time`.
        :raises EraseTimeout: a tool was ended because the deadline passed.
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
        """Verify that the controller still exists after a failure.

        :param suspicion: the failure, which may be caused by its removal.
        :raises DeviceVanished: the controller is gone.
        """
        here = self.paths.sysfs / "bus/pci/devices" / str(self.controller.address) / "nvme" / self.controller.name
        if not here.exists():
            raise DeviceVanished(f"{self.drive} went away while it was being erased: {suspicion}") from suspicion

    def must_be_same_drive(self) -> Controller:
        """Verify that the controller's name still refers to the drive in the slot; return its current state.

        The kernel reuses the name of a removed drive for the next one that is added anywhere on the host. So results
        obtained by name count only between two calls of this method.

        :raises WrongDrive: another drive is in the slot, or the drive has another name now.
        :raises HardwareError: the slot cannot be read.
        """
        before, now = self.controller, controller_at(self.paths, self.controller.address)
        if (now.name, now.serial, now.model) != (before.name, before.serial, before.model):
            raise WrongDrive(
                f"{self.drive} changed while it was being erased: its slot now has {now.name}, {now.model} {now.serial}"
            )
        return now


FILE_NAME = "erase-rates.json"


class EraseRates:
    """Store bytes per second by drive model and cleanup action in one file of the agent.

    The rates are for estimates only. A file that cannot be read or written causes a warning, and never prevents an
    erase.

    :param directory: the agent's data directory.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME

    def of(self, model: str, action: str) -> float | None:
        """Return the rate of the last erase of a drive of *model*, or None."""
        rate = self._read().get(model, {}).get(action)
        return float(rate) if isinstance(rate, int | float) and rate > 0 else None

    def remember(self, model: str, action: str, size: int, seconds: float) -> None:
        """Record that *size* bytes of a drive of *model* were overwritten in *seconds*."""
        if seconds <= 0 or not size:
            return
        rates = self._read()
        rates.setdefault(model, {})[action] = size / seconds
        fresh = self._path.with_suffix(f".{os.getpid()}")
        try:
            fresh.write_text(json.dumps(rates, indent=1, sort_keys=True), encoding="utf-8")
            fresh.replace(self._path)
        except OSError as error:
            LOG.warning("Cannot record the duration of the erase in %s: %s", self._path, error.strerror)

    def _read(self) -> dict[str, dict[str, float]]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            LOG.warning("Cannot read the durations of earlier erases from %s: %s", self._path, error)
            return {}
        sound = isinstance(found, dict) and all(isinstance(rates, dict) for rates in found.values())
        return found if sound else {}
