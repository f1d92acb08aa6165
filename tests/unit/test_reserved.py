"""Only a device that we vouch for, and that nobody keeps back, is offered; what else becomes of an inventory."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoclave.rules.device_lifecycle import (
    SHOWN_STATES,
    DeviceState,
    Offer,
    Reading,
    Reserving,
    Verdict,
    Withheld,
    must_be_reserved,
    shown_state,
    verdict,
)

OFFERED = Offer(DeviceState.AVAILABLE, maintaining=False, held=False, excluded=False, missing=False, unreadable=False)
LENT_OUT = OFFERED._replace(device_state=DeviceState.ALLOCATED, lent=True)
"""Instances have all of a device that returns uncleaned; their allocations keep others away."""
FLAGS = list(itertools.product([False, True], repeat=len(Withheld)))


def test_an_available_device_that_nobody_keeps_back_is_offered() -> None:
    assert not must_be_reserved(OFFERED)


def test_of_all_that_a_row_can_say_only_one_thing_offers_the_device() -> None:
    everything = [Offer(state, *flags) for state in [*DeviceState, None] for flags in FLAGS]
    assert [offer for offer in everything if not must_be_reserved(offer)] == [OFFERED]


def test_lent_device_is_reserved_unless_free_or_lent_out() -> None:
    everything = [Offer(state, *flags, lent=True) for state in [*DeviceState, None] for flags in FLAGS]
    assert [offer for offer in everything if not must_be_reserved(offer)] == [OFFERED._replace(lent=True), LENT_OUT]


def test_withheld_device_is_never_shown_as_available() -> None:
    for flags in FLAGS:
        offer = Offer(DeviceState.AVAILABLE, *flags)
        assert (shown_state(offer) == "available") == (offer == OFFERED)
        assert shown_state(offer) in SHOWN_STATES
        for state in DeviceState:
            if state is not DeviceState.AVAILABLE:
                assert shown_state(offer._replace(device_state=state)) == state.value
        assert shown_state(offer._replace(device_state=None)) is None


def test_every_flag_of_an_offer_is_a_shown_state() -> None:
    assert {why.value for why in Withheld} == set(Offer._fields) - {"device_state", "lent"}


@pytest.mark.parametrize("state", [state for state in DeviceState if state is not DeviceState.AVAILABLE])
def test_a_device_in_any_other_state_is_kept_back(state: DeviceState) -> None:
    assert must_be_reserved(OFFERED._replace(device_state=state))


def test_a_device_whose_state_is_not_known_is_kept_back() -> None:
    assert must_be_reserved(OFFERED._replace(device_state=None))


@pytest.mark.parametrize("why", [why.value for why in Withheld])
def test_an_available_device_is_kept_back_for_each_reason_alone(why: str) -> None:
    assert must_be_reserved(OFFERED._replace(**{why: True}))
    assert must_be_reserved(LENT_OUT._replace(**{why: True}))


@given(offer=st.builds(Offer, st.sampled_from([*DeviceState, None]), *[st.booleans()] * 7))
def test_doubted_device_is_reserved_for_doubts_alone(offer: Offer) -> None:
    cleared = offer._replace(unreadable=False, outdated=False)
    assert offer.doubted == (must_be_reserved(offer) and not must_be_reserved(cleared))


# What follows from a row and from what Placement says of the device

FULL, FREE = Reading(1, 1, 1), Reading(1, 0, 1)
AMENDED = Reading(2, 1, 1)
"""Another has written the record with a total of its own, and ``reserved`` as it was."""
SPENT = Reserving(
    OFFERED._replace(device_state=DeviceState.SPENT), confirmed=False, release_pending=False, withheld=False
)
IN_USE = SPENT._replace(offer=OFFERED._replace(device_state=DeviceState.ALLOCATED))
CONFIRMED = SPENT._replace(confirmed=True)
RELEASED = CONFIRMED._replace(offer=OFFERED, release_pending=True)
CLEAN = SPENT._replace(offer=OFFERED)
LENT = CLEAN._replace(offer=LENT_OUT)
WITHHELD = CLEAN._replace(withheld=True)


def flagged(row: Reserving, *flags: Withheld) -> Reserving:
    """The row with flags that withhold an available device."""
    return row._replace(offer=row.offer._replace(**{flag.value: True for flag in flags}))


DOUBTS = (Withheld.UNREADABLE, Withheld.OUTDATED)
DOUBTED = flagged(CLEAN, Withheld.UNREADABLE)

offers = st.builds(Offer, st.sampled_from([*DeviceState, None]), *[st.booleans()] * 7)
rows = st.builds(Reserving, offers, *[st.booleans()] * 3)
readings = st.sampled_from([FULL, FREE, AMENDED, Reading(4, 0, 4), Reading(4, 3, 4), Reading(1, 1, 4)])


@pytest.mark.parametrize(
    ("what", "row", "reading", "follows"),
    [
        ("in use, and lowered by somebody", IN_USE, FREE, Verdict.RAISE),
        ("in use, and reads as it should: written all the same", IN_USE, FULL, Verdict.RAISE),
        ("without an inventory", CONFIRMED, None, Verdict.RAISE),
        ("idle, and lowered before anybody saw it idle", SPENT, FREE, Verdict.RAISE),
        ("idle and reserved for the first time", SPENT, FULL, Verdict.CONFIRM),
        ("idle and reserved ever since", CONFIRMED, FULL, Verdict.KEEP),
        ("lowered by the operator", CONFIRMED, FREE, Verdict.RELEASED),
        ("idle and reserved, with another total", CONFIRMED, AMENDED, Verdict.KEEP),
        ("idle and reserved, with a smaller total", CONFIRMED, Reading(1, 1, 2), Verdict.KEEP),
        ("partly lowered", CONFIRMED, Reading(2, 1, 2), Verdict.RELEASED),
        ("clean, and held with another total", CLEAN, AMENDED, Verdict.HOLD),
        ("released by word", RELEASED, FULL, Verdict.LOWER),
        ("released by word, and already lowered", RELEASED, FREE, Verdict.LOWER),
        ("released by word, and yet an instance has it", IN_USE._replace(release_pending=True), FREE, Verdict.RAISE),
        ("released by word, and not there", flagged(RELEASED, Withheld.MISSING), FULL, Verdict.RAISE),
        ("released by word, not there, and lowered", flagged(RELEASED, Withheld.MISSING), FREE, Verdict.RAISE),
        ("clean and new", CLEAN, None, Verdict.LOWER),
        ("clean and offered", CLEAN, FREE, Verdict.KEEP),
        ("clean, and held by somebody", CLEAN, FULL, Verdict.HOLD),
        ("clean, and kept back by its operator", flagged(CLEAN, Withheld.HELD), FULL, Verdict.RAISE),
        ("in doubt, and offered", DOUBTED, FREE, Verdict.WITHHOLD),
        ("in doubt, and new", DOUBTED, None, Verdict.WITHHOLD),
        ("in doubt, and reserved already", DOUBTED, FULL, Verdict.KEEP),
        ("in doubt, and withheld", DOUBTED._replace(withheld=True), FULL, Verdict.KEEP),
        ("in doubt, withheld, and lowered", DOUBTED._replace(withheld=True), FREE, Verdict.WITHHOLD),
        ("in doubt for two reasons", flagged(CLEAN, *DOUBTS), FREE, Verdict.WITHHOLD),
        ("in doubt, and held", flagged(DOUBTED, Withheld.HELD), FULL, Verdict.RAISE),
        ("in doubt, and burned", flagged(CONFIRMED, Withheld.UNREADABLE), FULL, Verdict.KEEP),
        ("in doubt, and burned lately", flagged(SPENT, Withheld.UNREADABLE), FULL, Verdict.CONFIRM),
        ("in doubt, and lowered by the operator", flagged(CONFIRMED, Withheld.UNREADABLE), FREE, Verdict.RELEASED),
        ("in doubt, and released by word", flagged(RELEASED, Withheld.UNREADABLE), FULL, Verdict.KEEP),
        ("in doubt no longer, and withheld", WITHHELD, FULL, Verdict.LOWER),
        ("in doubt no longer, and lowered", WITHHELD, FREE, Verdict.LOWER),
        ("in doubt no longer, and burned since", CONFIRMED._replace(withheld=True), FULL, Verdict.KEEP),
        ("lent out", LENT, FREE, Verdict.KEEP),
        ("lent out, and held by somebody", LENT, FULL, Verdict.HOLD),
        ("lent out, and in doubt", flagged(LENT, Withheld.OUTDATED), FREE, Verdict.WITHHOLD),
        ("lent out, and not there", flagged(LENT, Withheld.MISSING), FREE, Verdict.RAISE),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_follows(what: str, row: Reserving, reading: Reading | None, follows: Verdict) -> None:
    assert verdict(row, reading) is follows


@given(row=rows, reading=readings | st.none())
def test_what_must_be_reserved_is_never_lowered(row: Reserving, reading: Reading | None) -> None:
    if must_be_reserved(row.offer):
        assert verdict(row, reading) not in (Verdict.LOWER, Verdict.HOLD)


@given(row=rows, reading=readings)
def test_reserved_device_is_never_left_free(row: Reserving, reading: Reading) -> None:
    """Only a lowered ``reserved`` of a confirmed spent device is left for the moment: it is the operator's release."""
    if must_be_reserved(row.offer) and not reading.is_full:
        released = row.offer.device_state is DeviceState.SPENT and row.confirmed
        assert verdict(row, reading) in ({Verdict.RELEASED} if released else {Verdict.RAISE, Verdict.WITHHOLD})


@given(row=rows)
def test_without_an_inventory_nothing_is_taken_for_a_release(row: Reserving) -> None:
    raised = Verdict.WITHHOLD if row.offer.doubted else Verdict.RAISE
    assert verdict(row, None) is (raised if must_be_reserved(row.offer) else Verdict.LOWER)


@given(row=rows, reading=readings)
def test_only_a_confirmed_spent_device_is_released(row: Reserving, reading: Reading) -> None:
    spent = row.offer.device_state is DeviceState.SPENT
    assert (verdict(row, reading) is Verdict.RELEASED) == (spent and row.confirmed and not reading.is_full)
    assert (verdict(row, reading) is Verdict.CONFIRM) == (spent and not row.confirmed and reading.is_full)


@pytest.mark.parametrize(
    ("row", "may"), [(CLEAN, True), (CONFIRMED, False), (RELEASED, True), (SPENT, False), (DOUBTED, False)]
)
def test_a_burned_device_is_claimed_only_after_a_release(row: Reserving, may: bool) -> None:
    """A claim is refused for each device that must be reserved."""
    assert must_be_reserved(row.offer) is not may
