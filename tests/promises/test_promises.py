"""The two promises of the design, over random histories: see ``world.py``.

``AUTOCLAVE_HISTORIES`` says how many; a failing history names its seed and its steps.
"""

import os
from pathlib import Path
from typing import Any

from autoclave.placement.fake import FakePlacement
from promises.world import World

HISTORIES = int(os.environ.get("AUTOCLAVE_HISTORIES", "0"))
LENGTH = 200


def live(seed: int, file: Path, app: Any) -> None:
    world = World(file.parent, file, app, devices=1 + seed % 5 // 4)
    try:
        world.history(seed, LENGTH)
    except AssertionError as error:
        steps = "\n".join(world.steps)
        raise type(error)(f"seed {seed}: {error}\n{steps}") from error
    finally:
        world.close()


def test_no_history_breaks_a_promise_with_placements_double(file: Path) -> None:
    for seed in range(HISTORIES or 100):
        live(seed, file, FakePlacement())


def test_no_history_breaks_a_promise_with_the_real_placement(file: Path, real: Any) -> None:
    for seed in range(10_000, 10_000 + (HISTORIES or 20)):
        live(seed, file, real)
