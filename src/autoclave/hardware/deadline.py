"""A point in time by which work must be done."""

import time
from dataclasses import dataclass


@dataclass(frozen=True)
class Deadline:
    """A moment on the monotonic clock.

    :param at: seconds of :func:`time.monotonic`.
    """

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """The moment *seconds* from now."""
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left; never negative."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at
