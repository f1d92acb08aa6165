"""The protocol of one device as a model: every interleaving keeps its promises, and each broken rule is noticed."""

import pytest

from promises.device_model import LONG_STARTS, MUTATIONS, STARTS, explore

_LONG = [pytest.param(start, marks=pytest.mark.thorough) for start in LONG_STARTS]


@pytest.mark.parametrize("start", [*STARTS, *_LONG])
def test_every_interleaving_keeps_the_promises(start: str) -> None:
    found = explore({**STARTS, **LONG_STARTS}[start])
    assert found.broken is None, found.history
    assert found.states > 500


@pytest.mark.thorough
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_rule_breaks_a_promise(mutation: str) -> None:
    start, promise = MUTATIONS[mutation]
    found = explore(STARTS[start], mutation)
    assert found.broken == promise, found.history
