"""Turns the percentages of a tool into progress, and notices when they stand still."""

import threading
import time
from types import TracebackType

from autoclave.hardware.progress import Progress, ProgressSink


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
