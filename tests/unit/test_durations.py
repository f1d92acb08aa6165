"""Durations as people say them."""

import pytest

from autoclave.cli.main import in_words


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "1 s"), (89, "89 s"), (90, "2 min"), (3600 * 3 + 1200, "3 h 20 min"), (7200, "2 h")],
)
def test_an_estimate_is_no_finer_than_it_can_be(seconds: float, words: str) -> None:
    assert in_words(seconds) == words
