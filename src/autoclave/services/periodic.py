"""Something done again and again in a thread, until stopped."""

import threading
from collections.abc import Callable

from oslo_log import log as logging

from autoclave.exceptions import AutoclaveError

LOG = logging.getLogger(__name__)


class Periodic:
    """Runs *task* every *interval* seconds.

    A task that fails is logged and tried again: a service whose database is away for a minute must not
    need a hand afterwards.

    :param first: seconds until the first round; by default one interval.
    :param task: may return in how many seconds it wants to be run again, if that is sooner.
    """

    def __init__(
        self, name: str, interval: float, task: Callable[[], float | None], first: float | None = None
    ) -> None:
        self._interval = interval
        self._first = interval if first is None else first
        self._task = task
        self._name = name
        self._stopped = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def soon(self) -> None:
        """Begin the next round now, or as soon as the one that runs has ended."""
        self._wake.set()

    def stop(self) -> None:
        """Begin no other round, and wait a moment for the one that runs."""
        self._stopped = True
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        pause = self._first
        while True:
            self._wake.wait(pause)
            self._wake.clear()
            if self._stopped:
                return
            pause = self._round()

    def _round(self) -> float:
        try:
            wanted = self._task()
        except AutoclaveError as error:
            LOG.error("%s failed and will be repeated: %s", self._name, error)
        except Exception:
            LOG.exception("%s failed unexpectedly and will be repeated", self._name)
        else:
            return self._interval if wanted is None else min(wanted, self._interval)
        return self._interval
