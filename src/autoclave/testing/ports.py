"""Double the ports of casts, domains and notifications."""

from collections.abc import Sequence
from dataclasses import dataclass

from autoclave.exceptions import HardwareError
from autoclave.rpc.inprocess import Cast, Deliver
from autoclave.rpc.notifications import Notification
from autoclave.virt.domains import Domain


class HeldCasts:
    """Hold casts until the test delivers, duplicates or drops each of them.

    Use it to interleave messages: late, duplicate, lost, in any order. Delivery runs in the calling thread.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Cast, Deliver]] = []

    @property
    def pending(self) -> tuple[Cast, ...]:
        """Return the waiting casts, oldest first."""
        return tuple(cast for cast, _ in self._waiting)

    def put(self, cast: Cast, deliver: Deliver) -> None:
        self._waiting.append((cast, deliver))

    def close(self) -> None:
        self._waiting.clear()

    def deliver(self, index: int = 0) -> None:
        """Run ``pending[index]`` now, and remove it."""
        cast, deliver = self._waiting.pop(index)
        deliver(cast)

    def duplicate(self, index: int = 0) -> None:
        """Append a copy of ``pending[index]``."""
        self._waiting.append(self._waiting[index])

    def drop(self, index: int = 0) -> None:
        """Drop ``pending[index]``."""
        del self._waiting[index]


@dataclass
class GivenDomains:
    """Return given guests, for tests without libvirt."""

    domains: Sequence[Domain] = ()
    failure: HardwareError | None = None

    def all(self) -> Sequence[Domain]:
        """Implement :meth:`~autoclave.virt.domains.Domains.all`."""
        if self.failure is not None:
            raise self.failure
        return self.domains


class KeptNotifications:
    """Keep notifications for a listener in the same process."""

    def __init__(self) -> None:
        self.kept: list[Notification] = []

    def emit(self, notification: Notification) -> None:
        self.kept.append(notification)

    def close(self) -> None:
        """Keep the notifications."""
