"""The state in which a device enters the database (design §4, "First discovery")."""

from typing import NamedTuple

from autoclave.rules.device_lifecycle import DeviceState


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
