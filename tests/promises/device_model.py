"""Explicit-state check of the protocol of one device, for device profiles and for flavors, with each reclaim policy.

Every interleaving of two instances, the agent's period and worker, conductors (bind, unbind, sweep), operators, other
writers in Placement, changes of the configuration, and deaths of the agent or a conductor. Versions and generations are
kept as bits: it is still as read. :mod:`device_state` has the device and the order of reconciling,
:mod:`device_instances` the instances of flavors, the period and people, :mod:`device_requests` the requests of profiles
and the worker.

Promises: a guest never gets a dirty device. A dirty device is never offered; after a careless edit, from the end of the
next whole period on. A device is never erased while a request or an instance has it. The hold of another writer is
never lowered. From every state, some path leads to an offer, or to a human.

``explore(start, mutation)`` breaks one rule of the protocol; see :data:`MUTATIONS`.
"""

from collections.abc import Iterator

from promises import device_instances, device_requests
from promises.device_state import (
    ALLOCATED,
    AVAILABLE,
    BINDERS,
    DIRTY_GIVEN,
    DIRTY_OFFERED,
    ERASE,
    ERASED_IN_USE,
    ERROR,
    FLAVOR,
    HOLD,
    HOLD_LOWERED,
    INSTANCES,
    NONE,
    PROFILE,
    SPENT,
    State,
)
from promises.search import LOST, Broken, Explored, search

HELD = State(parties=("period", "cleaner"))
ERASED = State(policy=ERASE, reclaim=ERASE, parties=("period",))
UNCLEANED = State(policy=NONE, reclaim=NONE, parties=("period",))
HELD_FOR_PROFILE, ERASED_FOR_PROFILE, UNCLEANED_FOR_PROFILE = (
    each._replace(requested_by=PROFILE) for each in (HELD, ERASED, UNCLEANED)
)
STARTS = {
    "hold: the agent dies": HELD._replace(deaths=1),
    "hold: a cleaner releases": HELD._replace(lives=(1, 1)),
    "hold: a careless edit": HELD._replace(edits=1, lives=(1, 1), parties=("period", "careless")),
    "hold: an operator releases": HELD._replace(edits=1, lives=(1, 1), parties=("api",)),
    "hold: a cleaner releases, then a careless edit": HELD._replace(
        edits=1, lives=(2, 0), parties=("period", "cleaner", "careless")
    ),
    "hold: a provider vanishes": HELD._replace(removals=1),
    "hold: a second writer amends the total": HELD._replace(edits=1, lives=(1, 1), parties=("period", "second")),
    "hold: an operator configures": HELD._replace(changes=1, parties=("period", "cleaner", "configuration")),
    "hold: a stranger allocates": HELD._replace(edits=1, parties=("period", "cleaner", "stranger")),
    "erase: the agent dies": ERASED._replace(deaths=1, recleans=1),
    "erase: two instances": ERASED._replace(lives=(1, 1)),
    "erase: a provider vanishes": ERASED._replace(removals=1),
    "erase: an operator configures": ERASED._replace(changes=1, parties=("period", "configuration")),
    "none: a second writer amends the total": UNCLEANED._replace(edits=1, lives=(1, 1), parties=("period", "second")),
    "none: another writer holds it": UNCLEANED._replace(edits=1, lives=(1, 1), parties=("period", "holder")),
    "none: doubt": UNCLEANED._replace(changes=2, edits=1, parties=("period", "configuration", "doubt", "holder")),
    "none: doubt, and a conductor": UNCLEANED._replace(
        changes=3, edits=1, lives=(0, 0), parties=("period", "configuration", "doubt", "conductor", "holder")
    ),
    "none: doubt, and the agent dies": UNCLEANED._replace(
        changes=4, deaths=1, parties=("period", "configuration", "doubt", "conductor")
    ),
    "none: doubt, and an operator holds": UNCLEANED._replace(
        changes=4, toggles=1, lives=(0, 0), parties=("period", "configuration", "doubt", "conductor")
    ),
    "none: an operator holds, and a second writer": UNCLEANED._replace(
        edits=1, toggles=1, lives=(1, 0), parties=("period", "second")
    ),
    "profile, erase": ERASED_FOR_PROFILE._replace(deaths=1, recleans=1),
    "profile, erase: one after the other": ERASED_FOR_PROFILE._replace(lives=(2, 0), parties=()),
    "profile, erase: a hold": ERASED_FOR_PROFILE._replace(toggles=1, parties=()),
    "profile, erase: a zombie binds": ERASED_FOR_PROFILE._replace(
        lives=(0, 1), failures=1, arqs=("failed", "none"), parties=()
    ).goes("binder one", "get", "bound"),
    "profile, hold": HELD_FOR_PROFILE._replace(failures=1),
    "profile, hold: a conductor dies": HELD_FOR_PROFILE._replace(deaths=1, parties=("period",)),
    "profile, none": UNCLEANED_FOR_PROFILE._replace(deaths=1, failures=1),
}
"""One trouble a start: all of them at once have too many states for a test."""

