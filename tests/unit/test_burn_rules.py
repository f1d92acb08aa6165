"""What follows from a burn and from what Placement says of the device."""

import pytest
from autoclave.rules.burn import BurnFacts, Reading, Verdict, may_be_claimed, must_be_reserved, verdict
from hypothesis import given
from hypothesis import strategies as st

FULL, FREE = Reading(1, 1, 1), Reading(1, 0, 1)
AMENDED = Reading(2, 1, 1)
"""Another has written the record with a total of its own, and ``reserved`` as it was."""
BURNED = BurnFacts(one_time_use=True, burned=True, confirmed=False, release_pending=False, claimed=False)
IN_USE = BURNED._replace(claimed=True)
CONFIRMED = BURNED._replace(confirmed=True)
RELEASED = CONFIRMED._replace(release_pending=True)
CLEAN = BURNED._replace(burned=False)
DOUBTED = CLEAN._replace(doubted=True)
WITHHELD = CLEAN._replace(withheld=True)

facts = st.builds(BurnFacts, *[st.booleans()] * 8)
readings = st.sampled_from([None, FULL, FREE, AMENDED, Reading(4, 0, 4), Reading(4, 3, 4), Reading(1, 1, 4)])


@pytest.mark.parametrize(
    ("what", "facts", "reading", "follows"),
    [
        ("in use, and lowered by somebody", IN_USE, FREE, Verdict.RAISE),
        ("in use, and reads as it should: written all the same", IN_USE, FULL, Verdict.RAISE),
        ("without an inventory", CONFIRMED, None, Verdict.RAISE),
        ("idle, and lowered before anybody saw it idle", BURNED, FREE, Verdict.RAISE),
        ("idle and reserved for the first time", BURNED, FULL, Verdict.CONFIRM),
        ("idle and reserved ever since", CONFIRMED, FULL, Verdict.KEEP),
        ("lowered by the operator", CONFIRMED, FREE, Verdict.RELEASED),
        ("idle and reserved, with another total", CONFIRMED, AMENDED, Verdict.KEEP),
        ("idle and reserved, with a smaller total", CONFIRMED, Reading(1, 1, 2), Verdict.KEEP),
        ("partly lowered", CONFIRMED, Reading(2, 1, 2), Verdict.RELEASED),
        ("clean, and held with another total", CLEAN, AMENDED, Verdict.HOLD),
        ("released by word", RELEASED, FULL, Verdict.LOWER),
        ("released by word, and already lowered", RELEASED, FREE, Verdict.LOWER),
        ("released by word, and yet an instance has it", RELEASED._replace(claimed=True), FREE, Verdict.RAISE),
        ("released by word, and not there", RELEASED._replace(missing=True), FULL, Verdict.KEEP),
        ("released by word, not there, and lowered", RELEASED._replace(missing=True), FREE, Verdict.RAISE),
        ("clean and new", CLEAN, None, Verdict.LOWER),
        ("clean and offered", CLEAN, FREE, Verdict.KEEP),
        ("clean, and held by somebody", CLEAN, FULL, Verdict.HOLD),
        ("in doubt, and offered", DOUBTED, FREE, Verdict.RAISE),
        ("in doubt, and reserved already", DOUBTED, FULL, Verdict.KEEP),
        ("in doubt, and burned", CONFIRMED._replace(doubted=True), FULL, Verdict.KEEP),
        ("in doubt, and burned lately", BURNED._replace(doubted=True), FULL, Verdict.CONFIRM),
        ("in doubt, and lowered by the operator", CONFIRMED._replace(doubted=True), FREE, Verdict.RELEASED),
        ("in doubt, and released by word", RELEASED._replace(doubted=True), FULL, Verdict.KEEP),
        ("in doubt no longer, and withheld", WITHHELD, FULL, Verdict.LOWER),
        ("in doubt no longer, and lowered", WITHHELD, FREE, Verdict.LOWER),
        ("in doubt no longer, and burned since", CONFIRMED._replace(withheld=True), FULL, Verdict.KEEP),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_follows(what: str, facts: BurnFacts, reading: Reading | None, follows: Verdict) -> None:
    assert verdict(facts, reading) is follows


@given(facts=facts, reading=readings)
def test_what_must_be_reserved_is_never_lowered(facts: BurnFacts, reading: Reading | None) -> None:
    if must_be_reserved(facts):
        assert verdict(facts, reading) not in (Verdict.LOWER, Verdict.HOLD)


@given(facts=facts)
def test_without_an_inventory_nothing_is_taken_for_a_release(facts: BurnFacts) -> None:
    assert verdict(facts, None) is (Verdict.RAISE if must_be_reserved(facts) else Verdict.LOWER)


@pytest.mark.parametrize(
    ("facts", "may"), [(CLEAN, True), (CONFIRMED, False), (RELEASED, True), (BURNED, False), (DOUBTED, False)]
)
def test_a_burned_device_is_claimed_only_after_a_release(facts: BurnFacts, may: bool) -> None:
    assert may_be_claimed(facts) is may
