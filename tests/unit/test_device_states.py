"""The table of device states is the specification's, and nothing outside it can happen."""

import itertools

import pytest

from autoclave.rules.device_lifecycle import IDLE_STATES, TRANSITIONS, Actor, DeviceState, Event, dot, transition

# (from, event, to), as drawn in the specification.
SPECIFIED = {
    ("available", "bind", "allocated"),
    ("allocated", "release", "available"),  # a type that needs no cleaning
    ("allocated", "request_cleaning", "pending_cleaning"),  # unbind
    ("allocated", "missed_cleanup", "pending_cleaning"),  # init_host
    ("allocated", "cannot_clean", "error"),  # the agent is too old
    ("pending_cleaning", "start_cleaning", "cleaning"),
    ("pending_cleaning", "crash_recovery", "error"),
    ("cleaning", "cleaned", "available"),
    ("cleaning", "cleaning_failed", "error"),
    ("cleaning", "crash_recovery", "error"),
    ("error", "clean_again", "pending_cleaning"),
}
# What the one-time-use specification adds: an instance gets a device by its flavor, and has used up one that is held
# back until an operator releases it.
ONE_TIME_USE = {
    ("available", "claim", "allocated"),
    ("available", "burn", "spent"),  # an unknown consumer has it, or its card was burned in another slot
    ("allocated", "burn", "allocated"),  # it becomes one-time-use while an instance has it
    ("allocated", "spend", "spent"),
    ("spent", "burn", "spent"),  # an unknown consumer has it: the confirmation is void
    ("spent", "confirm", "spent"),
    ("spent", "release", "available"),
    ("spent", "release_seen", "available"),
    ("spent", "distrust", "error"),
    ("spent", "rewritten", "error"),
}
# What we add: a bind taken back, a card whose last free handle is gone, a worker that cannot begin, a drive that is not
# the known one, the operator who vouches for it, what a database restored from a backup does not know, and a bind by a
# service that knew no states.
ADDED = {
    ("allocated", "take_bind_back", "available"),
    ("available", "used_up", "allocated"),
    ("pending_cleaning", "cleaning_failed", "error"),
    ("available", "distrust", "error"),
    ("available", "quarantine", "error"),
    ("allocated", "quarantine", "error"),
    ("available", "rewritten", "error"),
    ("allocated", "rewritten", "error"),
    ("error", "accept", "available"),
    ("available", "backfill", "allocated"),
}
ALLOWED = {(source, event): target for source, event, target in SPECIFIED | ONE_TIME_USE | ADDED}


@pytest.mark.parametrize(("source", "event"), list(itertools.product(DeviceState, Event)))
def test_a_state_takes_exactly_the_events_of_the_table(source: DeviceState, event: Event) -> None:
    if (source.value, event.value) in ALLOWED:
        assert transition(source, event).target == ALLOWED[source.value, event.value]
    else:
        with pytest.raises(KeyError):
            transition(source, event)


def test_no_edge_is_written_twice() -> None:
    assert len({(edge.source, edge.event) for edge in TRANSITIONS}) == len(TRANSITIONS)


def test_the_states_are_those_of_the_specification() -> None:
    nvme = {"available", "allocated", "pending_cleaning", "cleaning", "error"}
    assert {state.value for state in DeviceState} == nvme | {"spent"}


def test_a_device_that_was_to_be_erased_becomes_available_only_by_an_erase_or_an_operators_word() -> None:
    ways = {
        (edge.source.value, edge.event.value)
        for edge in TRANSITIONS
        if edge.target is DeviceState.AVAILABLE and edge.source is not DeviceState.ALLOCATED
    }
    assert ways == {("cleaning", "cleaned"), ("error", "accept"), ("spent", "release"), ("spent", "release_seen")}


def test_only_an_operator_ends_a_burn() -> None:
    """Either by the command, or by lowering ``reserved`` in Placement."""
    assert transition(DeviceState.SPENT, Event.RELEASE).actors == {Actor.OPERATOR}
    assert transition(DeviceState.SPENT, Event.RELEASE_SEEN).actors == {Actor.PLACEMENT}


def test_only_the_agent_claims_and_burns_a_device() -> None:
    edges = [edge for edge in TRANSITIONS if edge.event in (Event.CLAIM, Event.BURN)]
    assert {edge.actors for edge in edges} == {frozenset({Actor.AGENT})}


def test_only_an_operator_accepts_a_device_that_was_not_erased() -> None:
    assert transition(DeviceState.ERROR, Event.ACCEPT).actors == {Actor.OPERATOR}


def test_only_the_agent_says_that_a_device_was_erased() -> None:
    assert transition(DeviceState.CLEANING, Event.CLEANED).actors == {Actor.AGENT}


def test_every_edge_has_somebody_who_may_cause_it_and_a_meaning() -> None:
    assert all(edge.actors and edge.meaning for edge in TRANSITIONS)


def test_no_state_is_a_dead_end() -> None:
    reached = {DeviceState.AVAILABLE}
    for _ in DeviceState:
        reached |= {edge.source for edge in TRANSITIONS if edge.target in reached}
    assert reached == set(DeviceState)


def test_nobody_works_with_an_idle_device() -> None:
    assert {DeviceState.AVAILABLE, DeviceState.SPENT, DeviceState.ERROR} == IDLE_STATES


def test_the_diagram_shows_every_state_and_every_edge_once() -> None:
    head, *lines, foot = dot().splitlines()
    assert (head, lines[:2], foot) == (
        "digraph device_state {",
        ["  rankdir=LR;", "  node [shape=box, style=rounded];"],
        "}",
    )
    edges = [f'  {source} -> {target} [label="{event}"];' for source, event, target in SPECIFIED | ONE_TIME_USE | ADDED]
    assert sorted(lines[2:]) == sorted([*(f"  {state};" for state in DeviceState), *edges])
    assert dot().endswith("}\n")
