"""The stories of ``gabbits/``: whole conversations, request by request."""

import sys
import tempfile
import unittest
from pathlib import Path
from typing import Any

import pytest
from api_world import World
from gabbi import driver
from gabbi.fixture import GabbiFixture

_STORIES = Path(__file__).parent / "gabbits"
_app: Any = None


class OneDrive(GabbiFixture):
    """A service with one drive on one host."""

    def start_fixture(self) -> None:
        global _app
        self._directory = tempfile.TemporaryDirectory()
        self._world = World(Path(self._directory.name))
        self._world.add_device()
        _app = self._world.app

    def stop_fixture(self) -> None:
        self._world.close()
        self._directory.cleanup()


def _stories() -> list[Any]:
    suites = driver.build_tests(
        str(_STORIES),
        unittest.TestLoader(),
        # gabbi makes a host name up for each story
        intercept=lambda: lambda environ, start: _app({**environ, "HTTP_HOST": "localhost"}, start),
        fixture_module=sys.modules[__name__],
        test_loader_name="story",
    )
    # gabbi names the class of a request after its file and its own name
    return [pytest.param(suite, id=next(iter(suite)).__class__.__name__.split("_")[0]) for suite in suites]


@pytest.mark.parametrize("story", _stories())
def test_a_story_goes_as_it_is_told(story: unittest.TestSuite) -> None:
    result = unittest.TestResult()
    story.run(result)
    assert [f"{test}\n{text}" for test, text in result.failures + result.errors] == []
    assert result.testsRun > 5
    assert result.skipped == []


def test_no_story_is_forgotten() -> None:
    assert len(_stories()) == len(list(_STORIES.iterdir()))
