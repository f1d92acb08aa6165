"""Double the ports of casts, domains and notifications.

Casts of the in-process transport that wait until a test delivers them.

Guests without libvirt.

Notifications without a broker.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from autoclave.exceptions import HardwareError
from autoclave.rpc.inprocess import Cast, Deliver
from autoclave.rpc.notifications import Notification
from autoclave.virt.domains import Domain


class HeldCasts:
    """Keeps casts until its owner says what the network does to each of them.

    For tests that interleave messages on purpose: late, doubled, lost, in any order. Delivery runs in
    the thread that asks for it.
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Cast, Deliver]] = []

    @property
    def pending(self) -> tuple[Cast, ...]:
        """What waits, oldest first."""
        return tuple(cast for cast, _ in self._waiting)

    def put(self, cast: Cast, deliver: Deliver) -> None:
        self._waiting.append((cast, deliver))

    def close(self) -> None:
        self._waiting.clear()

    def deliver(self, index: int = 0) -> None:
        """Run ``pending[index]`` now; it waits no longer."""
        cast, deliver = self._waiting.pop(index)
        deliver(cast)

    def duplicate(self, index: int = 0) -> None:
        """Let ``pending[index]`` wait twice; the copy is the last one."""
        self._waiting.append(self._waiting[index])

    def drop(self, index: int = 0) -> None:
        """Lose ``pending[index]``."""
        del self._waiting[index]


@dataclass
class GivenDomains:
    """Guests that are made up: for tests, where no libvirt is."""

    domains: Sequence[Domain] = ()
    failure: HardwareError | None = None

    def all(self) -> Sequence[Domain]:
        """See :class:`~autoclave.virt.domains.Domains`."""
        if self.failure is not None:
            raise self.failure
        return self.domains


class KeptNotifications:
    """Keeps them, for a listener in the same process."""

    def __init__(self) -> None:
        self.kept: list[Notification] = []

    def emit(self, notification: Notification) -> None:
        self.kept.append(notification)

    def close(self) -> None:
        """What is kept stays."""
