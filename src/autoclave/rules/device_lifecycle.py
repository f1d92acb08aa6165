"""Define the life of a device and of an accelerator request: states, events, and ``reserved``.

The database enum, the API's values and the diagram in the documentation are generated from :data:`TRANSITIONS`. The
table is the state machine of the NVMe specification with additions. These roll back a bind, skip cleaning for some
types, quarantine an unexpected drive, and recover from a restored database backup.
"""

from enum import StrEnum
from typing import NamedTuple


class DeviceState(StrEnum):
    """List the states of a device. Only ``available`` is ever offered to Placement."""

    AVAILABLE = "available"
    """The device is proved clean and may be bound."""
    ALLOCATED = "allocated"
    """The device is bound, or being bound, to an instance."""
    PENDING_CLEANING = "pending_cleaning"
    """The instance released the device; a worker will erase it."""
    CLEANING = "cleaning"
    """A worker erases the device."""
    SPENT = "spent"
    """An instance has had the one-time-use device; it waits for the operator's release."""
    ERROR = "error"
    """The device is not proved clean, or is suspect; it waits for the operator."""


class Event(StrEnum):
    """List the events that change the state of a device."""

    BIND = "bind"
    CLAIM = "claim"
    BURN = "burn"
    USED_UP = "used_up"
    TAKE_BIND_BACK = "take_bind_back"
    RELEASE = "release"
    RELEASE_SEEN = "release_seen"
    SPEND = "spend"
    CONFIRM = "confirm"
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
    """List the components that cause an event."""

    CONDUCTOR = "conductor"
    AGENT = "agent"
    OPERATOR = "operator"
    PLACEMENT = "placement"
    """The change was seen in Placement, which does not record its author."""


class Transition(NamedTuple):
    """Define one allowed edge of the state machine."""

    source: DeviceState
    event: Event
    target: DeviceState
    actors: frozenset[Actor]
    meaning: str


def _edge(source: DeviceState, event: Event, target: DeviceState, meaning: str, *actors: Actor) -> Transition:
    return Transition(source, event, target, frozenset(actors), meaning)


_S, _E, _A = DeviceState, Event, Actor

