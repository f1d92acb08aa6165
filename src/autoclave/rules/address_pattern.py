"""The ``address`` of a device_spec entry: a glob, or a regular expression for each field.

Both are Nova's forms (its administrator guide, "PCI passthrough"). One thing differs on purpose: a
regular expression must match a field from its first digit to its last, so that ``8`` is not also ``81``.
"""

import re
from dataclasses import dataclass

from autoclave.rules import strict_json
from autoclave.rules.pci_address import PCIAddress

_HEX = re.compile(r"[0-9a-f]{1,8}", re.IGNORECASE | re.ASCII)
_ANYTHING = re.compile(".*")


@dataclass(frozen=True, slots=True)
class AddressPattern:
    """Which PCI addresses are meant.

    :param fields: what domain, bus, slot and function must match, each in full, as padded lower-case
        hexadecimal.
    :param single: the address, where the pattern spells out exactly one.
    :param blank: the pattern is there but says nothing about any field.
    """

    fields: tuple[re.Pattern[str], re.Pattern[str], re.Pattern[str], re.Pattern[str]]
    single: PCIAddress | None = None
    blank: bool = False

    @classmethod
    def parse(cls, value: object) -> "AddressPattern":
        """Read the JSON value of ``address``.

        A string is ``[[[domain]:][bus]:][slot][.[function]]``: every field is hexadecimal, or ``*``, or
        left out, which also means any. An object maps ``domain``, ``bus``, ``slot`` and ``function`` to
        regular expressions, matched without case against the field padded with zeroes; a field left
        out may be anything.

        :raises ValueError: it is neither, a field is out of range or a regular expression is broken.
        """
        match value:
            case str():
                return _glob(value)
            case dict():
                return _expressions(value)
        raise ValueError(
            f"must be a string such as '*:0a:00.*' or an object of regular expressions, not {strict_json.kind(value)}"
        )

    def matches(self, address: PCIAddress) -> bool:
        """Whether *address* is one of those meant."""
        domain, bus, slot, function = self.fields
        written = address.fields()
        return bool(
            bus.fullmatch(written[1])  # first, since it tells most functions apart
            and domain.fullmatch(written[0])
            and slot.fullmatch(written[2])
            and function.fullmatch(written[3])
        )


ANY_ADDRESS = AddressPattern((_ANYTHING,) * 4, blank=True)
"""What an entry without ``address`` says."""


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
        raise ValueError(f"the {name} must be a regular expression in a string, not {strict_json.kind(value)}")
    if not value:
        raise ValueError(f"the {name} is an empty regular expression, which no address matches; write '.*' for any")
    try:
        return re.compile(value, re.IGNORECASE | re.ASCII)
    except (re.error, OverflowError, RecursionError) as e:
        raise ValueError(f"the {name} {value!r} is not a regular expression: {e}") from None
