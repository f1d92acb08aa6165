"""Explicit-state check of the protocol of one device: two instances, their requests, the agent, conductors, people."""

from collections.abc import Iterator
from time import process_time

from promises import device_instances, device_requests
from promises.device_state import (
    ALLOCATED,
    AVAILABLE,
    BINDERS,
    DIRTY_OFFERED,
    ERASE,
    ERROR,
    FLAVOR,
    HOLD,
    INSTANCES,
    NONE,
    PROFILE,
    SPENT,
    State,
)
from promises.search import Broken, Explored, search

HELD = State(parties=("period", "cleaner"))
ERASED = State(policy=ERASE, reclaim=ERASE, parties=("period",))
UNCLEANED = State(policy=NONE, reclaim=NONE, parties=("period",))
REQUESTED = {"requested_by": PROFILE}
STARTS = {
    "hold: the agent dies": HELD._replace(deaths=1),
    "hold: a cleaner releases": HELD._replace(lives=(1, 1)),
    "hold: somebody writes carelessly": HELD._replace(edits=1, lives=(1, 1), parties=("period", "careless")),
    "hold: an operator releases": HELD._replace(edits=1, lives=(1, 1), parties=("api",)),
    "hold: a provider vanishes": HELD._replace(removals=1),
    "hold: a second writer amends the total": HELD._replace(edits=1, lives=(1, 1), parties=("period", "second")),
    "hold: an operator configures": HELD._replace(changes=1, parties=("period", "cleaner", "configuration")),
    "hold: a stranger allocates": HELD._replace(edits=1, parties=("period", "cleaner", "stranger")),
    "erase: the agent dies": ERASED._replace(deaths=1, recleans=1, lives=(1, 0)),
    "erase: two instances": ERASED._replace(lives=(1, 1)),
    "erase: somebody writes carelessly": ERASED._replace(edits=1, lives=(1, 1), parties=("period", "careless")),
    "erase: an operator configures": ERASED._replace(changes=1, parties=("period", "configuration")),
    "erase: a provider vanishes": ERASED._replace(removals=1),
    "none: a second writer amends the total": UNCLEANED._replace(edits=1, lives=(1, 1), parties=("period", "second")),
    "none: another holds it": UNCLEANED._replace(edits=1, lives=(1, 1), parties=("period", "holder")),
    "none: doubt": UNCLEANED._replace(
        changes=2, edits=1, lives=(1, 0), parties=("period", "configuration", "doubt", "holder")
    ),
    "none: doubt, two writers": UNCLEANED._replace(
        changes=3, edits=0, lives=(0, 0), deaths=1, parties=("period", "configuration", "doubt", "conductor")
    ),
    "none: doubt, hold, two writers": UNCLEANED._replace(
        changes=2, edits=1, lives=(0, 0), parties=("period", "configuration", "doubt", "conductor", "holder")
    ),
    "profile, erase": ERASED._replace(**REQUESTED, deaths=1, recleans=1, lives=(1, 0), failures=1),
    "profile, erase: two instances": ERASED._replace(**REQUESTED, lives=(1, 1)),
    "profile, erase: toggles": ERASED._replace(**REQUESTED, lives=(1, 0), toggles=1),
    "profile, hold": HELD._replace(**REQUESTED, deaths=1, lives=(1, 0), failures=1),
    "profile, hold: two instances": HELD._replace(**REQUESTED, lives=(1, 1)),
    "profile, hold: somebody writes carelessly": HELD._replace(
        **REQUESTED, edits=1, lives=(1, 1), parties=("period", "careless")
    ),
    "profile, hold: an operator releases": HELD._replace(**REQUESTED, edits=1, lives=(1, 1), parties=("period", "api")),
    "profile, none": UNCLEANED._replace(**REQUESTED, deaths=1, lives=(1, 1)),
}
"""What goes wrong, one after the other: all at once has too many states for a test."""


def steps(s: State, mutation: str) -> Iterator[tuple[str, State]]:
    """Everything that can happen next."""
    if s.requested_by == FLAVOR:
        for number, name in enumerate(INSTANCES, start=1):
            for what, x in device_instances.live(s, number, name, mutation):
                yield f"{name} {what}", x
    else:
        for number, name in enumerate(INSTANCES, start=1):
            for what, x in device_requests.serve(s, number, name, mutation):
                yield f"{name} {what}", device_requests.renewed(x)
        for number, name in enumerate(BINDERS, start=1):
            for what, x in device_requests.bind(s, number, name, mutation):
                yield f"{name} {what}", device_requests.renewed(x)
        for what, x in device_requests.sweep(s, mutation):
            yield f"sweep {what}", device_requests.renewed(x)
    if s.reclaim == ERASE:
        for what, x in device_requests.work(s, mutation):
            yield f"worker {what}", x
    for what, x in device_instances.period(s, mutation):
        yield f"period {what}", x
    yield from device_instances.operate(s, mutation)
    yield from device_instances.die(s)


def check(s: State) -> None:
    """See that *s* keeps the promise of what is offered.

    :raises Broken: it does not.
    """
    if not s.offered or s.edited:
        return
    left = s.device == ALLOCATED and not s.active
    if s.dirty or left or s.device not in (AVAILABLE, ALLOCATED, SPENT):
        raise Broken(DIRTY_OFFERED)


def is_good(s: State) -> bool:
    """It is offered, or only a human can bring it back."""
    return s.offered or (s.device == ERROR and not s.recleans) or (s.doubted and not s.changes)


def explore(mutation: str = "", start: State | None = None) -> Explored:
    """Breadth first, until a promise is broken or every state was seen."""
    start = start or State()
    # Nothing releases a spent device where no cleaner takes part.
    alive = start.policy != HOLD or "cleaner" in start.parties
    return search(start, lambda s: steps(s, mutation), check=check, is_good=is_good if alive else None)
