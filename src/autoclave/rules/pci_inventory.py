"""Derive what Placement gets of a host's PCI functions from ``[pci] device_spec``.

``[pci] device_spec``: what an entry says of the PCI functions that instances get by flavor.

The keys are Nova's (its administrator guide, "PCI passthrough"), and ``one_time_use`` of the one-time-use-devices
specification. Nova takes a key that it does not know for a tag; here it is refused, since it may be a misspelled
``one_time_use``.

A PCI function of a host, as far as ``[pci] device_spec`` and Placement are concerned.

Which entry of ``[pci] device_spec`` means which function, and what it says of it.

What Placement is told of a host's PCI functions: providers, their classes, traits and totals.

The form is that of Nova's PCI tracking in Placement, so that operators and their tools find what they know; a device
of one time use is marked as the one-time-use-devices specification demands. The time follows the number of functions.

A PCI function belongs to one half: instances get it by flavor, or a device driver offers it.

Which entry of a device_spec option means a function, found without trying every entry on every function.
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
from autoclave.rules.resource_names import pci_resource_class

DEVICE_SPEC_OPTION = "[pci] device_spec"

_OTHERS_TRAITS = {
    "HW_PCI_ONE_TIME_USE": "it follows from the key one_time_use; alone it would promise what nobody keeps",
    "HW_PCI_LIVE_MIGRATABLE": "it follows from the key live_migratable",
    "OWNER_CYBORG": "it marks what the accelerator half offers, and these functions are not its",
}


def parse_pci_device_spec(values: Sequence[str]) -> tuple[DeviceSpec, ...]:
    """The entries of ``[pci] device_spec``.

    :raises InvalidConfiguration: anything in them is not exactly as it must be.
    """
    return parse_device_spec(values, option=DEVICE_SPEC_OPTION, extra_keys=DEVICE_SPEC_KEYS)


def left_to_neutron(spec: DeviceSpec) -> bool:
    """Whether the entry's functions are for ports of Neutron, and so not for flavors: Placement does not get them."""
    return "physical_network" in spec.extra or spec.extra.get("remote_managed", False)


def _traits(value: object) -> frozenset[str]:
    names = resource_names.traits(value)
    for name, reason in _OTHERS_TRAITS.items():
        if name in names:
            raise ValueError(f"{name} cannot be given: {reason}")
    return names


def _physical_network(value: object) -> str | None:
    """Null, as in Nova, is a network that Neutron makes of tunnels."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be the name of a network, or null for tunnels, not {json_options.kind(value)}")
    return value


def _protects(keys: Mapping[str, Any]) -> None:
    for key in ("physical_network", "remote_managed"):
        if keys["one_time_use"] and keys.get(key, False) is not False:
            raise ValueError(f"protects nothing beside {key}, which leaves the function to Neutron")


DEVICE_SPEC_KEYS = ExtraKeys(
    parsers={
        "managed": json_options.boolean,
        "live_migratable": json_options.boolean,
        "one_time_use": json_options.boolean,
        "resource_class": resource_names.resource_class,
        "traits": _traits,
        "physical_network": _physical_network,
        "trusted": json_options.boolean,
        "remote_managed": json_options.boolean,
    },
    checks={"one_time_use": _protects},
    refused={
        "devname": "names a network interface, which has no name any more while a guest has it; give its address",
        "clear_action": "is for [nvme] device_spec; nothing is erased here, but see one_time_use",
        "clear_strategy": "is for [nvme] device_spec; nothing is erased here, but see one_time_use",
    },
)
"""The extra keys of ``[pci] device_spec``."""


class DevType(StrEnum):
    """Nova's types: without SR-IOV, able to have virtual functions, and virtual."""

    PCI = "type-PCI"
    PF = "type-PF"
    VF = "type-VF"


@dataclass(frozen=True, slots=True)
class PCIFunction:
    """One function.

    :param vendor_id: four lower-case hexadecimal digits.
    :param product_id: likewise.
    :param parent: for a virtual function, its physical function; None where the host does not show it.
    """

    address: PCIAddress
    vendor_id: str
    product_id: str
    dev_type: DevType
    parent: PCIAddress | None = None


class SpecIndex:
    """The entries by what they spell out: one address, or else ids. Only patterns are tried one after another.

    :param specs: in the order of the configuration.
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
        """As :func:`autoclave.rules.device_spec.first_match` of all the entries.

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


ALWAYS = frozenset({"COMPUTE_MANAGED_PCI_DEVICE", "OWNER_NOVA"})
"""The traits of every PCI provider."""
ONE_TIME_USE = "HW_PCI_ONE_TIME_USE"
LIVE_MIGRATABLE = "HW_PCI_LIVE_MIGRATABLE"


