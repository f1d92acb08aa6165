"""The device_state table: states, events, and who may cause them.

The database enum, the API's vocabulary and the diagram in the documentation are made from this
table. It is the state machine of the NVMe specification, plus the transitions that design §4 adds
(taking a bind back, a type that needs no cleaning, a drive that is not the one the row names), plus the way out of
a database that was restored from a backup.
"""

from enum import StrEnum
from typing import NamedTuple


class DeviceState(StrEnum):
    """Where a device is in its life. Only ``available`` is ever offered to Placement."""

    AVAILABLE = "available"
    """Clean, and proved so: it may be bound."""
    ALLOCATED = "allocated"
    """Bound, or being bound, to an instance."""
    PENDING_CLEANING = "pending_cleaning"
    """Released by its instance; a worker will erase it."""
    CLEANING = "cleaning"
    """A worker is erasing it."""
    ERROR = "error"
    """Not proved clean, or not trusted; waits for the operator."""


class Event(StrEnum):
    """What moves a device from one state to another."""

    BIND = "bind"
    USED_UP = "used_up"
    TAKE_BIND_BACK = "take_bind_back"
    RELEASE = "release"
    REQUEST_CLEANING = "request_cleaning"
    MISSED_CLEANUP = "missed_cleanup"
    CANNOT_CLEAN = "cannot_clean"
    START_CLEANING = "start_cleaning"
    CLEANED = "cleaned"
    CLEANING_FAILED = "cleaning_failed"
    CRASH_RECOVERY = "crash_recovery"
    CLEAN_AGAIN = "clean_again"
    DISTRUST = "distrust"
    QUARANTINE = "quarantine"
    REWRITTEN = "rewritten"
    ACCEPT = "accept"
    BACKFILL = "backfill"


class Actor(StrEnum):
    """Which part of the system causes an event."""

    CONDUCTOR = "conductor"
    AGENT = "agent"
    OPERATOR = "operator"
    PLACEMENT = "placement"
    """Seen there; Placement does not say what wrote it."""


class Transition(NamedTuple):
    """One allowed edge of the state machine."""

    source: DeviceState
    event: Event
    target: DeviceState
    actors: frozenset[Actor]
    meaning: str


def _edge(source: DeviceState, event: Event, target: DeviceState, meaning: str, *actors: Actor) -> Transition:
    return Transition(source, event, target, frozenset(actors), meaning)


_S, _E, _A = DeviceState, Event, Actor

TRANSITIONS: tuple[Transition, ...] = (
    _edge(_S.AVAILABLE, _E.BIND, _S.ALLOCATED, "an accelerator request wins the device", _A.CONDUCTOR),
    _edge(_S.AVAILABLE, _E.USED_UP, _S.ALLOCATED, "instances have all that the card offers now", _A.AGENT),
    _edge(_S.ALLOCATED, _E.TAKE_BIND_BACK, _S.AVAILABLE, "the bind failed before any guest saw it", _A.CONDUCTOR),
    _edge(
        _S.ALLOCATED,
        _E.RELEASE,
        _S.AVAILABLE,
        "unbound, or more was found; needs no cleaning",
        _A.CONDUCTOR,
        _A.AGENT,
    ),
    _edge(_S.ALLOCATED, _E.REQUEST_CLEANING, _S.PENDING_CLEANING, "unbound; the agent was told", _A.AGENT),
    _edge(_S.ALLOCATED, _E.MISSED_CLEANUP, _S.PENDING_CLEANING, "allocated, but no request holds it", _A.AGENT),
    _edge(_S.ALLOCATED, _E.CANNOT_CLEAN, _S.ERROR, "unbound, and its agent cannot clean", _A.CONDUCTOR),
    _edge(_S.PENDING_CLEANING, _E.START_CLEANING, _S.CLEANING, "a worker has the device's lock", _A.AGENT),
    _edge(_S.PENDING_CLEANING, _E.CLEANING_FAILED, _S.ERROR, "the worker could not begin", _A.AGENT),
    _edge(_S.PENDING_CLEANING, _E.CRASH_RECOVERY, _S.ERROR, "its agent died before the erase", _A.AGENT, _A.OPERATOR),
    _edge(_S.CLEANING, _E.CLEANED, _S.AVAILABLE, "the erase was proved", _A.AGENT),
    _edge(_S.CLEANING, _E.CLEANING_FAILED, _S.ERROR, "the erase failed or timed out", _A.AGENT),
    _edge(_S.CLEANING, _E.CRASH_RECOVERY, _S.ERROR, "its agent died during the erase", _A.AGENT, _A.OPERATOR),
    _edge(_S.ERROR, _E.CLEAN_AGAIN, _S.PENDING_CLEANING, "POST /v2/devices/{uuid}/clean", _A.AGENT),
    _edge(_S.AVAILABLE, _E.DISTRUST, _S.ERROR, "nobody vouches any more for what is on it", *_A),
    _edge(
        _S.AVAILABLE, _E.QUARANTINE, _S.ERROR, "a backup was restored: nobody knows who has had it since", _A.OPERATOR
    ),
    _edge(_S.ALLOCATED, _E.QUARANTINE, _S.ERROR, "likewise, and no request in Bound has it", _A.OPERATOR),
    _edge(_S.AVAILABLE, _E.REWRITTEN, _S.ERROR, "another service has rewritten its provider", *_A),
    _edge(_S.ALLOCATED, _E.REWRITTEN, _S.ERROR, "the same, and it was returned since", *_A),
    _edge(
        _S.ERROR, _E.ACCEPT, _S.AVAILABLE, "the operator vouches for it: it was away, or is not cleaned", _A.OPERATOR
    ),
    _edge(_S.AVAILABLE, _E.BACKFILL, _S.ALLOCATED, "a service of the release before has bound it", *_A),
)
"""Every edge there is. What is not here cannot happen: :func:`transition` refuses it."""

_BY_SOURCE_AND_EVENT = {(edge.source, edge.event): edge for edge in TRANSITIONS}

IDLE_STATES = frozenset({DeviceState.AVAILABLE, DeviceState.ERROR})
"""States in which nobody works with the device; its cleanup action may change only here."""
BEING_CLEANED = frozenset({DeviceState.PENDING_CLEANING, DeviceState.CLEANING})
"""States in which a worker has the device, or is about to."""


def transition(source: DeviceState, event: Event) -> Transition:
    """Return the edge for *event* in *source*.

    :raises KeyError: the table has no such edge.
    """
    return _BY_SOURCE_AND_EVENT[source, event]


def dot() -> str:
    """The table as a Graphviz digraph, for the documentation."""
    lines = ["digraph device_state {", "  rankdir=LR;", "  node [shape=box, style=rounded];"]
    lines += [f"  {state.value};" for state in DeviceState]
    lines += [f'  {e.source.value} -> {e.target.value} [label="{e.event.value}"];' for e in TRANSITIONS]
    return "\n".join([*lines, "}"]) + "\n"
