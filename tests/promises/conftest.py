"""Fixtures of the rehearsals."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoclave.hardware import block
from autoclave.testing.placement import FakePlacement
from dbfixtures import forgo_sync, sqlite_database
from promises.gates import GatedDatabase
from promises.host import NVME
from promises.world import World
from realplacement import running_placement


@pytest.fixture
def db(tmp_path: Path) -> Iterator[GatedDatabase]:
    """A migrated database; each world empties it first."""
    sqlite_database(tmp_path).dispose()
    made = GatedDatabase(f"sqlite:///{tmp_path / 'autoclave.db'}")
    forgo_sync(made.writer_engine)
    yield made
    made.dispose()


@pytest.fixture
def quiet() -> Iterator[None]:
    """Nothing is logged: pytest would keep every record of every history."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exclusive open is not tried again: an actor that waits for another would wait for itself."""
    monkeypatch.setattr(block, "_LOOKS", ())


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Any]:
    """The real Placement, for all histories of a test."""
    with running_placement(tmp_path) as service:
        yield service.app


@pytest.fixture
def world(tmp_path: Path, db: GatedDatabase) -> Iterator[World]:
    """A cloud with one drive, in which nothing happens by itself."""
    made = World(tmp_path, db, FakePlacement())
    yield made
    made.close()


@pytest.fixture
def two_drives(tmp_path: Path, db: GatedDatabase) -> Iterator[World]:
    """As ``world``, with two drives."""
    made = World(tmp_path, db, FakePlacement(), (NVME, NVME))
    yield made
    made.close()
