"""The address of a PCI function: domain, bus, slot, function."""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

_HIGHEST_OF_GUESTS = 0xFFFF
"""The greatest domain that Nova's and QEMU's addresses of host devices have room for."""
_FULL_FORM = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class PCIAddress:
    """One PCI function of a host. Orders as the bus does: by domain, bus, slot, function.

    :param domain: 0 to ffffffff. Linux gives the roots it invents, as VMD's, domains from 10000 on.
    :param bus: 0 to ff.
    :param slot: 0 to 1f; attach_info and the PCI specification call it the device.
    :param function: 0 to 7.
    :raises ValueError: a field is out of its range.
    """

    domain: int
    bus: int
    slot: int
    function: int

    HIGHEST: ClassVar[dict[str, int]] = {"domain": 0xFFFFFFFF, "bus": 0xFF, "slot": 0x1F, "function": 0x7}
    """The greatest value of each field, in the order in which an address is written."""
    WIDTH: ClassVar[dict[str, int]] = {"domain": 4, "bus": 2, "slot": 2, "function": 1}
    """Hexadecimal digits to which each field is padded."""

    def __post_init__(self) -> None:
        for name, highest in self.HIGHEST.items():
            value = getattr(self, name)
            if not 0 <= value <= highest:
                raise ValueError(f"a PCI address has no {name} {value:x}: the highest is {highest:x}")

    @classmethod
    def parse(cls, text: str) -> "PCIAddress":
        """Read the full form ``dddd:bb:ss.f``, in upper or lower case, with up to eight digits of domain.

        :raises ValueError: *text* is anything else.
        """
        return _parse(text)

    def fields(self) -> tuple[str, str, str, str]:
        """Domain, bus, slot and function as padded lower-case hexadecimal, as they are written."""
        return f"{self.domain:04x}", f"{self.bus:02x}", f"{self.slot:02x}", f"{self.function:x}"

    def as_attach_info(self) -> dict[str, str]:
        """The address as it stands in an ARQ's ``attach_handle_info``."""
        return dict(zip(("domain", "bus", "device", "function"), self.fields(), strict=True))

    @property
    def upper(self) -> str:
        """The address in upper case, as provider names carry it."""
        return str(self).upper()

    def __str__(self) -> str:
        return "{}:{}:{}.{}".format(*self.fields())


def unattachable(address: PCIAddress) -> str | None:
    """Return why no guest can get the function at *address*; None if one can."""
    if address.domain <= _HIGHEST_OF_GUESTS:
        return None
    return (
        f"its PCI domain {address.domain:x} is above {_HIGHEST_OF_GUESTS:x}, as behind Intel VMD, and neither Nova nor "
        "QEMU can attach it to a guest: disable VMD for its slot in the firmware"
    )


@lru_cache(maxsize=16384)
def _parse(text: str) -> PCIAddress:
    found = _FULL_FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r} is not a full PCI address, such as 0000:0a:00.1 (domain:bus:slot.function)")
    try:
        return PCIAddress(*(int(field, 16) for field in found.groups()))
    except ValueError as e:
        raise ValueError(f"{text!r}: {e}") from None
