"""``autoclave check pci-device-spec`` and ``pci-alias``: what instances get by flavor, in Placement's terms."""

import argparse
from collections.abc import Collection, Iterator, Sequence

from autoclave.cli.cells import Cell
from autoclave.cli.check import CheckEntries, NamedDevice, add_values, values
from autoclave.cli.tables import Rows
from autoclave.rules.device_spec import DeviceSpec
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_alias import parse_pci_alias
from autoclave.rules.pci_inventory import (
    DevType,
    PCIFunction,
    SpecIndex,
    left_to_neutron,
    parse_pci_device_spec,
    translate,
)
from autoclave.rules.resource_names import pci_resource_class


class CheckPCIDeviceSpec(CheckEntries):
    """Check entries of [pci] device_spec, and show what Placement is told of the functions that they mean.

    As in the option, the first entry that matches a function counts. Nothing is read from this host. A device that
    another one names as its physical function is taken for one that has virtual functions. A provider is named by
    the address of the slot.
    """

    option = ("pci", "device_spec")
    columns = ("resource_class", "traits", "one_time_use", "managed", "for")
    device_columns = ("provider", *columns)

    def parse(self, values: Sequence[str]) -> Sequence[DeviceSpec]:
        return parse_pci_device_spec(values)

    def shown(self, spec: DeviceSpec) -> tuple[object, ...]:
        said = spec.extra
        configured = said.get("resource_class")
        if configured is None and spec.vendor_id and spec.product_id:
            configured = pci_resource_class(spec.vendor_id, spec.product_id)
        traits = _names(said.get("traits", ()))
        whose = "ports of Neutron" if left_to_neutron(spec) else "flavors"
        return Cell(configured), traits, said.get("one_time_use", False), said.get("managed", True), whose

    def meant(
        self, specs: Sequence[DeviceSpec], devices: Sequence[NamedDevice]
    ) -> Iterator[tuple[NamedDevice, DeviceSpec | None, tuple[object, ...]]]:
        index = SpecIndex(specs)
        physical = {device.physfn for device in devices}
        told: dict[PCIAddress, tuple[object, ...]] = {}
        translated = translate([_function(device, physical) for device in devices], specs)
        for fault in translated.faults.values():
            raise fault
        for it in translated.providers:
            of_all = (it.address.upper, it.resource_class, _names(it.traits), it.one_time_use)
            told |= {function.address: (*of_all, function.managed, "flavors") for function in it.functions}
        for device in devices:
            spec = index.first_match(device.vendor_id, device.product_id, device.address, device.physfn)
            not_told = (Cell(None),) * len(self.columns)
            neutrons: tuple[object, ...] = (*not_told, Cell(spec and "ports of Neutron"))
            yield device, spec, told.get(device.address, neutrons)


class CheckPCIAlias(Rows):
    """Check entries of [pci] alias, and show what one device of each is asked of Placement by."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments: values of the option, or where it stands."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_values(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """One row an alias.

        :raises InvalidConfiguration: an entry cannot be used.
        """
        aliases = parse_pci_alias(values(parsed_args, ("pci", "alias"))).values()
        return ("name", "resource_class", "required", "forbidden"), [
            (alias.name, alias.resource_class, _names(alias.required), _names(alias.forbidden)) for alias in aliases
        ]


def _function(device: NamedDevice, physical: Collection[PCIAddress | None]) -> PCIFunction:
    own = DevType.PF if device.address in physical else DevType.PCI
    dev_type = own if device.physfn is None else DevType.VF
    return PCIFunction(device.address, device.vendor_id, device.product_id, dev_type, device.physfn)


def _names(names: Collection[str]) -> Cell:
    return Cell(sorted(names), "\n".join)