TRANSITIONS: tuple[Transition, ...] = (
    _edge(_S.AVAILABLE, _E.BIND, _S.ALLOCATED, "an accelerator request gets the device", _A.CONDUCTOR),
    _edge(_S.AVAILABLE, _E.CLAIM, _S.ALLOCATED, "an instance gets the last free function by its flavor", _A.AGENT),
    _edge(_S.AVAILABLE, _E.BURN, _S.SPENT, "another consumer has, or had, the one-time-use device", _A.AGENT),
    _edge(_S.AVAILABLE, _E.USED_UP, _S.ALLOCATED, "instances have all that the card offers now", _A.AGENT),
    _edge(_S.ALLOCATED, _E.TAKE_BIND_BACK, _S.AVAILABLE, "the bind failed before any guest saw it", _A.CONDUCTOR),
    _edge(
        _S.ALLOCATED,
        _E.RELEASE,
        _S.AVAILABLE,
        "returned, or more was found; needs no cleaning",
        _A.CONDUCTOR,
        _A.AGENT,
        _A.OPERATOR,
    ),
    _edge(_S.ALLOCATED, _E.BURN, _S.ALLOCATED, "it becomes one-time-use while an instance has it", _A.AGENT),
    _edge(_S.ALLOCATED, _E.SPEND, _S.SPENT, "the one-time-use device was returned", *_A),
    _edge(
        _S.ALLOCATED, _E.REQUEST_CLEANING, _S.PENDING_CLEANING, "returned; the agent was asked to clean it", _A.AGENT
    ),
    _edge(_S.ALLOCATED, _E.MISSED_CLEANUP, _S.PENDING_CLEANING, "allocated, but no instance holds it", _A.AGENT),
    _edge(_S.ALLOCATED, _E.CANNOT_CLEAN, _S.ERROR, "returned, and its agent cannot clean it", _A.CONDUCTOR),
    _edge(_S.PENDING_CLEANING, _E.START_CLEANING, _S.CLEANING, "a worker has the device's lock", _A.AGENT),
    _edge(_S.PENDING_CLEANING, _E.CLEANING_FAILED, _S.ERROR, "the worker could not begin", _A.AGENT),
    _edge(_S.PENDING_CLEANING, _E.CRASH_RECOVERY, _S.ERROR, "its agent died before the erase", _A.AGENT, _A.OPERATOR),
    _edge(_S.CLEANING, _E.CLEANED, _S.AVAILABLE, "the erase was proved", _A.AGENT),
    _edge(_S.CLEANING, _E.CLEANING_FAILED, _S.ERROR, "the erase failed or timed out", _A.AGENT),
    _edge(_S.CLEANING, _E.CRASH_RECOVERY, _S.ERROR, "its agent died during the erase", _A.AGENT, _A.OPERATOR),
    _edge(_S.SPENT, _E.BURN, _S.SPENT, "an unknown consumer has allocated it since", _A.AGENT),
    _edge(_S.SPENT, _E.CONFIRM, _S.SPENT, "it was seen idle, with reserved=total in Placement", *_A),
    _edge(_S.SPENT, _E.RELEASE, _S.AVAILABLE, "the operator has cleaned it and releases it", _A.OPERATOR),
    _edge(_S.SPENT, _E.RELEASE_SEEN, _S.AVAILABLE, "reserved was lowered in Placement since", _A.PLACEMENT),
    _edge(_S.SPENT, _E.DISTRUST, _S.ERROR, "another card is in the slot", *_A),
    _edge(_S.SPENT, _E.REWRITTEN, _S.ERROR, "another service has rewritten its provider", *_A),
    _edge(_S.ERROR, _E.CLEAN_AGAIN, _S.PENDING_CLEANING, "POST /v2/devices/{uuid}/clean", _A.AGENT),
    _edge(_S.AVAILABLE, _E.DISTRUST, _S.ERROR, "it may have been written to since it was clean", *_A),
    _edge(_S.AVAILABLE, _E.QUARANTINE, _S.ERROR, "a backup was restored, so its users since are unknown", _A.OPERATOR),
    _edge(_S.ALLOCATED, _E.QUARANTINE, _S.ERROR, "the same, and no request in Bound has it", _A.OPERATOR),
    _edge(_S.AVAILABLE, _E.REWRITTEN, _S.ERROR, "another service has rewritten its provider", *_A),
    _edge(_S.ALLOCATED, _E.REWRITTEN, _S.ERROR, "the same, and it was returned since", *_A),
    _edge(
        _S.ERROR,
        _E.ACCEPT,
        _S.AVAILABLE,
        "the operator accepts it as clean: it was away, or is not cleaned",
        _A.OPERATOR,
    ),
    _edge(_S.AVAILABLE, _E.BACKFILL, _S.ALLOCATED, "a service of the release before has bound it", *_A),
)
"""All edges. :func:`transition` refuses every other combination."""

_BY_SOURCE_AND_EVENT = {(edge.source, edge.event): edge for edge in TRANSITIONS}

IDLE_STATES = frozenset({DeviceState.AVAILABLE, DeviceState.SPENT, DeviceState.ERROR})
"""The states in which no component uses the device. Its cleanup action may change only here."""
BEING_CLEANED = frozenset({DeviceState.PENDING_CLEANING, DeviceState.CLEANING})
"""The states in which a worker erases the device, or is about to."""


def transition(source: DeviceState, event: Event) -> Transition:
    """Return the edge for *event* in *source*.

    :raises KeyError: the table has no such edge.
    """
    return _BY_SOURCE_AND_EVENT[source, event]


def dot() -> str:
    """Return the table as a Graphviz digraph for the documentation."""
    lines = ["digraph device_state {", "  rankdir=LR;", "  node [shape=box, style=rounded];"]
    lines += [f"  {state.value};" for state in DeviceState]
    lines += [f'  {e.source.value} -> {e.target.value} [label="{e.event.value}"];' for e in TRANSITIONS]
    return "\n".join([*lines, "}"]) + "\n"


