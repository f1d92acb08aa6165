"""A card whose entry an operator changes under running instances: each promise holds, and each broken rule is noticed.

The same of the real code, over random histories, is in ``tests/functional/test_card_histories.py``.
"""

import pytest

from promises.card_model import MUTATIONS, explore


def test_every_change_under_running_instances_keeps_the_promises() -> None:
    found = explore()
    assert found.broken is None, found.history
    assert found.states > 500


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_broken_rule_of_a_card_breaks_a_promise(mutation: str) -> None:
    assert explore(mutation).broken == MUTATIONS[mutation]
