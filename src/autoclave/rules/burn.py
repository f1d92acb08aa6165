"""Decide what becomes of the inventory of a one-time-use PCI function (one-time-use specification).

A device is burned from the moment that an instance claims it. The database records the burn; Placement shows it as
``reserved=total``. The operator's release ends it. The operator either calls Autoclave (``release_pending``) or lowers
``reserved`` in Placement. A change in Placement counts only after the burn is *confirmed*: the device was seen idle
with ``reserved=total``. An earlier change cannot refer to the device as its last instance left it.
"""

from enum import StrEnum
from typing import NamedTuple


class BurnState(StrEnum):
    """List the states that the history of a one-time-use device shows."""

    NOT_BURNED = "not_burned"
    BURNED = "burned"
    """An instance has, or had, the device."""
    CONFIRMED = "confirmed"
    """The device was seen idle and reserved after its burn."""
    RELEASED = "released"
    """An operator declared the device clean; Placement has yet to be updated."""


class BurnEvent(StrEnum):
    """List the events that change a :class:`BurnState`."""

    BURN = "burn"
    """An instance claims the device, or has it already when it becomes one-time-use."""
    CONFIRM = "confirm"
    RELEASE = "release"
    """An operator requested the release from Autoclave."""
    RELEASE_SEEN = "release_seen"
    """``reserved`` was lowered directly in Placement."""
    OFFER = "offer"
    """Placement has been updated: the device is offered again."""
    BURN_ENDS = "burn_ends"
    """An instance gets a device that is no longer one-time-use."""
    TAKE_BACK = "take_back"
    """An operator reclaimed a function from an instance that does not exist."""
    HOST_RENAMED = "host_renamed"
    """An operator renamed the host; the state stays the same."""
    UNREADABLE = "unreadable"
    """The agent could not read the device for too long."""
    READABLE = "readable"
    """The agent can read the device again."""


class BurnFacts(NamedTuple):
    """Hold the columns of a provider of PCI functions that decide whether it is offered.

    :param confirmed: the provider was seen idle with ``reserved=total`` after its burn.
    :param claimed: an instance has one of its functions.
    :param missing: the host, or its configuration, no longer has any of its functions.
    :param doubted: its agent cannot read it, or its configuration has changed, while part of it is free.
    :param withheld: Autoclave has reserved it for such a doubt, and has not lowered ``reserved`` since.
    """

    one_time_use: bool
    burned: bool
    confirmed: bool
    release_pending: bool
    claimed: bool
    missing: bool = False
    doubted: bool = False
    withheld: bool = False


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
    LOWER = "lower"
    """Write ``reserved=0``, and end the burn, if any."""
    RELEASED = "released"
    """Record a pending release: the operator has lowered ``reserved``."""
    CONFIRM = "confirm"
    """Confirm the burn, unless Placement has a user of the provider: it is reserved and no instance has it."""
    KEEP = "keep"
    """Leave ``reserved`` unchanged."""
    HOLD = "hold"
    """Leave ``reserved=total`` although the device is not burned: an operator holds it in Placement."""


def must_be_reserved(facts: BurnFacts) -> bool:
    """Return whether ``reserved`` must equal ``total`` for a provider of PCI functions."""
    return facts.doubted or _stays_burned(facts)


def _stays_burned(facts: BurnFacts) -> bool:
    return facts.burned and (facts.claimed or facts.missing or not facts.release_pending)


def verdict(facts: BurnFacts, reading: Reading | None) -> Verdict:
    """Return the action for a row and for the inventory that was read while the row was unchanged.

    :param reading: None if the provider has no inventory of its class, which does not indicate a release.
    """
    if _stays_burned(facts):
        if reading is None or facts.claimed:
            return Verdict.RAISE
        if facts.release_pending:  # a missing device is not offered, even with a pending release
            return Verdict.KEEP if reading.is_full else Verdict.RAISE
        if reading.is_full:
            return Verdict.KEEP if facts.confirmed else Verdict.CONFIRM
        return Verdict.RELEASED if facts.confirmed else Verdict.RAISE
    if facts.doubted:
        return Verdict.KEEP if reading is not None and reading.is_full else Verdict.RAISE
    if reading is None or facts.release_pending or facts.withheld:
        return Verdict.LOWER
    return Verdict.HOLD if reading.is_full else Verdict.KEEP


def may_be_claimed(facts: BurnFacts) -> bool:
    """Return whether an instance may claim the device that Placement has allocated to it.

    An allocation does not prove a release: another client may have raised ``total``. Reconcile a confirmed device
    before its claim. Then a release made directly in Placement has ended the burn, or is pending.
    """
    return not facts.doubted and (not facts.burned or facts.release_pending)
