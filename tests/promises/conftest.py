"""Fixtures of the rehearsals."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from autoclave.placement.embedded import EmbeddedPlacement
from autoclave.placement.fake import FakePlacement
from dbfixtures import sqlite_database
from promises.world import World


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A migrated database file; each history empties it first."""
    sqlite_database(tmp_path).dispose()
    return tmp_path / "autoclave.db"


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
def world(file: Path) -> Iterator[World]:
    """A cloud with one drive, in which nothing happens by itself."""
    made = World(file.parent, file, FakePlacement())
    yield made
    made.close()