class ARQState(StrEnum):
    """List the states of an accelerator request (ARQ), as in Cyborg."""

    INITIAL = "Initial"
    """The request was created and has no device."""
    BIND_STARTED = "BindStarted"
    """A conductor binds the request until its lease expires."""
    BOUND = "Bound"
    """The instance has the device."""
    BIND_FAILED = "BindFailed"
    """The bind was refused or rolled back."""
    UNBOUND = "Unbound"
    """The device was returned; the request may be bound again."""
    DELETING = "Deleting"
    """A conductor unbinds the request until its lease expires."""


ACTIVE = frozenset({ARQState.BIND_STARTED, ARQState.BOUND, ARQState.DELETING})
"""The states in which an ARQ occupies its device and its attach handle."""

RESOLVED = frozenset({ARQState.BOUND, ARQState.BIND_FAILED, ARQState.DELETING})
"""The states that Nova's filter ``bind_state=resolved`` selects: the outcome of the bind is known."""

BINDABLE = frozenset({ARQState.INITIAL, ARQState.UNBOUND})
"""The states from which a bind may start."""


class Offer(NamedTuple):
    """Hold the columns of a device that decide whether it is offered.

    :param outdated: its host or its configuration has changed, and the device follows when it is free.
    :param lent: a device that instances get by flavor and that returns uncleaned. While instances have all of it, their
        allocations keep others away, as in Nova.
    """

    device_state: DeviceState | None
    maintaining: bool
    held: bool
    excluded: bool
    missing: bool
    unreadable: bool
    outdated: bool = False
    lent: bool = False

    @property
    def withheld(self) -> list[str]:
        """Return the names of the fields that keep an ``available`` device from being offered."""
        return [why.value for why in Withheld if getattr(self, why)]

    @property
    def doubted(self) -> bool:
        """Return whether nothing but a doubt keeps the device from being offered: it is unreadable or outdated."""
        return self.state_allows and set(self.withheld) in _DOUBTS

    @property
    def state_allows(self) -> bool:
        """Return whether the state alone does not require ``reserved=total``: it is available, or lent out."""
        lent_out = self.lent and self.device_state is DeviceState.ALLOCATED
        return lent_out or self.device_state is DeviceState.AVAILABLE


class Withheld(StrEnum):
    """List the fields of :class:`Offer` that withhold an ``available`` device. The first that is set is shown."""

    MISSING = "missing"
    """The device is not in its slot."""
    EXCLUDED = "excluded"
    """The configuration excludes the device, or no allowed erase is supported."""
    UNREADABLE = "unreadable"
    """The agent could not read the device for too long."""
    OUTDATED = "outdated"
    """The host or its configuration has changed, and the device follows when it is free."""
    HELD = "held"
    """An operator holds the device, or it is being forgotten."""
    MAINTAINING = "maintaining"
    """The device is disabled, or its host is in maintenance."""


_DOUBTS = ({Withheld.UNREADABLE}, {Withheld.OUTDATED}, {Withheld.UNREADABLE, Withheld.OUTDATED})


SHOWN_STATES = (*(state.value for state in DeviceState), *(why.value for why in Withheld))
"""All values that :func:`shown_state` returns for a device whose state is known."""


def shown_state(offer: Offer) -> str | None:
    """Return the state to show for a device; a withheld device is never shown as ``available``.

    ``db.query`` implements the same in SQL.

    :returns: None if the state is unknown.
    """
    if offer.device_state is DeviceState.AVAILABLE:
        for why in Withheld:
            if getattr(offer, why):
                return why.value
    return offer.device_state.value if offer.device_state else None


def must_be_reserved(offer: Offer) -> bool:
    """Return whether ``reserved`` must equal ``total``, so that the device is not offered.

    A device whose state is unknown (None: a row not yet backfilled) is not offered.
    """
    return not offer.state_allows or bool(offer.withheld)


class Reading(NamedTuple):
    """Hold the inventory of the provider's resource class in Placement.

    Other clients may replace the whole record, so no field is judged by another field alone.

    :param ours: the total that Autoclave wrote, or will write.
    """

    total: int
    reserved: int
    ours: int

    @property
    def is_full(self) -> bool:
        """Return whether all that Autoclave offers is reserved, even if another client raised the total."""
        return self.reserved >= min(self.total, self.ours)


