"""The one formula that decides ``reserved`` (design §3, rule 2)."""

from typing import NamedTuple

from autoclave.rules.device_states import DeviceState


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


def must_be_reserved(offer: Offer) -> bool:
    """Whether ``reserved`` must equal ``total``: the device must not be offered.

    A device whose state is unknown (None: a row not yet backfilled) is not vouched for.
    """
    return offer.device_state is not DeviceState.AVAILABLE or any(offer[1:])
