"""What must become of the inventory of a PCI function that serves one instance only (one-time-use specification).

A device is burned from the moment an instance claims it. Burned is a fact of the database; in Placement it reads
``reserved=total``. It ends with the operator's release, of which there are two: one asked of Autoclave
(``release_pending``), and one seen in Placement, where the operator has lowered ``reserved`` by hand. The second
counts only after the burn was *confirmed*: after the device was seen idle with ``reserved=total``. Whoever lowered
``reserved`` before that cannot have meant the device as its last instance has left it.
"""

from enum import StrEnum
from typing import NamedTuple


class BurnState(StrEnum):
    """Where a device of one time use is in its life, in its history."""

    NOT_BURNED = "not_burned"
    BURNED = "burned"
    """An instance has it, or had it."""
    CONFIRMED = "confirmed"
    """It was seen idle and reserved since."""
    RELEASED = "released"
    """An operator has said that it is clean; Placement is to be told."""


class BurnEvent(StrEnum):
    """What moves it on."""

    BURN = "burn"
    """An instance gets it, or has it already when it becomes of one time use."""
    CONFIRM = "confirm"
    RELEASE = "release"
    """An operator has asked for it."""
    RELEASE_SEEN = "release_seen"
    """Somebody has lowered ``reserved`` in Placement."""
    OFFER = "offer"
    """Placement has been told: it is offered again."""
    BURN_ENDS = "burn_ends"
    """An instance gets what is of one time use no more."""
    TAKE_BACK = "take_back"
    """An operator has taken a function back from an instance that is not there."""
    HOST_RENAMED = "host_renamed"
    """An operator has given its host another name; it stays what it is."""
    UNREADABLE = "unreadable"
    """Its agent could not look at it for too long."""
    READABLE = "readable"
    """Its agent has read it again."""


class BurnFacts(NamedTuple):
    """What the database says of a provider of PCI functions, as far as offering it is concerned.

    :param confirmed: it was seen idle with reserved=total since it was burned.
    :param claimed: an instance has one of its functions.
    :param missing: the host, or its configuration, has none of its functions any more.
    :param doubted: its agent cannot look at it, or its configuration has changed; and not all of it is in use.
    :param withheld: Autoclave has reserved it for such a doubt, and has not lowered it since.
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
    """What Placement says of the provider's resource class.

    Others may write the record as a whole, so no field of it is judged by another field alone.

    :param ours: the total that Autoclave has written, or is to write.
    """

    total: int
    reserved: int
    ours: int

    @property
    def is_full(self) -> bool:
        """Return whether everything that we offer is reserved. A larger total that another wrote changes nothing."""
        return self.reserved >= min(self.total, self.ours)


class Verdict(StrEnum):
    """What to do about an inventory."""

    RAISE = "raise"
    """Write reserved=total, even over an equal value: the write defeats a slower writer with older news."""
    LOWER = "lower"
    """Write reserved=0; then the burn, if there is one, is over."""
    RELEASED = "released"
    """The operator has lowered ``reserved``: from now on a release is pending."""
    CONFIRM = "confirm"
    """It reads reserved=total, and no instance has it. If Placement has no user of it either, the burn is confirmed."""
    KEEP = "keep"
    """``reserved`` stays as it is."""
    HOLD = "hold"
    """``reserved`` stays total although the device is not burned: somebody else holds it."""


def must_be_reserved(facts: BurnFacts) -> bool:
    """Whether ``reserved`` must equal ``total``: the one formula for providers of PCI functions."""
    return facts.doubted or _stays_burned(facts)


def _stays_burned(facts: BurnFacts) -> bool:
    return facts.burned and (facts.claimed or facts.missing or not facts.release_pending)


def verdict(facts: BurnFacts, reading: Reading | None) -> Verdict:
    """What follows from the row and from what Placement said while the row was like that.

    :param reading: None if the provider has no inventory of its class, which says nothing about a release.
    """
    if _stays_burned(facts):
        if reading is None or facts.claimed:
            return Verdict.RAISE
        if facts.release_pending:  # what is not there is not offered, whoever has said that it is clean
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
    """Return whether an instance to which Placement has allocated the device may have it.

    An allocation proves no release: another may have raised ``total``. Settle a confirmed device before its claim;
    then a release that was given directly in Placement has ended the burn, or is pending.
    """
    return not facts.doubted and (not facts.burned or facts.release_pending)
