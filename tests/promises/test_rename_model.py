"""The rename of a host as a model: every interleaving keeps its promises, and each broken rule is noticed."""

import pytest

from promises.rename_model import MUTATIONS, explore


def test_every_interleaving_keeps_the_promises() -> None:
    found = explore()
    assert found.broken is None, found.history
    assert found.states > 100


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_rule_breaks_a_promise(mutation: str) -> None:
    found = explore(mutation)
    assert found.broken == MUTATIONS[mutation], found.history
