"""A step of an erase tells how far it is and how long it takes still, and a standstill is noticed without a word."""

import threading
import time
from collections.abc import Callable

import pytest

from autoclave.hardware.erase.work import ProgressMeter
from autoclave.hardware.host import Progress

PATIENCE = 0.2
"""Seconds of unchanged progress after which it is stalled."""


class Operator:
    """Sees the progress of one step, by a clock that moves when told to."""

    def __init__(self) -> None:
        self.seen: list[Progress] = []
        self.now = 1000.0
        self.stalled, self.watched = threading.Event(), threading.Event()
        self._main = threading.current_thread()

    def clock(self) -> float:
        """Return the time of the test. The meter's own thread asks before it waits."""
        if threading.current_thread() is not self._main:
            self.watched.set()
        return self.now

    def told(self, progress: Progress) -> None:
        self.seen.append(progress)
        if progress.stalled:
            self.stalled.set()

    def comes_to_a_standstill(self, meter: ProgressMeter) -> Progress:
        """Pass the time after which progress is stalled; return the progress that is reported then."""
        self.watched.wait(10)
        assert meter.standstill is None
        self.now += PATIENCE + 0.1
        assert self.stalled.wait(10)
        self.stalled.clear()
        self.watched.clear()
        return self.seen[-1]


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Operator:
    operator = Operator()
    monkeypatch.setattr(time, "monotonic", operator.clock)
    return operator


@pytest.fixture
def start(operator: Operator) -> Callable[[], ProgressMeter]:
    return lambda: ProgressMeter(operator.told, "zeroing", stall_timeout=PATIENCE)


def test_time_that_is_left_follows_from_the_pace_so_far(operator: Operator) -> None:
    with ProgressMeter(operator.told, "zeroing", stall_timeout=3600.0) as meter:
        for seconds, percent in [(10, 20.0), (5, 20.0), (5, 20.5), (5, 40.0), (5, 40.0), (5, 10.0), (5, 80.0)]:
            operator.now += seconds
            meter.update(percent)
    assert operator.seen == [
        Progress(None, "zeroing"),
        Progress(20.0, "zeroing"),
        Progress(20.0, "zeroing"),
        Progress(20.5, "zeroing", seconds_left=10 * 79.5 / 0.5),
        Progress(40.0, "zeroing", seconds_left=15 * 60 / 20),
        Progress(40.0, "zeroing", seconds_left=20 * 60 / 20),
        Progress(10.0, "zeroing"),
        Progress(80.0, "zeroing", seconds_left=30 * 20 / 60),
    ]


def test_standstill_is_told_until_progress_moves_again(operator: Operator, start: Callable[[], ProgressMeter]) -> None:
    with start() as meter:
        assert operator.comes_to_a_standstill(meter) == Progress(None, "zeroing", stalled=True)
        operator.now += 5
        assert meter.standstill == "zeroing has stalled without any progress for 5 s"
        meter.update(20.0)
        meter.update(30.0)
        assert operator.seen[-2:] == [Progress(20.0, "zeroing"), Progress(30.0, "zeroing", seconds_left=0.0)]
        assert operator.comes_to_a_standstill(meter) == Progress(30.0, "zeroing", stalled=True)
        operator.now += 7
        assert meter.standstill == "zeroing has stalled at 30 % for 7 s"
    assert len(operator.seen) == 5


def test_watch_ends_with_its_step_and_keeps_no_process(start: Callable[[], ProgressMeter]) -> None:
    before = set(threading.enumerate())
    with start():
        [watch] = set(threading.enumerate()) - before
        assert watch.daemon
        assert watch.name == "watches zeroing"
    watch.join(10)
    assert not watch.is_alive()
