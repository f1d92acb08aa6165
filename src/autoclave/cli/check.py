"""Run ``autoclave check``: validate a part of the configuration before a service reads it.

``pci-device-spec`` and ``pci-alias`` show the result in Placement's terms. ``provider-config`` shows what the files
of ``[compute] provider_config_location`` add.
"""

import argparse
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from autoclave.agent.compute.provider_config import load, load_file
from autoclave.cli.main import Cell, Rows
from autoclave.conf import new_config, read_as_option
from autoclave.conf.compute import PASSTHROUGH_KEYS, PASSTHROUGH_OPTION
from autoclave.rules.device_spec import DeviceSpec, first_match, parse_device_spec
from autoclave.rules.pci_address import PCIAddress, parse_pci_id
from autoclave.rules.pci_alias import parse_pci_alias
from autoclave.rules.pci_inventory import (
    DevType,
    PCIFunction,
    SpecIndex,
    left_to_neutron,
    parse_pci_device_spec,
    translate,
)
from autoclave.rules.provider_config import AddedInventory
from autoclave.rules.reclaim import Reclaim, ReclaimPolicy, guarantee
from autoclave.rules.resource_names import pci_resource_class


class NamedDevice(NamedTuple):
    """Hold a PCI function as ``--device`` names it."""

    address: PCIAddress
    vendor_id: str
    product_id: str
    physfn: PCIAddress | None = None

    @classmethod
    def parse(cls, text: str) -> "NamedDevice":
        """Read ``0000:0a:00.1=144d:a808``; a virtual function adds ``@`` and its physical function's address.

        :raises argparse.ArgumentTypeError: *text* has another form.
        """
        address, _, ids = text.partition("=")
        ids, _, physfn = ids.partition("@")
        vendor_id, _, product_id = ids.partition(":")
        try:
            return cls(
                PCIAddress.parse(address),
                parse_pci_id(vendor_id),
                parse_pci_id(product_id),
                PCIAddress.parse(physfn) if physfn else None,
            )
        except ValueError as e:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not ADDRESS=VENDOR:PRODUCT, such as 0000:0a:00.1=144d:a808: {e}"
            ) from None


