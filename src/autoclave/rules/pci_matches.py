"""Which entry of ``[pci] device_spec`` means which function, and what it says of it."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from autoclave.exceptions import InvalidConfiguration
from autoclave.rules.device_spec import DeviceSpec
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_function import DevType, PCIFunction
from autoclave.rules.pci_inventory import DEVICE_SPEC_OPTION, left_to_neutron
from autoclave.rules.resource_names import pci_resource_class
from autoclave.rules.spec_index import SpecIndex

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
