"""Facts: what must hold, held against what was seen."""

import sys
import time
from collections.abc import Callable
from typing import TypeVar

Seen = TypeVar("Seen")


class Facts:
    """Prints one line a fact, and remembers whether all of them held."""

    def __init__(self) -> None:
        self.failed = 0
        self._began = time.monotonic()

    def check(self, fact: str, holds: bool, seen: object) -> bool:
        """Print the fact as ``ok`` or ``FAIL``, with what was seen, and return whether it holds."""
        self.failed += not holds
        print(f"{'ok  ' if holds else 'FAIL'} {fact}: {' / '.join(str(seen).splitlines())}", flush=True)
        return holds

    def demand(self, fact: str, holds: bool, seen: object) -> None:
        """Likewise, where going on without the fact makes no sense.

        :raises SystemExit: it does not hold.
        """
        if not self.check(fact, holds, seen):
            sys.exit(1)

    def say(self, text: str) -> None:
        """Print a heading, with the seconds since the beginning."""
        print(f"\n== {text}  [{time.monotonic() - self._began:.0f} s]", flush=True)


def wait_for(look: Callable[[], Seen], until: Callable[[Seen], bool], *, seconds: float, pause: float) -> Seen:
    """Look again and again until it is so or *seconds* have passed, and return what was seen last."""
    patience = time.monotonic() + seconds
    while not until(seen := look()) and time.monotonic() < patience:
        time.sleep(pause)
    return seen