@dataclass(frozen=True, slots=True)
class Match:
    """A function, and the first entry that means it."""

    function: PCIFunction
    entry: DeviceSpec

    @property
    def slot(self) -> PCIAddress:
        """Whose provider it belongs to: its own, or that of its physical function."""
        return self.function.parent or self.function.address

    @property
    def fault(self) -> InvalidConfiguration | None:
        """Return the error of an entry that says what this function cannot have; None if there is none."""
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
        return None

    @property
    def managed(self) -> bool:
        """Whether libvirt takes it from the host's driver and gives it back."""
        return bool(self.entry.extra.get("managed", True))

    @property
    def resource_class(self) -> str:
        """The configured class, or the one made of the ids."""
        configured: str | None = self.entry.extra.get("resource_class")
        return configured or pci_resource_class(self.function.vendor_id, self.function.product_id)

    @property
    def one_time_use(self) -> bool:
        """Whether an instance that had it leaves it reserved."""
        return bool(self.entry.extra.get("one_time_use", False))

    @property
    def traits(self) -> frozenset[str]:
        """All that its provider has."""
        given: frozenset[str] = self.entry.extra.get("traits", frozenset())
        follow = {ONE_TIME_USE: self.one_time_use, LIVE_MIGRATABLE: self.entry.extra.get("live_migratable", False)}
        return ALWAYS | given | {name for name, holds in follow.items() if holds}

    def wrong(self, message: str, key: str | None = None) -> InvalidConfiguration:
        """The error of an entry that this function cannot have. *message* goes on from the function's address."""
        return InvalidConfiguration(
            f"{self.function.address} {message}", option=DEVICE_SPEC_OPTION, entry=self.entry.entry, key=key
        )


def matches(functions: Iterable[PCIFunction], specs: Iterable[DeviceSpec]) -> Iterator[Match]:
    """Those functions that instances get by flavor, and those whose entry has a :attr:`Match.fault`.

    What is for Neutron's ports is none of them.
    """
    for match in all_matches(functions, specs):
        if not left_to_neutron(match.entry) or match.fault is not None:
            yield match


def all_matches(functions: Iterable[PCIFunction], specs: Iterable[DeviceSpec]) -> Iterator[Match]:
    """Every function that an entry means, those for Neutron's ports among them."""
    index = SpecIndex(specs)
    for function in functions:
        entry = index.first_match(function.vendor_id, function.product_id, function.address, function.parent)
        if entry is not None:
            yield Match(function, entry)


@dataclass(frozen=True, slots=True)
class ClaimableFunction:
    """One function that an instance can get.

    :param managed: libvirt takes it from the host's driver and gives it back.
    """

    address: PCIAddress
    dev_type: DevType
    vendor_id: str
    product_id: str
    managed: bool


@dataclass(frozen=True, slots=True)
class PCIProvider:
    """A provider below the host's, with one inventory.

    :param address: of the function in the slot: of the physical function, where those given away are virtual.
    :param traits: all that it is to have.
    :param one_time_use: an instance that had it leaves it reserved, until the operator says that it is clean.
    :param functions: what instances get of it, in bus order.
    """

    address: PCIAddress
    resource_class: str
    traits: frozenset[str]
    one_time_use: bool
    functions: tuple[ClaimableFunction, ...]

    @property
    def total(self) -> int:
        """How much of the class there is."""
        return len(self.functions)


@dataclass(frozen=True, slots=True)
class Translation:
    """What the entries of ``[pci] device_spec`` make of a host's functions.

    :param providers: in bus order.
    :param faults: by the slot, why entries cannot be followed there: it has no provider among *providers*.
    """

    providers: tuple[PCIProvider, ...]
    faults: Mapping[PCIAddress, InvalidConfiguration]


def translate(functions: Iterable[PCIFunction], specs: Sequence[DeviceSpec]) -> Translation:
    """Return the providers of the functions that *specs* mean.

    A function has a provider of its own. Virtual functions are counted by that of their physical function. An entry
    that says what its functions cannot have, or two that contradict each other, cost the slot its provider.

    :param specs: the entries of ``[pci] device_spec``; the first that means a function counts.
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
        providers.append(PCIProvider(slot, first.resource_class, first.traits, first.one_time_use, claimable))
    return Translation(tuple(providers), faults)


def _fault(slot: PCIAddress, members: Sequence[Match]) -> InvalidConfiguration | None:
    """Return what keeps the functions of one slot from being one provider; None if nothing does."""
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
    """Return the functions that entries of ``[pci] device_spec`` mean although a device driver has them.

    A card is one slot and one provider: if a driver has its physical function or one of its virtual ones, the others
    are not for flavors.

    :param functions: all of the host.
    :param claimed: what the drivers offer or would offer, and by which of them: the name of the driver.
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
