"""Many histories, and what happened in them."""

import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from promises.gates import GatedDatabase
from promises.history import History
from promises.host import CARD, NVME
from promises.simulated import FORMATTED, SANITIZED, ZEROED
from promises.world import World

LENGTH = 200
HOSTS = ((NVME,), (NVME,), (SANITIZED,), (NVME, NVME), (NVME, CARD), (NVME,), (FORMATTED,), (ZEROED,))
FLOORS = {
    "settled": 4.0,
    "bound": 0.8,
    "start_cleaning": 0.6,
    "cleaned": 0.4,
    "failed calls": 1.0,
    "deaths": 0.5,
    "by hand": 0.8,
    "take_bind_back": 0.01,
    "timeouts": 0.01,
    "missed_cleanup": 0.01,
    "distrust": 0.01,
    "accept": 0.01,
    "disable": 0.1,
    "enable": 0.1,
    "vanished": 0.05,
    "take_back": 0.01,
    "configured": 0.3,
    "programs": 0.2,
    "programs at work": 0.2,
}
"""What happens in a history on average, at least."""


def rehearse(seeds: Iterable[int], directory: Path, db: GatedDatabase, placement: Callable[[], Any]) -> Counter[str]:
    """Live through one history for each seed, and count what happened before their recoveries.

    :raises AssertionError: a promise was broken; names the seed and the steps.
    """
    tally: Counter[str] = Counter()
    began = time.monotonic()
    for number, seed in enumerate(seeds, start=1):
        tally += _live(seed, directory, db, placement())
        if number % 500 == 0:
            print(f"{number} histories in {time.monotonic() - began:.0f} s: {dict(tally)}", flush=True)
    return tally


def _live(seed: int, directory: Path, db: GatedDatabase, app: Any) -> Counter[str]:
    world = World(directory, db, app, HOSTS[seed % len(HOSTS)])
    try:
        History(world, seed).live(LENGTH)
        return world.tally
    except AssertionError as error:
        steps = "\n".join(world.steps)
        raise type(error)(f"seed {seed}: {error}\n{steps}") from error
    finally:
        world.close()
