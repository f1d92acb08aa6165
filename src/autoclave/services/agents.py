"""The agents of several hosts in one process, as `autoclave up` runs them."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from autoclave.services.service import Resources, Service

_AT_ONCE = 8
"""Hosts that are looked at at a time."""


class AgentServices:
    """Agents that start in a pool, so that no host waits for the first look at all others.

    :param makers: makes the agent of each host.
    """

    def __init__(self, makers: Sequence[Callable[[], Service]]) -> None:
        self._makers = makers
        self._started = Resources()
        self._lock = threading.Lock()
        self._unknown = len(makers)

    @property
    def unknown(self) -> int:
        """How many hosts have not been looked at yet."""
        return self._unknown

    def start(self) -> None:
        """Make and start all of them; returns when every host has been looked at.

        :raises AutoclaveError: one cannot be served. Those that did not begin until then are not started.
        """
        with ThreadPoolExecutor(min(_AT_ONCE, len(self._makers)), thread_name_prefix="first look") as pool:
            looks = [pool.submit(self._start, make) for make in self._makers]
            done, rest = wait(looks, return_when=FIRST_EXCEPTION)
            for look in rest:
                look.cancel()
        for look in done:
            look.result()

    def stop(self) -> None:
        """Stop all that were made."""
        self._started.close()

    def _start(self, make: Callable[[], Service]) -> None:
        service = make()
        with self._lock:
            self._started.add(service.stop)
        service.start()
        with self._lock:
            self._unknown -= 1
