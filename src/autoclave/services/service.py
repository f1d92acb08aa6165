"""What every service is, and how a process runs one."""

import signal
import threading
from collections.abc import Sequence
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


class Group:
    """Services that start in order and stop in the reverse order."""

    def __init__(self, services: Sequence[Service]) -> None:
        self._services = services

    def start(self) -> None:
        """Start all of them."""
        for service in self._services:
            service.start()

    def stop(self) -> None:
        """Stop all of them, whatever one of them does."""
        for service in reversed(self._services):
            try:
                service.stop()
            except Exception:
                LOG.exception("%s did not stop cleanly", type(service).__name__)


def run_until_signal(service: Service, started: threading.Event | None = None) -> None:
    """Start *service*, wait for SIGTERM or SIGINT, and stop it.

    :param started: set once the service serves.
    """
    end = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: end.set())
    try:
        service.start()
        if started is not None:
            started.set()
        end.wait()
    finally:
        service.stop()
