"""The two promises of the protocol page, over random histories: see ``history.py``.

``AUTOCLAVE_HISTORIES`` says how many, ``AUTOCLAVE_FIRST_SEED`` where to begin; a failing history names its seed and
its steps.
"""

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from autoclave.testing.placement import FakePlacement
from promises.gates import GatedDatabase
from promises.rehearsal import FLOORS, rehearse

pytestmark = pytest.mark.usefixtures("quiet")

HISTORIES = int(os.environ.get("AUTOCLAVE_HISTORIES", "0"))
FIRST = int(os.environ.get("AUTOCLAVE_FIRST_SEED", "0"))


def eventful(tally: Counter[str], histories: int) -> None:
    """A rehearsal in which hardly anything happens proves nothing."""
    print(f"{histories} histories: {dict(tally)}")
    for event, floor in FLOORS.items():
        assert tally[event] >= int(floor * histories), f"too few of: {event}"


def test_no_history_breaks_a_promise_with_placements_double(tmp_path: Path, db: GatedDatabase) -> None:
    seeds = range(FIRST, FIRST + (HISTORIES or 100))
    eventful(rehearse(seeds, tmp_path, db, FakePlacement), len(seeds))


@pytest.mark.thorough
def test_no_history_breaks_a_promise_with_the_real_placement(tmp_path: Path, db: GatedDatabase, real: Any) -> None:
    seeds = range(10_000 + FIRST, 10_000 + FIRST + (HISTORIES or 20))
    eventful(rehearse(seeds, tmp_path, db, lambda: real), len(seeds))
