"""What Placement is told of a host's PCI functions: providers, their classes, traits and totals.

The form is that of Nova's PCI tracking in Placement, so that operators and their tools find what they know; a device
of one time use is marked as the one-time-use-devices specification demands. The time follows the number of functions.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from autoclave.exceptions import InvalidConfiguration
from autoclave.rules.device_spec import DeviceSpec
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_function import DevType, PCIFunction
from autoclave.rules.pci_matches import Match, matches


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
