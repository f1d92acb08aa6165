"""The two promises of the design, over random histories: see ``world.py``.

``AUTOCLAVE_HISTORIES`` says how many; a failing history names its seed and its steps.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoclave.placement.embedded import EmbeddedPlacement
from autoclave.placement.fake import FakePlacement
from dbfixtures import sqlite_database
from promises.world import Broken, World

HISTORIES = int(os.environ.get("AUTOCLAVE_HISTORIES", "0"))
LENGTH = 160


@pytest.fixture
def file(tmp_path: Path) -> Path:
    sqlite_database(tmp_path).dispose()
    return tmp_path / "autoclave.db"


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Any]:
    service = EmbeddedPlacement.start(tmp_path / "placement.db")
    yield service.app
    service.stop()


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
    for seed in range(HISTORIES or 300):
        live(seed, file, FakePlacement())


def test_no_history_breaks_a_promise_with_the_real_placement(file: Path, real: Any) -> None:
    for seed in range(10_000, 10_000 + (HISTORIES or 200)):
        live(seed, file, real)


__all__ = ["Broken"]
