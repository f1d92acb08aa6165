"""Something done again and again in a thread, until stopped."""

import threading
from collections.abc import Callable

from oslo_log import log as logging

from autoclave.exceptions import AutoclaveError

LOG = logging.getLogger(__name__)


class Periodic:
    """Runs *task* every *interval* seconds; the first time after one interval.

    A task that fails is logged and tried again: a service whose database is away for a minute must not
    need a hand afterwards.
    """

    def __init__(self, name: str, interval: float, task: Callable[[], None]) -> None:
        self._interval = interval
        self._task = task
        self._name = name
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Begin no other round, and wait a moment for the one that runs."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(timeout=5)

    def _run(self) -> None:
        while not self._stopped.wait(self._interval):
            try:
                self._task()
            except AutoclaveError as error:
                LOG.error("%s failed and will be repeated: %s", self._name, error)
            except Exception:
                LOG.exception("%s failed unexpectedly and will be repeated", self._name)
