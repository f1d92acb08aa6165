"""Fixtures of the functional tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from agentworld import one_drive, world
from hostworld import host_world
from instanceworld import instance_world
from pciworld import gpu, pci_world

from autoclave.placement.embedded import EmbeddedPlacement
from dbfixtures import database, empty_url, mariadb_database, postgresql_database, row_locking_database
from realplacement import running_placement

__all__ = [
    "database",
    "empty_url",
    "gpu",
    "host_world",
    "instance_world",
    "mariadb_database",
    "one_drive",
    "pci_world",
    "postgresql_database",
    "row_locking_database",
    "world",
]


@pytest.fixture
def real_placement(tmp_path: Path) -> Iterator[EmbeddedPlacement]:
    """OpenStack's own, for what the double does not know."""
    with running_placement(tmp_path) as service:
        yield service
