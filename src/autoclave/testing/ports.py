"""Casts of the in-process transport that wait until a test delivers them."""

from autoclave.rpc.inprocess import Cast, Deliver


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
