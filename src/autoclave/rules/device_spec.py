"""Parse ``device_spec``: the entries by which an operator selects devices and sets their options.

The language is Nova's, read strictly. Nova ignores some faults or reads them as a wildcard. Here they are errors that
name the option, the entry and the key. A typo may decide whether a drive is erased.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, TypeVar

from autoclave.exceptions import InvalidConfiguration
from autoclave.rules import json_options, resource_names
from autoclave.rules.cleanup_policy import ClearAction, ClearStrategy, allowed_actions
from autoclave.rules.json_options import option_entries, unknown_key
from autoclave.rules.pci_address import ANY_ADDRESS, AddressPattern, PCIAddress, parse_pci_id
from autoclave.rules.reclaim import RequestedBy

KeyParser = Callable[[object], Any]
"""Converts the JSON value of a key. Its ValueError describes the fault of the value."""


KeyCheck = Callable[[Mapping[str, Any]], None]
"""Checks the parsed extra keys of an entry. Its ValueError describes the keys that contradict each other."""


@dataclass(frozen=True)
class ExtraKeys:
    """Define the keys that an option accepts in addition to those that select devices.

    :param parsers: the parser of each accepted key.
    :param checks: the checks by the key that they blame; each runs on entries that give this key.
    :param refused: the reason to refuse a key, for keys that operators know from other options.
    """

    parsers: Mapping[str, KeyParser]
    checks: Mapping[str, KeyCheck] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class DeviceSpec:
    """Hold one entry of a device_spec option.

    :param entry: its number, counted from 1 over all values of the option.
    :param text: the entry as JSON, for messages.
    :param vendor_id: four lower-case hexadecimal digits, or None for any vendor.
    :param product_id: four lower-case hexadecimal digits, or None for any product.
    :param extra: the parsed values of the option's extra keys that the entry gives.
    :param contradiction: why the extra keys contradict each other, naming option, entry and key; None if they do not.
        It is set only if the caller keeps such entries.
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
        """Return the operation that may erase the device."""
        return ClearAction(self.extra.get("clear_action", ClearAction.AUTO))

    @property
    def requested_by(self) -> RequestedBy:
        """Return whether device profiles or flavors ask for the device."""
        return RequestedBy(self.extra.get("requested_by", RequestedBy.PROFILE))

    @property
    def clear_strategy(self) -> ClearStrategy:
        """Return the mechanism that the operation may use."""
        return ClearStrategy(self.extra.get("clear_strategy", ClearStrategy.AUTO))

    def matches(self, vendor_id: str, product_id: str, address: PCIAddress, parent: PCIAddress | None = None) -> bool:
        """Return whether the entry selects the function.

        An entry with the exact address of a physical function also selects its virtual functions.

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
    """Return the first entry, in the order of the configuration, that selects the function.

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


def _requested_by(value: object) -> RequestedBy:
    return RequestedBy(_word(value, RequestedBy))


def _is_for_flavors(keys: Mapping[str, Any]) -> None:
    if keys.get("requested_by") is not RequestedBy.FLAVOR:
        raise ValueError('is for drives that flavors ask for: add "requested_by": "flavor"')


CLEANUP_KEYS = ExtraKeys(
    parsers={
        "clear_action": _clear_action,
        "clear_strategy": _clear_strategy,
        "requested_by": _requested_by,
        "resource_class": resource_names.resource_class,
        "traits": resource_names.device_traits,
    },
    checks={
        "clear_strategy": _policy_is_possible,
        "resource_class": _is_for_flavors,
        "traits": _is_for_flavors,
    },
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
    """Parse all values of a device_spec option, each a JSON object or a list of them, in their order.

    :param option: the option's name, for messages.
    :param extra_keys: the keys accepted in addition to vendor_id, product_id and address.
    :param keep_contradictions: return an entry whose extra keys contradict each other, with its contradiction. The
        caller then excludes only the devices of that entry.
    :raises InvalidConfiguration: a value or an entry is invalid.
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
