"""Define who asks for a device, and what becomes of it after each instance."""

from enum import StrEnum


class RequestedBy(StrEnum):
    """List the two ways in which instances ask for a device."""

    PROFILE = "profile"
    """By a device profile. The accelerator API shows the device, and an accelerator request binds it."""
    FLAVOR = "flavor"
    """By a flavor: an alias, or resources and traits. The agent claims the device for the instance."""


class Reclaim(StrEnum):
    """List the reclaim policies: what becomes of a device after each instance."""

    ERASE = "erase"
    """Its driver cleans the device and proves it; then the device is offered again."""
    HOLD = "hold"
    """One-time use: the device is ``spent`` until an operator releases it."""
    NONE = "none"
    """The device is offered again as its instance has left it."""


def policy_of(device_type: str) -> Reclaim:
    """Return the reclaim policy of a device whose driver names none: a drive is erased, another device is not."""
    return Reclaim.ERASE if device_type == "NVME" else Reclaim.NONE


def guarantee(reclaim: Reclaim, cleanup_action: str | None) -> str:
    """Describe for users what the next instance can expect of a device.

    :param cleanup_action: the method that cleans it, or None.
    """
    if reclaim is Reclaim.HOLD:
        return "held until released"
    if reclaim is Reclaim.NONE:
        return RETURNS_UNCLEANED
    if cleanup_action == RESET:
        return f"{RETURNS_UNCLEANED} ({RESET})"
    return f"erased by {cleanup_action or 'its driver'}"


RETURNS_UNCLEANED = "returns uncleaned"
"""The action of a device that is neither erased nor held: the next guest finds the data of the last one."""
RESET = "reset"
"""The method that resets a device. It proves nothing about the memory of the device, so it is not shown as an erase."""
COMMAND = "command"
"""The method that runs a program of the operator. Its exit status 0 counts as the operator's word."""


class BurnState(StrEnum):
    """List the states in which ``burned`` shows a one-time-use device."""

    NOT_BURNED = "not_burned"
    BURNED = "burned"
    """An instance has, or had, the device."""
    CONFIRMED = "confirmed"
    """The device was seen idle and reserved after its burn."""
    RELEASED = "released"
    """An operator declared the device clean; Placement has yet to be updated."""