def add_values(parser: argparse.ArgumentParser) -> None:
    """Add the arguments from which :func:`values` reads a multi-valued option."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "spec",
        nargs="*",
        default=[],
        metavar="JSON",
        help="value of the option, as in a configuration file: a JSON object or a list of objects; several values "
        "are read as several lines",
    )
    where.add_argument(
        "--config-file", action="append", default=[], metavar="FILE", help="configuration file to read the option from"
    )


def values(parsed_args: argparse.Namespace, option: tuple[str, str]) -> Sequence[str]:
    """Return the values from the arguments or the configuration files.

    :param option: group and name.
    :raises InvalidConfiguration: a file cannot be used, or a ``$`` begins the name of no option.
    """
    group, name = option
    if parsed_args.spec:
        return read_as_option(group, name, parsed_args.spec)
    return list(new_config(parsed_args.config_file)[group][name])


class CheckEntries(Rows):
    """Check entries of an option in the language of device_spec.

    :cvar option: group and name of the option.
    :cvar columns: what is shown of an entry.
    :cvar device_columns: what is shown of a device.
    """

    option: ClassVar[tuple[str, str]]
    columns: ClassVar[tuple[str, ...]]
    device_columns: ClassVar[tuple[str, ...]]

    def parse(self, values: Sequence[str]) -> Sequence[DeviceSpec]:
        """Parse the entries.

        :raises InvalidConfiguration: an entry cannot be used.
        """
        raise NotImplementedError

    def shown(self, spec: DeviceSpec) -> tuple[object, ...]:
        """Return the :attr:`columns` of an entry."""
        raise NotImplementedError

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments: values of the option, and devices to hold against them."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_values(parser)
        parser.add_argument(
            "--device",
            action="append",
            default=[],
            dest="devices",
            type=NamedDevice.parse,
            metavar="ADDRESS=VENDOR:PRODUCT",
            help="device to match, such as 0000:0a:00.1=144d:a808 (repeatable). For a virtual function, append its "
            "physical function: 0000:0a:02.1=8086:154c@0000:0a:00.0. Without a device, the parsed entries are "
            "shown",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """Return a row for each device: whether an entry matches, which one (counted from 1), and its values.

        Without a device, return a row for each entry.

        :raises InvalidConfiguration: an entry cannot be used.
        """
        specs = self.parse(values(parsed_args, self.option))
        if not parsed_args.devices:
            return ("entry", "text", *self.columns), [(spec.entry, spec.text, *self.shown(spec)) for spec in specs]
        rows: list[tuple[object, ...]] = []
        for device, spec, said in self.meant(specs, parsed_args.devices):
            rows.append((str(device.address), spec is not None, spec and spec.entry, *said))
        return ("address", "matches", "entry", *self.device_columns), rows

    def meant(
        self, specs: Sequence[DeviceSpec], devices: Sequence[NamedDevice]
    ) -> Iterator[tuple[NamedDevice, DeviceSpec | None, tuple[object, ...]]]:
        """Pair each device with the entry that matches and the :attr:`device_columns` of that entry.

        :raises InvalidConfiguration: the entries contradict each other for these devices.
        """
        for device in devices:
            spec = first_match(specs, device.vendor_id, device.product_id, device.address, device.physfn)
            yield device, spec, self.shown(spec) if spec else (None,) * len(self.columns)


class CheckDeviceSpec(CheckEntries):
    """Check entries of [nvme] device_spec, and show which devices they match.

    As in the option, the first entry that matches a device counts. The command reads nothing from this host.
    """

    option = ("nvme", "device_spec")
    columns = device_columns = ("clear_action", "clear_strategy")

    def parse(self, values: Sequence[str]) -> Sequence[DeviceSpec]:
        return parse_device_spec(values)

    def shown(self, spec: DeviceSpec) -> tuple[object, ...]:
        return spec.clear_action.value, spec.clear_strategy.value


class CheckPassthroughWhitelist(CheckEntries):
    """Check entries of [pci] passthrough_whitelist, and show which functions they match.

    As in the option, the first entry that matches a function counts. The command reads nothing from this host.
    """

    option = ("pci", "passthrough_whitelist")
    columns = device_columns = ("managed", "guarantee")

    def parse(self, values: Sequence[str]) -> Sequence[DeviceSpec]:
        return parse_device_spec(values, option=PASSTHROUGH_OPTION, extra_keys=PASSTHROUGH_KEYS)

    def shown(self, spec: DeviceSpec) -> tuple[object, ...]:
        return spec.extra.get("managed", True), ReclaimPolicy.of(spec.extra).guarantee


class CheckPCIDeviceSpec(CheckEntries):
    """Check entries of [pci] device_spec, and show the matching functions as Placement will have them.

    As in the option, the first entry that matches a function counts. The command reads nothing from this host. A device
    that another one names as its physical function counts as one with virtual functions. A provider is named by the
    address of the slot.
    """

    option = ("pci", "device_spec")
    columns = ("resource_class", "traits", "one_time_use", "managed", "guarantee", "for")
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
        policy, managed = ReclaimPolicy.of(said), said.get("managed", True)
        return Cell(configured), traits, policy.reclaim is Reclaim.HOLD, managed, policy.guarantee, whose

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
            of_all = (it.address.upper, it.resource_class, _names(it.traits), it.reclaim is Reclaim.HOLD)
            kept = guarantee(it.reclaim, it.cleanup_action)
            told |= {function.address: (*of_all, function.managed, kept, "flavors") for function in it.functions}
        for device in devices:
            spec = index.first_match(device.vendor_id, device.product_id, device.address, device.physfn)
            not_told = (Cell(None),) * len(self.columns)
            neutrons: tuple[object, ...] = (*not_told, Cell(spec and "ports of Neutron"))
            yield device, spec, told.get(device.address, neutrons)


class CheckPCIAlias(Rows):
    """Check entries of [pci] alias, and show the request to Placement for one device of each."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments: values of the option, or where it stands."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_values(parser)
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """Return a row for each alias.

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


class CheckProviderConfig(Rows):
    """Check provider configuration, and show what it adds to which provider, with every default filled in.

    Report every fault, not only the first. Placement is not queried: the agent checks at its start whether the
    providers exist, and whether they have such an inventory already.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the argument: what to read."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "path",
            metavar="PATH",
            help="directory, read like [compute] provider_config_location, or a file of any name",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """Return a row for each entry, in the order in which the agent reads them.

        :raises ProviderConfigFaults: names every fault.
        """
        path = parsed_args.path
        config = load(path) if os.path.isdir(path) else load_file(Path(path))
        rows: list[tuple[object, ...]] = [
            (
                entry.uuid,
                entry.name,
                Cell({name: _fields(record) for name, record in sorted(entry.inventories.items())}, _lines),
                Cell(sorted(entry.traits), "\n".join),
                str(entry.place),
            )
            for entry in config.entries
        ]
        return ("uuid", "name", "inventories", "traits", "place"), rows


def _fields(record: AddedInventory) -> dict[str, int | float]:
    return {name: value for name, value in asdict(record).items() if name != "place"}


def _lines(inventories: Mapping[str, Mapping[str, Any]]) -> str:
    return "\n".join(
        line
        for name, fields in inventories.items()
        for line in (name, *(f"  {field} {value}" for field, value in fields.items()))
    )
