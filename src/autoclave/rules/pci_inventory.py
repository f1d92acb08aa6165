"""Derive the providers of a host's PCI functions from ``[pci] device_spec``.

The keys of the option are Nova's (its administrator guide, "PCI passthrough"), with ``one_time_use`` of the
one-time-use-devices specification. Nova takes an unknown key for a tag; here it is refused, since it may be a
misspelled ``one_time_use``. Providers, classes and traits have the form of Nova's PCI tracking in Placement, so that
operators and their tools recognize them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import Any

from autoclave.exceptions import InvalidConfiguration
from autoclave.rules import json_options, resource_names
from autoclave.rules.device_spec import DeviceSpec, ExtraKeys, parse_device_spec
from autoclave.rules.pci_address import PCIAddress, parse_pci_id
from autoclave.rules.reclaim import RECLAIM_CHECKS, RECLAIM_PARSERS, Reclaim, ReclaimPolicy, require_agreement
from autoclave.rules.resource_names import FLAVOR_TRAITS, pci_resource_class

DEVICE_SPEC_OPTION = "[pci] device_spec"
FUNCTIONS_DRIVER = "pci_device_spec"
"""The driver name of the devices that this option selects."""


def parse_pci_device_spec(values: Sequence[str]) -> tuple[DeviceSpec, ...]:
    """Parse the entries of ``[pci] device_spec``.

    :raises InvalidConfiguration: a value or an entry is invalid.
    """
    return parse_device_spec(values, option=DEVICE_SPEC_OPTION, extra_keys=DEVICE_SPEC_KEYS)


def left_to_neutron(spec: DeviceSpec) -> bool:
    """Return whether the entry's functions are for ports of Neutron: such functions are not published to Placement."""
    return "physical_network" in spec.extra or spec.extra.get("remote_managed", False)


def _physical_network(value: object) -> str | None:
    """Accept null, which in Nova stands for the tunnels of Neutron."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be the name of a network, or null for tunnels, not {json_options.kind(value)}")
    return value


def _protects(keys: Mapping[str, Any]) -> None:
    require_agreement(keys)
    if keys["one_time_use"]:
        _require_for_flavors(keys)


def _reclaims(keys: Mapping[str, Any]) -> None:
    RECLAIM_CHECKS["reclaim"](keys)
    if keys["reclaim"] is not Reclaim.NONE:
        _require_for_flavors(keys)


def _require_for_flavors(keys: Mapping[str, Any]) -> None:
    for key in ("physical_network", "remote_managed"):
        if keys.get(key, False) is not False:
            raise ValueError(f"protects nothing beside {key}, which leaves the function to Neutron")


DEVICE_SPEC_KEYS = ExtraKeys(
    parsers={
        "managed": json_options.boolean,
        "live_migratable": json_options.boolean,
        "one_time_use": json_options.boolean,
        "resource_class": resource_names.resource_class,
        "traits": resource_names.device_traits,
        "physical_network": _physical_network,
        "trusted": json_options.boolean,
        "remote_managed": json_options.boolean,
        **RECLAIM_PARSERS,
    },
    checks={"one_time_use": _protects, **RECLAIM_CHECKS, "reclaim": _reclaims},
    refused={
        "devname": "names a network interface, which has no name any more while a guest has it; give its address",
        "clear_strategy": 'is for [nvme] device_spec; here, the methods are "clear_action": "reset" and "command"',
    },
)
"""The extra keys of ``[pci] device_spec``."""


class DevType(StrEnum):
    """List Nova's types of PCI functions: without SR-IOV, capable of virtual functions, and virtual."""

    PCI = "type-PCI"
    PF = "type-PF"
    VF = "type-VF"


@dataclass(frozen=True, slots=True)
class PCIFunction:
    """Describe one PCI function of a host.

    :param vendor_id: four lower-case hexadecimal digits.
    :param product_id: four lower-case hexadecimal digits.
    :param parent: for a virtual function, its physical function; None if the host does not show it.
    """

    address: PCIAddress
    vendor_id: str
    product_id: str
    dev_type: DevType
    parent: PCIAddress | None = None


class SpecIndex:
    """Index entries by their exact address, or else by their ids.

    Only patterns with the same ids are tried one after the other. So the time does not grow with the number of entries.

    :param specs: the entries in the order of the configuration.
    """

    def __init__(self, specs: Iterable[DeviceSpec]) -> None:
        self._by_address: dict[PCIAddress, list[DeviceSpec]] = {}
        self._by_ids: dict[tuple[str | None, str | None], list[DeviceSpec]] = {}
        for spec in specs:
            if spec.address.single is not None:
                self._by_address.setdefault(spec.address.single, []).append(spec)
            else:
                self._by_ids.setdefault((spec.vendor_id, spec.product_id), []).append(spec)

    def first_match(
        self, vendor_id: str, product_id: str, address: PCIAddress, parent: PCIAddress | None = None
    ) -> DeviceSpec | None:
        """Return the same as :func:`autoclave.rules.device_spec.first_match` for all the entries.

        :raises ValueError: an id is not hexadecimal of at most four digits.
        """
        ids = product((parse_pci_id(vendor_id), None), (parse_pci_id(product_id), None))
        places = [self._by_address.get(address), self._by_address.get(parent) if parent else None]
        places += [self._by_ids.get(pair) for pair in ids]
        found = [
            next((spec for spec in place if spec.matches(vendor_id, product_id, address, parent)), None)
            for place in places
            if place
        ]
        return min((spec for spec in found if spec is not None), key=lambda spec: spec.entry, default=None)


