"""One run of a driver's ``cleanup``, bounded in time whatever the driver does."""

import queue
import threading
from collections.abc import Callable

from autoclave.drivers.base import Evidence
from autoclave.exceptions import EraseTimeout
from autoclave.hardware.host import Deadline

GRACE = 5.0
"""Seconds past its deadline that a driver gets to end by itself, with a better message than ours."""


class Stopping(Exception):
    """The agent is being stopped; what the attempt would have said is not waited for."""


class Attempt:
    """Runs ``work`` in a thread of its own, so that one that hangs does not keep its waiter.

    :param ended: called in that thread when the work has really ended, however late.
    """

    def __init__(self, work: Callable[[], Evidence], ended: Callable[[], None], name: str) -> None:
        self._outcome: queue.SimpleQueue[Evidence | BaseException] = queue.SimpleQueue()
        self._work = work
        self._ended = ended
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin the work."""
        self._thread.start()

    def result(self, deadline: Deadline) -> Evidence:
        """Wait for the work and return its evidence, or raise what it raised.

        :raises EraseTimeout: it has not ended within :data:`GRACE` of *deadline*. It goes on; its lock stays taken.
        :raises Stopping: see :meth:`abandon`.
        """
        try:
            outcome = self._outcome.get(timeout=deadline.remaining() + GRACE)
        except queue.Empty:
            raise EraseTimeout(
                "the cleanup did not end within cleanup_timeout and does not react; its worker still has the device"
            ) from None
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def abandon(self) -> None:
        """Wake the waiter because the agent stops."""
        self._outcome.put(Stopping())

    def _run(self) -> None:
        try:
            outcome: Evidence | BaseException = self._work()
        except BaseException as error:  # whatever ended the work, its waiter must not sit out the timeout
            outcome = error
        finally:
            self._ended()
        self._outcome.put(outcome)
