"""The world of the API's tests."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from api_world import World
from cheroot import wsgi


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.close()


@pytest.fixture
def url(world: World) -> Iterator[str]:
    """The service on a real socket."""
    server = wsgi.Server(("127.0.0.1", 0), world.app, numthreads=2)
    server.prepare()
    thread = threading.Thread(target=server.serve)
    thread.start()
    yield f"http://127.0.0.1:{server.bind_addr[1]}"
    server.stop()
    thread.join()
