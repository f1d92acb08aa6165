"""Define the life of a device and of an accelerator request: states, events, and ``reserved``.

The device_state table: states, events, and who may cause them.

The database enum, the API's vocabulary and the diagram in the documentation are made from this
table. It is the state machine of the NVMe specification, plus transitions of our own
(taking a bind back, a type that needs no cleaning, a drive that is not the one the row names), plus the way out of
a database that was restored from a backup.

The states of an accelerator request (ARQ), and what may follow what.

The one formula that decides ``reserved`` (protocol page, rule 2), and the state that a device is shown with.

The state that the NVMe specification's online data migration gives to a device that has none.

The state in which a device enters the database (protocol page, "First discovery").
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


class ARQState(StrEnum):
    """Cyborg's ARQ states."""

    INITIAL = "Initial"
    """Created; asks for a device, has none."""
    BIND_STARTED = "BindStarted"
    """A conductor works on the bind; its lease says until when it may."""
    BOUND = "Bound"
    """The device is the instance's."""
    BIND_FAILED = "BindFailed"
    """The bind was refused, or taken back."""
    UNBOUND = "Unbound"
    """The device was given back; the request may be bound again."""
    DELETING = "Deleting"
    """A conductor works on the unbind; a lease says until when it may."""


ACTIVE = frozenset({ARQState.BIND_STARTED, ARQState.BOUND, ARQState.DELETING})
"""An ARQ in one of these holds the device and the handle that it is linked to."""

RESOLVED = frozenset({ARQState.BOUND, ARQState.BIND_FAILED, ARQState.DELETING})
"""What ``bind_state=resolved`` means to Nova: the outcome of the bind is known."""

BINDABLE = frozenset({ARQState.INITIAL, ARQState.UNBOUND})
"""States from which a bind may start."""


class Offer(NamedTuple):
    """What the database says of a device, as far as offering it is concerned."""

    device_state: DeviceState | None
    maintaining: bool
    held: bool
    excluded: bool
    missing: bool
    unreadable: bool

    @property
    def withheld(self) -> list[str]:
        """What keeps a device from being offered although it is available, by the names of the fields."""
        return [name for name in self._fields[1:] if getattr(self, name)]


class Withheld(StrEnum):
    """Fields of :class:`Offer` that keep an ``available`` device from being offered. The first that is set is shown."""

    MISSING = "missing"
    """It is not in its slot."""
    EXCLUDED = "excluded"
    """The configuration does not want it, or has no erase for it."""
    UNREADABLE = "unreadable"
    """Its agent could not look at it for too long."""
    HELD = "held"
    """An operator holds it, or it is being forgotten."""
    MAINTAINING = "maintaining"
    """It is disabled, or its host is in maintenance."""


SHOWN_STATES = (*(state.value for state in DeviceState), *(why.value for why in Withheld))
"""What :func:`shown_state` returns for a device whose state is known."""


def shown_state(offer: Offer) -> str | None:
    """Return the state that a device is shown with: nothing that is withheld is called ``available``.

    ``db.query`` is the same in SQL.

    :returns: None if the state is unknown.
    """
    if offer.device_state is DeviceState.AVAILABLE:
        for why in Withheld:
            if getattr(offer, why):
                return why.value
    return offer.device_state.value if offer.device_state else None


def must_be_reserved(offer: Offer) -> bool:
    """Whether ``reserved`` must equal ``total``: the device must not be offered.

    A device whose state is unknown (None: a row not yet backfilled) is not offered.
    """
    return offer.device_state is not DeviceState.AVAILABLE or any(offer[1:])


def is_taken(holders: int, handles: int) -> bool:
    """Whether a device has nothing left to give: by its handles if there are several, else by any request.

    :param holders: active requests for the device.
    :param handles: its attach handles.
    """
    return holders >= max(1, handles)


def backfilled_state(*, holders: int, handles: int, known_dirty: bool) -> tuple[DeviceState, str]:
    """The state and its reason.

    :param known_dirty: its drive is in the ledger of dirty drives, which goes before the specification's rule: it
        would be offered uncleaned.
    """
    if is_taken(holders, handles):
        return DeviceState.ALLOCATED, "backfill: held by accelerator requests from before device states were recorded"
    if known_dirty:
        return DeviceState.ERROR, "backfill: nobody holds it, but its drive is known not to have been cleaned"
    return DeviceState.AVAILABLE, "backfill: no accelerator request held it; clean on the operator's word"


class Slot(NamedTuple):
    """What is known of a slot when a device is first seen in it.

    :param supports_cleaning: the device is of a type that is erased between instances.
    :param unreadable: why the device could not be identified, or None.
    :param exposed: who else may write to it, or None.
    :param known_dirty: its serial number is in the ledger of dirty drives.
    :param elsewhere: other slots that the same drive is on record in, and has not been seen to leave; or None.
    :param provider_reserved: ``reserved`` of a provider of ours that was there before us, or 0.
    :param provider_used: likewise what is allocated from it.
    :param clean_on_discovery: the operator's wish.
    """

    supports_cleaning: bool
    unreadable: str | None
    exposed: str | None
    known_dirty: bool
    elsewhere: str | None
    provider_reserved: int
    provider_used: int
    clean_on_discovery: bool


def initial_state(slot: Slot) -> tuple[DeviceState, str]:
    """The first state and its reason.

    ``pending_cleaning`` means that whoever registers the device also starts to clean it.
    """
    if slot.known_dirty:
        return DeviceState.ERROR, "this drive left another slot without having been cleaned"
    if slot.elsewhere is not None:
        return DeviceState.ERROR, (
            f"the same drive is on record at {slot.elsewhere} too, and was not seen to leave; if it was moved, clean "
            "it here. If both slots have a drive of this serial number, add identify_by_slot with each of the "
            "addresses to [nvme] of its host, and clean both"
        )
    if slot.unreadable is not None:
        return DeviceState.ERROR, f"it could not be identified at first discovery: {slot.unreadable}"
    if slot.exposed is not None:
        return DeviceState.ERROR, slot.exposed
    if slot.provider_used > 0:
        return DeviceState.ERROR, f"its provider was found with {slot.provider_used} in use, by whom is not known here"
    if slot.provider_reserved > 0:
        return DeviceState.ERROR, f"its provider was found with reserved={slot.provider_reserved}"
    if slot.supports_cleaning and slot.clean_on_discovery:
        return DeviceState.PENDING_CLEANING, "cleaned on discovery, as configured"
    return DeviceState.AVAILABLE, "operator's word: first discovery"
