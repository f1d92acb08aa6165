"""The one formula that decides ``reserved`` (design §3, rule 2), and the state that a device is shown with."""

from enum import StrEnum
from typing import NamedTuple

from autoclave.rules.device_lifecycle import DeviceState


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

    ``db.shown_states`` is the same in SQL.

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
