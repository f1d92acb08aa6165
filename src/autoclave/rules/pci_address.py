"""Parse and match the addresses of PCI functions, and their vendor and product ids.

The ``address`` of a device_spec entry is a glob, or an object with a regular expression for each field. Both are Nova's
forms (its administrator guide, "PCI passthrough"). Unlike in Nova, an expression must match the whole field, so that
``8`` does not match ``81``.
"""

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from autoclave.rules import json_options

_HIGHEST_OF_GUESTS = 0xFFFF
"""The greatest domain that the addresses of host devices in Nova and QEMU can hold."""
_FULL_FORM = re.compile(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", re.IGNORECASE | re.ASCII)


@dataclass(frozen=True, order=True, slots=True)
class PCIAddress:
    """Identify one PCI function of a host. Addresses sort by domain, bus, slot, function.

    :param domain: 0 to ffffffff. Linux numbers the roots that it creates, as for VMD, from 10000 on.
    :param bus: 0 to ff.
    :param slot: 0 to 1f; attach_info and the PCI specification call it the device.
    :param function: 0 to 7.
    :raises ValueError: a field is out of range.
    """

    domain: int
    bus: int
    slot: int
    function: int

    HIGHEST: ClassVar[dict[str, int]] = {"domain": 0xFFFFFFFF, "bus": 0xFF, "slot": 0x1F, "function": 0x7}
    """The greatest value of each field, in the written order."""
    WIDTH: ClassVar[dict[str, int]] = {"domain": 4, "bus": 2, "slot": 2, "function": 1}
    """The number of hexadecimal digits to which each field is padded."""

    def __post_init__(self) -> None:
        for name, highest in self.HIGHEST.items():
            value = getattr(self, name)
            if not 0 <= value <= highest:
                raise ValueError(f"a PCI address has no {name} {value:x}: the highest is {highest:x}")

    @classmethod
    def parse(cls, text: str) -> "PCIAddress":
        """Parse the full form ``dddd:bb:ss.f``, in upper or lower case, with up to eight digits of domain.

        :raises ValueError: *text* has another form.
        """
        return _parse(text)

    def fields(self) -> tuple[str, str, str, str]:
        """Return domain, bus, slot and function as padded lower-case hexadecimal."""
        return f"{self.domain:04x}", f"{self.bus:02x}", f"{self.slot:02x}", f"{self.function:x}"

    def as_attach_info(self) -> dict[str, str]:
        """Return the address in the form of an ARQ's ``attach_handle_info``."""
        return dict(zip(("domain", "bus", "device", "function"), self.fields(), strict=True))

    @property
    def upper(self) -> str:
        """Return the address in upper case, as used in provider names."""
        return str(self).upper()

    def __str__(self) -> str:
        return "{}:{}:{}.{}".format(*self.fields())


def unattachable(address: PCIAddress) -> str | None:
    """Return why the function at *address* cannot be attached to a guest, or None if it can."""
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


_HEX = re.compile(r"[0-9a-f]{1,8}", re.IGNORECASE | re.ASCII)
_ANYTHING = re.compile(".*")


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """Match a set of PCI addresses.

    :param fields: the expressions that domain, bus, slot and function must match in full, as padded lower-case
        hexadecimal.
    :param single: the address, if the pattern matches exactly one.
    :param blank: the pattern is given but restricts no field.
    """

    fields: tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str], re.Pattern[str]]
    single: PCIAddress | None = None
    blank: bool = False

    @classmethod
    def parse(cls, value: object) -> "AddressPattern":
        """Parse the JSON value of ``address``.

        A string is ``[[[domain]:][bus]:][slot][.[function]]``. Every field is hexadecimal, or ``*`` for any, or left
        out, which also means any. An object maps ``domain``, ``bus``, ``slot`` and ``function`` to regular expressions.
        They match the zero-padded field without case; a field that is left out matches any value.

        :raises ValueError: it is neither, a field is out of range, or a regular expression is invalid.
        """
        match value:
            case str():
                return _glob(value)
            case dict():
                return _expressions(value)
        raise ValueError(
            f"must be a string such as '*:0a:00.*' or an object of regular expressions, not {json_options.kind(value)}"
        )

    def matches(self, address: PCIAddress) -> bool:
        """Return whether the pattern matches *address*."""
        domain, bus, slot, function = self.fields
        written = address.fields()
        return bool(
            bus.fullmatch(written[1])  # first, since the bus differs between most functions
            and domain.fullmatch(written[0])
            and slot.fullmatch(written[2])
            and function.fullmatch(written[3])
        )


ANY_ADDRESS = AddressPattern((_ANYTHING,) * 4, blank=True)
"""The pattern of an entry without ``address``."""


def _glob(text: str) -> AddressPattern:
    front, _, function = text.partition(".")
    colons = front.split(":")
    if len(colons) > 3:
        raise ValueError(f"{text!r} has too many colons; the form is domain:bus:slot.function")
    written = [""] * (3 - len(colons)) + [field.strip() for field in colons] + [function.strip()]
    numbers = [
        None if field in ("", "*") else _number(text, name, field)
        for name, field in zip(PCIAddress.HIGHEST, written, strict=True)
    ]
    domain, bus, slot, func = (
        _ANYTHING if number is None else re.compile(f"{number:0{width}x}")
        for number, width in zip(numbers, PCIAddress.WIDTH.values(), strict=True)
    )
    spelled_out = [number for number in numbers if number is not None]
    return AddressPattern(
        (domain, bus, slot, func),
        single=PCIAddress(*spelled_out) if len(spelled_out) == len(numbers) else None,
        blank=not any(written),
    )


def _number(text: str, name: str, field: str) -> int:
    if _HEX.fullmatch(field) is None:
        raise ValueError(
            f"{text!r}: the {name} {field!r} is neither hexadecimal nor '*'; for anything finer, give an object "
            "of regular expressions"
        )
    number = int(field, 16)
    if number > PCIAddress.HIGHEST[name]:
        raise ValueError(f"{text!r}: the {name} {field!r} is out of range: the highest is {PCIAddress.HIGHEST[name]:x}")
    return number


def _expressions(value: dict[str, object]) -> AddressPattern:
    for name in value:
        if name not in PCIAddress.HIGHEST:
            raise ValueError(f"an address has no field {name!r}, only {', '.join(PCIAddress.HIGHEST)}")
    domain, bus, slot, function = (
        _expression(name, value[name]) if name in value else _ANYTHING for name in PCIAddress.HIGHEST
    )
    return AddressPattern((domain, bus, slot, function), blank=not value)


def _expression(name: str, value: object) -> re.Pattern[str]:
    if not isinstance(value, str):
        raise ValueError(f"the {name} must be a regular expression in a string, not {json_options.kind(value)}")
    if not value:
        raise ValueError(f"the {name} is an empty regular expression, which no address matches; write '.*' for any")
    try:
        return re.compile(value, re.IGNORECASE | re.ASCII)
    except (re.error, OverflowError, RecursionError) as e:
        raise ValueError(f"the {name} {value!r} is not a regular expression: {e}") from None


_ID = re.compile(r"(?:0x)?([0-9a-f]{1,4})", re.IGNORECASE | re.ASCII)


@lru_cache(maxsize=4096)
def parse_pci_id(text: str) -> str:
    """Normalize a PCI vendor or product id to four lower-case hexadecimal digits.

    Upper case, a prefix ``0x``, missing leading zeroes and surrounding space are accepted.

    :raises ValueError: it is not hexadecimal, or has more than four digits.
    """
    found = _ID.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a PCI id: one to four hexadecimal digits, such as '144d'")
    return found[1].lower().zfill(4)