LONG_STARTS = {
    "hold: an operator holds": HELD._replace(toggles=1),
    "erase: an operator holds": ERASED._replace(toggles=1),
    "erase: a careless edit": ERASED._replace(edits=1, lives=(1, 1), parties=("period", "careless")),
    "profile, erase: two instances": ERASED_FOR_PROFILE._replace(lives=(1, 1), parties=()),
    "profile, erase: a provider vanishes": ERASED_FOR_PROFILE._replace(removals=1),
    "profile, erase: a careless edit": ERASED_FOR_PROFILE._replace(edits=1, parties=("period", "careless")),
    "profile, hold: a provider vanishes": HELD_FOR_PROFILE._replace(removals=1),
    "profile, hold: an operator releases": HELD_FOR_PROFILE._replace(edits=1, lives=(1, 1), parties=("api",)),
    "profile, hold: a careless edit": HELD_FOR_PROFILE._replace(edits=1, parties=("period", "careless", "cleaner")),
}
"""Further starts, which take too long for every run of the tests."""

MUTATIONS = {
    # of reconciling
    "row read before the generation": ("hold: a provider vanishes", DIRTY_OFFERED),
    "generation ignored": ("hold: an operator releases", DIRTY_OFFERED),
    "retried without reading": ("hold: an operator releases", DIRTY_OFFERED),
    "equal value not written": ("profile, erase: a hold", DIRTY_OFFERED),
    "made again as if clean": ("hold: a provider vanishes", DIRTY_OFFERED),
    "full by the total that is read": ("hold: a second writer amends the total", DIRTY_GIVEN),
    "cleared at any release number": ("profile, erase: a hold", LOST),
    "a release is pending without need": ("none: another writer holds it", HOLD_LOWERED),
    # of what is spent
    "an instance leaves it unspent": ("hold: an operator releases", DIRTY_OFFERED),
    "an unbind leaves it unspent": ("profile, hold", DIRTY_OFFERED),
    "not written to confirm": ("hold: a careless edit", DIRTY_GIVEN),
    "confirmed before its PUT": ("hold: a careless edit", DIRTY_GIVEN),
    "release seen without confirmation": ("hold: a careless edit", DIRTY_GIVEN),
    "release seen without the second GET": ("hold: an operator releases", DIRTY_OFFERED),
    "a release noted at any version": ("hold: a stranger allocates", DIRTY_OFFERED),
    "a seen release is noted at once": ("hold: the agent dies", LOST),
    "a confirmation outlives the release": ("hold: a cleaner releases, then a careless edit", DIRTY_OFFERED),
    "a stranger's allocation is not burned": ("hold: a stranger allocates", DIRTY_OFFERED),
    "strangers are looked for before settling": ("hold: a stranger allocates", DIRTY_OFFERED),
    # of claims and their end
    "claim of what is not available": ("hold: a careless edit", DIRTY_GIVEN),
    "claim of what was confirmed": ("hold: a second writer amends the total", DIRTY_GIVEN),
    "a claim cancels the release": ("none: an operator holds, and a second writer", LOST),
    "not settled again once it is freed": ("hold: an operator configures", DIRTY_OFFERED),
    # of doubt
    "withheld not recorded": ("none: doubt", HOLD_LOWERED),
    "withheld recorded after its PUT": ("none: doubt, and the agent dies", LOST),
    "withheld is not taken back": ("none: doubt", HOLD_LOWERED),
    "what is withheld is not recorded again": ("none: doubt, and an operator holds", LOST),
    "two threads of the agent reconcile at once": ("none: doubt", HOLD_LOWERED),
    "a conductor withholds": ("none: doubt, and a conductor", HOLD_LOWERED),
    # of the configuration
    "a spent row goes with its entry": ("hold: an operator configures", DIRTY_OFFERED),
    "a weaker policy holds at once": ("erase: an operator configures", DIRTY_OFFERED),
    "a stricter policy waits for its end": ("hold: an operator configures", DIRTY_OFFERED),
    "a row goes before its provider": ("hold: an operator configures", LOST),
    # of requests
    "an unbind settles before Deleting": ("profile, erase", DIRTY_OFFERED),
    "an unbind is left unfinished": ("profile, none", LOST),
    "a binder takes back blindly": ("profile, erase: a zombie binds", LOST),
    # of the worker
    "late messages are obeyed": ("profile, erase: one after the other", ERASED_IN_USE),
    "what is held is cleaned": ("erase: two instances", ERASED_IN_USE),
    "cleaned without a pending release": ("erase: two instances", LOST),
}
"""Each broken rule, a start in which it shows, and the promise that it breaks."""


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


def explore(start: State, mutation: str = "") -> Explored:
    """Breadth first, until a promise is broken or every state was seen."""
    # Nothing releases a spent device where no cleaner takes part.
    alive = start.policy != HOLD or "cleaner" in start.parties
    return search(start, lambda s: steps(s, mutation), check=check, is_good=is_good if alive else None)
