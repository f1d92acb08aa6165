"""Fixtures of the rehearsals."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from autoclave.hardware import block
from autoclave.placement.embedded import EmbeddedPlacement
from autoclave.testing.placement import FakePlacement
from dbfixtures import sqlite_database
from promises.gates import GatedDatabase
from promises.host import NVME
from promises.world import World


@pytest.fixture
def db(tmp_path: Path) -> Iterator[GatedDatabase]:
    """A migrated database; each world empties it first."""
    sqlite_database(tmp_path).dispose()
    made = GatedDatabase(f"sqlite:///{tmp_path / 'autoclave.db'}")
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
    service = EmbeddedPlacement.start(tmp_path / "placement.db")
    # No power is cut here; what survives one is promised elsewhere.
    sa.event.listen(
        service.engine(), "connect", lambda connection, _record: connection.execute("PRAGMA synchronous=OFF")
    )
    service.engine().dispose()
    yield service.app
    service.stop()


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
