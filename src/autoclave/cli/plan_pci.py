"""``autoclave plan``, of the functions that ``[pci] device_spec`` gives to instances by flavor."""

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from oslo_config import cfg

from autoclave.conf.agent import allowed_host_devices
from autoclave.drivers.base import RETURNS_UNCLEANED, Inspected
from autoclave.drivers.pci import of_card
from autoclave.exceptions import HardwareError
from autoclave.hardware.host import HostPaths
from autoclave.hardware.pci_functions import HostFunctions
from autoclave.hardware.sysfs import iommu_group_members
from autoclave.hardware.usage import host_uses
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_inventory import (
    DEVICE_SPEC_OPTION,
    Match,
    PCIProvider,
    all_matches,
    matches,
    parse_pci_device_spec,
    translate,
)
from autoclave.rules.resource_names import provider_name

BURNED_AFTER_USE = "one-time-use: burned after every instance"

Told = dict[str, Any]
"""What Placement would be told of a function."""


def look(conf: cfg.ConfigOpts, paths: HostPaths, host: str) -> list[tuple[Inspected, Told]]:
    """What becomes of every slot that an entry means, in bus order.

    Entries that cannot be followed are said of the slot that they are about.

    :raises InvalidConfiguration: the entries cannot be read.
    :raises HardwareError: the bus cannot be listed.
    """
    specs = parse_pci_device_spec(conf.pci.device_spec)
    if not specs:
        return []
    functions = HostFunctions(paths)
    slots: dict[PCIAddress, list[Match]] = defaultdict(list)
    for match in matches(functions.functions, specs):
        slots[match.function.parent or match.function.address].append(match)
    allowed = allowed_host_devices(conf)
    all_meant = {match.function.address for match in all_matches(functions.functions, specs)}
    return [_Slot(functions, paths, slot, slots[slot], allowed, all_meant).planned(host) for slot in sorted(slots)]


class _Slot:
    """A slot, and those of its functions that entries mean."""

    def __init__(
        self,
        functions: HostFunctions,
        paths: HostPaths,
        slot: PCIAddress,
        meant: Sequence[Match],
        allowed: frozenset[PCIAddress],
        all_meant: Collection[PCIAddress],
    ) -> None:
        self._functions = functions
        self._paths = paths
        self._slot = slot
        self._meant = meant
        self._withheld: dict[PCIAddress, str] = {}
        for match in meant:
            why = str(match.fault) if match.fault is not None else functions.withheld(match, allowed, all_meant)
            if why is not None:
                self._withheld[match.function.address] = why
        given = [match.function for match in meant if match.function.address not in self._withheld]
        translated = translate(given, [match.entry for match in meant])
        self._provider = next(iter(translated.providers), None)
        self._wrong = next((str(fault) for fault in translated.faults.values()), None)

    def planned(self, host: str) -> tuple[Inspected, Told]:
        """The slot in words, and its provider."""
        return self._inspected(), self._told(host)

    def _inspected(self) -> Inspected:
        of_slot = self._functions.seen(self._slot)
        virtual = self._virtual
        ids = f"{of_slot.vendor_id}:{of_slot.product_id}" if of_slot else "unreadable"
        if virtual:
            given = virtual[0].function
            ids += f", {of_card(virtual, len(virtual) - len(self._partly))} {given.vendor_id}:{given.product_id}"
        return Inspected(
            address=str(self._slot),
            device=ids,
            action=None if self._provider is None else self._action(self._provider),
            refused=self._refused,
            partly_refused=[self._words(match) for match in self._partly],
            entry="; ".join(dict.fromkeys(f"{match.entry.entry}: {match.entry.text}" for match in self._meant)),
            why=f"{DEVICE_SPEC_OPTION} gives it to instances by flavor; Autoclave does not erase it",
            holders=list(self._holders()),
            iommu_group=[str(member) for member in sorted(set(self._group()))],
            handles=[self._words(match) for match in virtual],
        )

    def _action(self, provider: PCIProvider) -> str:
        return BURNED_AFTER_USE if provider.one_time_use else RETURNS_UNCLEANED

    @property
    def _refused(self) -> list[str]:
        if self._wrong is not None:
            return [self._wrong]
        return [] if self._provider is not None else list(dict.fromkeys(self._withheld.values()))

    @property
    def _virtual(self) -> list[Match]:
        return [match for match in self._meant if match.function.address != self._slot]

    @property
    def _partly(self) -> list[Match]:
        """The virtual functions that are withheld of a card that is offered."""
        if self._provider is None:
            return []
        return [match for match in self._virtual if match.function.address in self._withheld]

    def _words(self, match: Match) -> str:
        address = match.function.address
        found = self._functions.seen(address)
        driver = (found and found.driver) or "no driver"
        withheld = f": {self._withheld[address]}" if address in self._withheld else ""
        return f"{address} ({driver}{'' if match.managed else ', not managed'}){withheld}"

    def _holders(self) -> Iterator[str]:
        for match in self._meant:
            found = self._functions.seen(match.function.address)
            try:
                yield from host_uses(self._paths, found) if found else ()
            except HardwareError:  # it is the reason why the function is withheld
                continue

    def _group(self) -> Iterator[PCIAddress]:
        for match in self._meant:
            try:
                yield from iommu_group_members(self._paths, match.function.address)
            except HardwareError:
                continue

    def _told(self, host: str) -> Told:
        provider = self._provider
        if provider is None:
            return {}
        burned = f"{provider.total} from its first instance until it is released, else 0"
        return {
            "provider": provider_name(host, provider.address),
            "resource_class": provider.resource_class,
            "reserved": burned if provider.one_time_use else "0",
            "traits": sorted(provider.traits),
        }