ONE_TIME_USE = "HW_PCI_ONE_TIME_USE"
LIVE_MIGRATABLE = "HW_PCI_LIVE_MIGRATABLE"


@dataclass(frozen=True, slots=True)
class Match:
    """Pair a function with the first entry that selects it."""

    function: PCIFunction
    entry: DeviceSpec

    @property
    def slot(self) -> PCIAddress:
        """Return the address of its provider: its physical function's, or else its own."""
        return self.function.parent or self.function.address

    @property
    def fault(self) -> InvalidConfiguration | None:
        """Return the error if the entry sets a key that this function does not support, or None."""
        if left_to_neutron(self.entry):
            if self.function.dev_type is DevType.PF and self.entry.extra.get("remote_managed", False):
                return self.wrong("is a physical function; the ports of a DPU are virtual ones", "remote_managed")
            return None
        if self.function.dev_type is not DevType.VF:
            return None
        if self.function.parent is None:
            return self.wrong(
                "is a virtual function, and this host does not show of which physical function, whose provider it "
                "would belong to; let no entry match it"
            )
        if "one_time_use" in self.entry.extra:
            return self.wrong(
                "is a virtual function. Only whole devices (type-PCI, type-PF) can be of one time use, since virtual "
                "functions share a provider. Leave the key out of an entry that means them",
                "one_time_use",
            )
        if self.reclaim is not Reclaim.NONE:
            return self.wrong(
                "is a virtual function. Only whole devices (type-PCI, type-PF) can be erased or held, since virtual "
                "functions share a provider. Leave the key out of an entry that means them",
                "reclaim",
            )
        return None

    @property
    def policy(self) -> ReclaimPolicy:
        """Return what becomes of the function after each instance."""
        return ReclaimPolicy.of(self.entry.extra)

    @property
    def managed(self) -> bool:
        """Return whether libvirt detaches the function from the host's driver and reattaches it."""
        return bool(self.entry.extra.get("managed", True))

    @property
    def resource_class(self) -> str:
        """Return the configured class, or the class derived from the ids."""
        configured: str | None = self.entry.extra.get("resource_class")
        return configured or pci_resource_class(self.function.vendor_id, self.function.product_id)

    @property
    def one_time_use(self) -> bool:
        """Return whether the function stays reserved after its instance."""
        return self.reclaim is Reclaim.HOLD

    @property
    def reclaim(self) -> Reclaim:
        """Return the reclaim policy."""
        return self.policy.reclaim

    @property
    def traits(self) -> frozenset[str]:
        """Return all traits of its provider."""
        given: frozenset[str] = self.entry.extra.get("traits", frozenset())
        follow = {ONE_TIME_USE: self.one_time_use, LIVE_MIGRATABLE: self.entry.extra.get("live_migratable", False)}
        return FLAVOR_TRAITS | given | {name for name, holds in follow.items() if holds}

    def wrong(self, message: str, key: str | None = None) -> InvalidConfiguration:
        """Return the error of an entry that does not fit this function. *message* continues after the function's
        address.
        """
        return InvalidConfiguration(
            f"{self.function.address} {message}", option=DEVICE_SPEC_OPTION, entry=self.entry.entry, key=key
        )


def matches(functions: Iterable[PCIFunction], specs: Iterable[DeviceSpec]) -> Iterator[Match]:
    """Yield the functions for flavors, and those with a :attr:`Match.fault`.

    Functions for Neutron's ports are left out.
    """
    for match in all_matches(functions, specs):
        if not left_to_neutron(match.entry) or match.fault is not None:
            yield match


def all_matches(functions: Iterable[PCIFunction], specs: Iterable[DeviceSpec]) -> Iterator[Match]:
    """Yield every function that an entry selects, including those for Neutron's ports."""
    index = SpecIndex(specs)
    for function in functions:
        entry = index.first_match(function.vendor_id, function.product_id, function.address, function.parent)
        if entry is not None:
            yield Match(function, entry)


@dataclass(frozen=True, slots=True)
class ClaimableFunction:
    """Describe one function that an instance can claim.

    :param managed: libvirt detaches it from the host's driver and reattaches it.
    """

    address: PCIAddress
    dev_type: DevType
    vendor_id: str
    product_id: str
    managed: bool


