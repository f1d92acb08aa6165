"""Only a device that we vouch for, and that nobody keeps back, is offered."""

import itertools

import pytest

from autoclave.rules.device_lifecycle import SHOWN_STATES, DeviceState, Offer, Withheld, must_be_reserved, shown_state

FREE = Offer(DeviceState.AVAILABLE, maintaining=False, held=False, excluded=False, missing=False, unreadable=False)


def test_an_available_device_that_nobody_keeps_back_is_offered() -> None:
    assert not must_be_reserved(FREE)


def test_of_all_that_a_row_can_say_only_one_thing_offers_the_device() -> None:
    everything = [
        Offer(state, *flags) for state in [*DeviceState, None] for flags in itertools.product([False, True], repeat=5)
    ]
    assert [offer for offer in everything if not must_be_reserved(offer)] == [FREE]


def test_withheld_device_is_never_shown_as_available() -> None:
    for flags in itertools.product([False, True], repeat=5):
        offer = Offer(DeviceState.AVAILABLE, *flags)
        assert (shown_state(offer) == "available") == (offer == FREE)
        assert shown_state(offer) in SHOWN_STATES
        for state in DeviceState:
            if state is not DeviceState.AVAILABLE:
                assert shown_state(offer._replace(device_state=state)) == state.value
        assert shown_state(offer._replace(device_state=None)) is None


def test_every_flag_of_an_offer_is_a_shown_state() -> None:
    assert {why.value for why in Withheld} == set(Offer._fields) - {"device_state", "lent"}


@pytest.mark.parametrize("state", [state for state in DeviceState if state is not DeviceState.AVAILABLE])
def test_a_device_in_any_other_state_is_kept_back(state: DeviceState) -> None:
    assert must_be_reserved(FREE._replace(device_state=state))


def test_a_device_whose_state_is_not_known_is_kept_back() -> None:
    assert must_be_reserved(FREE._replace(device_state=None))


@pytest.mark.parametrize("why", ["maintaining", "held", "excluded", "missing", "unreadable"])
def test_an_available_device_is_kept_back_for_each_reason_alone(why: str) -> None:
    assert must_be_reserved(FREE._replace(**{why: True}))
