"""What every service is, and how a process runs one."""

import gc
import signal
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from oslo_log import log as logging

LOG = logging.getLogger(__name__)


class Service(Protocol):
    """Starts, and stops."""

    def start(self) -> None:
        """Begin to serve; returns when it does.

        :raises AutoclaveError: it cannot.
        """

    def stop(self) -> None:
        """Stop serving. Also called when :meth:`start` has failed half-way."""


class Resources:
    """What was made and must be closed: in the reverse order, whatever one of them does."""

    def __init__(self) -> None:
        self._closers: list[Callable[[], None]] = []

    def add(self, close: Callable[[], None]) -> None:
        """Have *close* called by :meth:`close`, before all that were added until now."""
        self._closers.append(close)

    def close(self) -> None:
        """Close all of them."""
        while self._closers:
            close = self._closers.pop()
            try:
                close()
            except Exception:
                LOG.exception("%s did not end cleanly", getattr(close, "__qualname__", close))


class Group:
    """Services that start in order and stop in the reverse order.

    :param resources: what they were made of; closed when all have stopped.
    """

    def __init__(self, services: Sequence[Service], resources: Resources | None = None) -> None:
        self._services = services
        self._resources = resources or Resources()
        for service in services:
            self._resources.add(service.stop)

    def start(self) -> None:
        """Start all of them."""
        for service in self._services:
            service.start()

    def stop(self) -> None:
        """Stop all of them, and close what they were made of."""
        self._resources.close()


def run_until_signal(service: Service, ready: Callable[[], None]) -> None:
    """Start *service*, wait for SIGTERM or SIGINT, and stop it.

    :param ready: called once the service serves.
    """
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    try:
        service.start()
        # What is there now stays: the collector would look at all of it again and again while long lists are made.
        gc.collect()
        gc.freeze()
        ready()
        end.wait()
    finally:
        service.stop()
