"""One lock per instance, within the one agent of a host."""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager


class InstanceLocks:
    """Who works on which instance: what comes second waits, so that no guest is started after its deletion."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        self._wanted: Counter[str] = Counter()

    @contextmanager
    def of(self, instance_uuid: str) -> Iterator[None]:
        """Hold the instance's lock."""
        with self._guard:
            self._wanted[instance_uuid] += 1
            lock = self._locks[instance_uuid]
        try:
            with lock:
                yield
        finally:
            with self._guard:
                self._wanted[instance_uuid] -= 1
                if not self._wanted[instance_uuid]:
                    del self._wanted[instance_uuid], self._locks[instance_uuid]

    def worked_on(self, instance_uuid: str) -> bool:
        """Whether somebody has the lock or waits for it."""
        with self._guard:
            return self._wanted[instance_uuid] > 0