@dataclass(frozen=True, slots=True)
class PCIProvider:
    """Describe a provider below the host's provider, with one inventory.

    :param address: the function in the slot; for virtual functions, their physical function.
    :param traits: all traits that the provider should have.
    :param reclaim: its reclaim policy.
    :param functions: the functions that instances can claim, in bus order.
    """

    address: PCIAddress
    resource_class: str
    traits: frozenset[str]
    reclaim: Reclaim
    functions: tuple[ClaimableFunction, ...]
    cleanup_action: str | None = None
    """The method that cleans it, if its policy is to erase."""

    @property
    def one_time_use(self) -> bool:
        """Return whether it stays reserved after its instance until the operator releases it."""
        return self.reclaim is Reclaim.HOLD

    @property
    def total(self) -> int:
        """Return the total of its inventory."""
        return len(self.functions)


@dataclass(frozen=True, slots=True)
class Translation:
    """Hold the providers that ``[pci] device_spec`` derives from a host's functions.

    :param providers: in bus order.
    :param faults: by slot, the error of entries that cannot be applied there. Such a slot has no provider.
    """

    providers: tuple[PCIProvider, ...]
    faults: Mapping[PCIAddress, InvalidConfiguration]


def translate(functions: Iterable[PCIFunction], specs: Sequence[DeviceSpec]) -> Translation:
    """Return the providers of the functions that *specs* select.

    Each function has its own provider, except that virtual functions share the provider of their physical function. A
    slot gets no provider if its entries do not fit its functions, or contradict each other.

    :param specs: the entries of ``[pci] device_spec``; the first that selects a function applies.
    """
    slots: dict[PCIAddress, list[Match]] = {}
    for match in matches(functions, specs):
        slots.setdefault(match.slot, []).append(match)
    providers: list[PCIProvider] = []
    faults: dict[PCIAddress, InvalidConfiguration] = {}
    for slot in sorted(slots):
        members = sorted(slots[slot], key=lambda match: match.function.address)
        fault = _fault(slot, members)
        if fault is not None:
            faults[slot] = fault
            continue
        first = members[0]
        claimable = tuple(_claimable(match) for match in members)
        action = first.policy.cleanup_action
        providers.append(PCIProvider(slot, first.resource_class, first.traits, first.reclaim, claimable, action))
    return Translation(tuple(providers), faults)


def _fault(slot: PCIAddress, members: Sequence[Match]) -> InvalidConfiguration | None:
    """Return why the functions of one slot cannot form one provider, or None if they can."""
    own = next((match.fault for match in members if match.fault is not None), None)
    if own is not None:
        return own
    virtual = [match for match in members if match.function.address != slot]
    if len(virtual) not in (0, len(members)):
        return _dependent(next(match for match in members if match.function.address == slot), virtual[0])
    first = members[0]
    for other in members[1:]:
        if other.resource_class != first.resource_class:
            return _differs(slot, first, other, "resource_class", first.resource_class, other.resource_class)
        if other.traits != first.traits:
            return _differs(slot, first, other, "traits", _names(first.traits), _names(other.traits))
    return None


def _names(traits: frozenset[str]) -> str:
    return ", ".join(sorted(traits))


def _claimable(match: Match) -> ClaimableFunction:
    it = match.function
    return ClaimableFunction(it.address, it.dev_type, it.vendor_id, it.product_id, match.managed)


def _dependent(physical: Match, virtual: Match) -> InvalidConfiguration:
    if physical.entry is virtual.entry:
        also = (
            "is meant by the same entry. The address of a physical function also means its virtual functions; add the "
            "product_id of those that you mean"
        )
    else:
        also = f"is meant by entry {virtual.entry.entry}. Let entries mean the one or the others"
    return physical.wrong(
        f"is a physical function, and whoever gets it takes the virtual ones from other guests, of which "
        f"{virtual.function.address} {also}"
    )


def _differs(slot: PCIAddress, first: Match, other: Match, key: str, has: str, would: str) -> InvalidConfiguration:
    return other.wrong(
        f"would have {would}, but {first.function.address} has {has} by entry {first.entry.entry}. Both are virtual "
        f"functions of {slot} and share its provider: let the entries that mean them say the same",
        key,
    )


def double_claims(
    functions: Sequence[PCIFunction], specs: Iterable[DeviceSpec], claimed: Mapping[PCIAddress, str]
) -> dict[PCIAddress, InvalidConfiguration]:
    """Return the functions that entries of ``[pci] device_spec`` select although a device driver has them.

    A card is one slot and one provider. If a driver has its physical function or a virtual one, flavors get none of
    them.

    :param functions: all functions of the host.
    :param claimed: the name of the driver by address, for functions that the drivers offer or would offer.
    :returns: by the function's address, the error that names the function, the entry and the driver.
    """
    slots = dict(claimed)
    for function in functions:
        if function.parent is not None and function.address in claimed:
            slots.setdefault(function.parent, claimed[function.address])
    found = {}
    for match in matches(functions, specs):
        address = match.function.address
        driver = claimed.get(address) or slots.get(match.slot)
        if driver is not None:
            what = "it" if address in claimed else f"functions of the same card, {match.slot}"
            found[address] = match.wrong(
                f"is for instances by flavor, but the driver {driver} has {what}. Let only the one or the other match"
            )
    return found
