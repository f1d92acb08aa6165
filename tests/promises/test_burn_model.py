"""The one-time-use protocol as a model: every interleaving keeps its promises, and each broken rule is noticed."""

import pytest

from promises.burn_model import MUTATIONS, STARTS, explore


@pytest.mark.parametrize("start", STARTS)
def test_every_interleaving_keeps_the_promises(start: str) -> None:
    found = explore(start=STARTS[start])
    assert found.broken is None, found.history
    assert found.states > 1000


@pytest.mark.thorough
@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_rule_breaks_a_promise(mutation: str) -> None:
    start, promise = MUTATIONS[mutation]
    assert explore(mutation, STARTS[start]).broken == promise
