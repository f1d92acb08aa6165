"""``device_spec``: the language in which an operator says which devices are meant, and what of them.

It is Nova's language, read strictly: what Nova would ignore or take for everything is an error here
that names the option, the entry and the key, since a typo may decide whether a drive is erased.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

from autoclave.exceptions import InvalidConfiguration
from autoclave.rules import json_options
from autoclave.rules.cleanup_policy import ClearAction, ClearStrategy, allowed_actions
from autoclave.rules.json_options import option_entries, unknown_key
from autoclave.rules.pci_address import ANY_ADDRESS, AddressPattern, PCIAddress, parse_pci_id

KeyParser = Callable[[object], Any]
"""Turns the JSON value of a key into its meaning; its ValueError says what is wrong with the value."""


KeyCheck = Callable[[Mapping[str, Any]], None]
"""Given the parsed extra keys of an entry; its ValueError says which of them contradict each other."""


@dataclass(frozen=True)
class ExtraKeys:
    """What the entries of one option may say besides which devices they mean.

    :param parsers: each key that is allowed, with its parser.
    :param checks: a check by the key that it blames; it runs on the entries that give this key.
    :param refused: keys that operators know from other options, with the reason why not here.
    """

    parsers: Mapping[str, KeyParser]
    checks: Mapping[str, KeyCheck] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceSpec:
    """One entry of a device_spec option.

    :param entry: its number, counted from 1 over all values of the option.
    :param text: the entry as JSON, for messages.
    :param vendor_id: four lower-case hexadecimal digits, or None for any.
    :param product_id: likewise.
    :param extra: the parsed values of the option's extra keys that the entry gives.
    :param contradiction: why those values cannot be met together, naming option, entry and key; None: they can. Only
        where the reader keeps such entries.
    """

    entry: int
    text: str
    vendor_id: str | None
    product_id: str | None
    address: AddressPattern
    extra: Mapping[str, Any] = field(hash=False)
    contradiction: str | None = None

    @property
    def clear_action(self) -> ClearAction:
        """Which operation may erase the device."""
        return ClearAction(self.extra.get("clear_action", ClearAction.AUTO))

    @property
    def clear_strategy(self) -> ClearStrategy:
        """Which mechanism the operation may use."""
        return ClearStrategy(self.extra.get("clear_strategy", ClearStrategy.AUTO))

    def matches(self, vendor_id: str, product_id: str, address: PCIAddress, parent: PCIAddress | None = None) -> bool:
        """Whether the entry means the function.

        An entry that spells out the one address of a physical function also means its virtual functions.

        :param parent: for a virtual function, the address of its physical function.
        :raises ValueError: *vendor_id* or *product_id* is not hexadecimal of at most four digits.
        """
        return (
            self.vendor_id in (None, parse_pci_id(vendor_id))
            and self.product_id in (None, parse_pci_id(product_id))
            and (self.address.matches(address) or (parent is not None and self.address.single == parent))
        )


def first_match(
    specs: Iterable[DeviceSpec],
    vendor_id: str,
    product_id: str,
    address: PCIAddress,
    parent: PCIAddress | None = None,
) -> DeviceSpec | None:
    """Return the first entry, in the order of the configuration, that means the function.

    :raises ValueError: as :meth:`DeviceSpec.matches`.
    """
    return next((spec for spec in specs if spec.matches(vendor_id, product_id, address, parent)), None)


def _id_pattern(value: object) -> str | None:
    if not isinstance(value, str):
        raise ValueError(f'must be a string of hexadecimal digits, such as "144d", not {json_options.kind(value)}')
    return None if value.strip() == "*" else parse_pci_id(value)


def _clear_action(value: object) -> ClearAction:
    return ClearAction(_word(value, ClearAction))


def _clear_strategy(value: object) -> ClearStrategy:
    return ClearStrategy(_word(value, ClearStrategy))


def _word(value: object, words: Iterable[str]) -> str:
    if not isinstance(value, str) or value not in set(words):
        raise ValueError(f"must be one of {', '.join(words)}, not {json_options.kind(value)}")
    return value


def _policy_is_possible(keys: Mapping[str, Any]) -> None:
    allowed_actions(
        ClearAction(keys.get("clear_action", ClearAction.AUTO)),
        ClearStrategy(keys.get("clear_strategy", ClearStrategy.AUTO)),
    )


CLEANUP_KEYS = ExtraKeys(
    parsers={"clear_action": _clear_action, "clear_strategy": _clear_strategy},
    checks={"clear_strategy": _policy_is_possible},
    refused={
        "devname": "names a network interface, and an NVMe controller has none; give its address instead",
        "one_time_use": "is for devices that nobody erases, in [pci] device_spec; these are erased after every use",
    },
)
"""The extra keys of ``[nvme] device_spec``."""

_MATCH_KEYS = ("vendor_id", "product_id", "address")

_Meaning = TypeVar("_Meaning")


def parse_device_spec(
    values: Sequence[str],
    *,
    option: str = "[nvme] device_spec",
    extra_keys: ExtraKeys = CLEANUP_KEYS,
    keep_contradictions: bool = False,
) -> tuple[DeviceSpec, ...]:
    """Read all values of a device_spec option, each a JSON object or a list of them, in their order.

    :param option: the option's name, for messages.
    :param extra_keys: what its entries may say besides vendor_id, product_id and address.
    :param keep_contradictions: return an entry whose extra keys contradict each other, with its contradiction: the
        caller excludes its devices, and serves those of the other entries.
    :raises InvalidConfiguration: anything in them is not exactly as it must be.
    """
    parsed = (_parse_entry(entry, raw, option, extra_keys) for entry, raw in option_entries(values, option))
    return tuple(_judged(spec, option, extra_keys, keep=keep_contradictions) for spec in parsed)


def _judged(spec: DeviceSpec, option: str, extra_keys: ExtraKeys, *, keep: bool) -> DeviceSpec:
    for key, check in extra_keys.checks.items():
        if key not in spec.extra:
            continue
        try:
            check(spec.extra)
        except ValueError as e:
            error = InvalidConfiguration(str(e), option=option, entry=spec.entry, key=key)
            if not keep:
                raise error from None
            return replace(spec, contradiction=str(error))
    return spec


def _parse_entry(entry: int, raw: object, option: str, extra_keys: ExtraKeys) -> DeviceSpec:
    def wrong(message: str, key: str | None = None) -> InvalidConfiguration:
        return InvalidConfiguration(message, option=option, entry=entry, key=key)

    if not isinstance(raw, dict):
        raise wrong(f'must be a JSON object such as {{"vendor_id": "144d"}}, not {json_options.kind(raw)}')
    known = [*_MATCH_KEYS, *extra_keys.parsers]
    for key in raw:
        if key in extra_keys.refused:
            raise wrong(extra_keys.refused[key], key)
        if key not in known:
            raise wrong(unknown_key(key, known), key)

    def read(key: str, parser: Callable[[object], _Meaning]) -> _Meaning:
        try:
            return parser(raw[key])
        except ValueError as e:
            raise wrong(str(e), key) from None

    vendor_id = read("vendor_id", _id_pattern) if "vendor_id" in raw else None
    product_id = read("product_id", _id_pattern) if "product_id" in raw else None
    address = read("address", AddressPattern.parse) if "address" in raw else ANY_ADDRESS
    if address.blank and "vendor_id" not in raw and "product_id" not in raw:
        raise wrong(
            "names no device: give vendor_id, product_id or address. "
            'If every device of the host is meant, write {"address": "*"}'
        )
    extra = {key: read(key, parser) for key, parser in extra_keys.parsers.items() if key in raw}
    return DeviceSpec(entry, json.dumps(raw), vendor_id, product_id, address, MappingProxyType(extra))