class Verdict(StrEnum):
    """List the actions on an inventory."""

    RAISE = "raise"
    """Write ``reserved=total``, even over an equal value: the new generation defeats a slower, outdated writer."""
    WITHHOLD = "withhold"
    """Record that Autoclave reserves the device for a doubt, then write ``reserved=total``."""
    LOWER = "lower"
    """Write ``reserved=0``, and clear the pending release."""
    RELEASED = "released"
    """Make the spent device available: the operator has lowered ``reserved``."""
    CONFIRM = "confirm"
    """Write ``reserved=total`` and confirm the spent device, unless Placement has a user of the provider."""
    KEEP = "keep"
    """Leave ``reserved`` unchanged."""
    HOLD = "hold"
    """Leave ``reserved=total``: an operator holds the device in Placement."""


class Reserving(NamedTuple):
    """Hold the columns of a device that decide what ``reserved`` must be.

    :param confirmed: the spent device was seen idle with ``reserved=total``.
    :param release_pending: Autoclave must lower ``reserved``.
    :param withheld: Autoclave has reserved the device for a doubt, and has not lowered ``reserved`` since.
    """

    offer: Offer
    confirmed: bool
    release_pending: bool
    withheld: bool


def verdict(device: Reserving, reading: Reading | None) -> Verdict:
    """Return the action for a device and the inventory that was read before it.

    A lowered ``reserved`` releases a spent device only after its confirmation. An earlier change cannot refer to the
    device as its last instance left it.

    :param reading: None if the provider has no inventory of its class, which does not indicate a release.
    """
    offer = device.offer
    if offer.device_state is DeviceState.SPENT and reading is not None:
        if reading.is_full:
            return Verdict.KEEP if device.confirmed else Verdict.CONFIRM
        return Verdict.RELEASED if device.confirmed else Verdict.RAISE
    if offer.doubted:
        return Verdict.KEEP if reading is not None and reading.is_full else Verdict.WITHHOLD
    if must_be_reserved(offer):
        return Verdict.RAISE
    if reading is None or device.release_pending or device.withheld:
        return Verdict.LOWER
    return Verdict.HOLD if reading.is_full else Verdict.KEEP


def is_taken(holders: int, handles: int) -> bool:
    """Return whether a device is fully used: all of its handles, or the device itself if it has at most one.

    :param holders: the number of active requests for the device.
    :param handles: the number of its attach handles.
    """
    return holders >= max(1, handles)


def backfilled_state(*, holders: int, handles: int, known_dirty: bool) -> tuple[DeviceState, str]:
    """Return the state that a backfill gives to a device without one, and the reason.

    :param known_dirty: the drive is in the ledger of dirty drives. This overrides the rule of the NVMe specification
        for online data migration, which would offer the drive uncleaned.
    """
    if is_taken(holders, handles):
        return DeviceState.ALLOCATED, "backfill: held by accelerator requests from before device states were recorded"
    if known_dirty:
        return DeviceState.ERROR, "backfill: nobody holds it, but its drive is known not to have been cleaned"
    return DeviceState.AVAILABLE, "backfill: no accelerator request held it; clean on the operator's word"


class Slot(NamedTuple):
    """Hold the facts about a slot at the first discovery of a device in it.

    :param supports_cleaning: the device is of a type that is erased between instances.
    :param unreadable: why the device could not be identified, or None.
    :param exposed: what else may write to the device, or None.
    :param known_dirty: its serial number is in the ledger of dirty drives.
    :param elsewhere: other slots that have the same drive on record and were not seen to lose it, or None.
    :param provider_reserved: ``reserved`` of a provider that existed before the device was registered, or 0.
    :param provider_used: the amount allocated from such a provider, or 0.
    :param clean_on_discovery: the option of that name.
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
    """Return the state in which a device enters the database, and the reason.

    If the state is ``pending_cleaning``, the component that registers the device also starts its cleaning.
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
