"""The world of the API's tests."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_world import World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def ready(world: World) -> World:
    """With a host that runs servers."""
    world.add_host()
    return world


@pytest.fixture
def url(world: World) -> Iterator[str]:
    """The service on a real socket."""
    with world.served() as found:
        yield found
