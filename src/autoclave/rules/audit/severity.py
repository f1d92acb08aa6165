"""How bad a finding is, and what ``--fix`` may do about one."""

from enum import StrEnum


class Severity(StrEnum):
    """How bad a finding is."""

    RISK = "promise at risk"
    """Somebody may get, or has got, what nobody vouches for."""
    LESS = "offered too little"
    """What could be used is not offered, or somebody waits in vain."""
    UNTIDY = "untidy"
    """A record that is wrong, and does no harm as long as the others are right."""
    UNSEEN = "not seen"
    """What would tell could not be read. Nothing is concluded from that."""
    INFO = "information"
    """As somebody wants it, or as it must be. Does not count."""


class Fix(StrEnum):
    """What ``--fix`` does. Each of them makes a device less available, none of them more."""

    RAISE = "reserved=total"
    """Tell Placement what the row demands."""
    DISTRUST = "to error"
    """Take the device out of ``available``: somebody else has it, or has written to it."""
    ALLOCATE = "allocation"
    """Give an instance again, in Placement, what its row says that it has."""
