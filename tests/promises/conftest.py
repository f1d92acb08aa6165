"""Fixtures of the rehearsals."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoclave.placement.embedded import EmbeddedPlacement
from dbfixtures import sqlite_database


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A migrated database file; each history empties it first."""
    sqlite_database(tmp_path).dispose()
    return tmp_path / "autoclave.db"


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Any]:
    """The real Placement, for all histories of a test."""
    service = EmbeddedPlacement.start(tmp_path / "placement.db")
    yield service.app
    service.stop()
