"""``autoclave check``: try a piece of configuration before a service is given it."""

import argparse
from collections.abc import Iterator, Sequence
from typing import ClassVar, NamedTuple

from autoclave.cli.tables import Rows
from autoclave.conf import new_config, read_as_option
from autoclave.conf.pci import PASSTHROUGH_KEYS, PASSTHROUGH_OPTION
from autoclave.rules.device_spec import DeviceSpec, first_match, parse_device_spec
from autoclave.rules.pci_address import PCIAddress, parse_pci_id


class NamedDevice(NamedTuple):
    """A PCI function as ``--device`` names it."""

    address: PCIAddress
    vendor_id: str
    product_id: str
    physfn: PCIAddress | None = None

    @classmethod
    def parse(cls, text: str) -> "NamedDevice":
        """Read ``0000:0a:00.1=144d:a808``, of a virtual function with ``@`` and its physical function's address.

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
    """Add the arguments from which :func:`values` reads an option that may be given several times."""
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "spec",
        nargs="*",
        default=[],
        metavar="JSON",
        help="a value of the option as a file has it: a JSON object or a list of them; several are read as several "
        "lines",
    )
    where.add_argument(
        "--config-file", action="append", default=[], metavar="FILE", help="file to read the option from"
    )


def values(parsed_args: argparse.Namespace, option: tuple[str, str]) -> Sequence[str]:
    """What was given, or stands in the configuration files.

    :param option: group and name.
    :raises InvalidConfiguration: a file cannot be used, or a ``$`` begins the name of no option.
    """
    group, name = option
    if parsed_args.spec:
        return read_as_option(group, name, parsed_args.spec)
    return list(new_config(parsed_args.config_file)[group][name])


class CheckEntries(Rows):
    """Checks entries of an option in the language of device_spec.

    :cvar option: group and name of the option.
    :cvar columns: what is shown of an entry.
    :cvar device_columns: what is shown of a device.
    """

    option: ClassVar[tuple[str, str]]
    columns: ClassVar[tuple[str, ...]]
    device_columns: ClassVar[tuple[str, ...]]

    def parse(self, values: Sequence[str]) -> Sequence[DeviceSpec]:
        """The entries.

        :raises InvalidConfiguration: one of them cannot be used.
        """
        raise NotImplementedError

    def shown(self, spec: DeviceSpec) -> tuple[object, ...]:
        """The :attr:`columns` of an entry."""
        raise NotImplementedError

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments: values of the option, and devices to hold against them."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_values(parser)
        parser.add_argument(
            "--device",
            action="append",
            default=[],
            dest="devices",
            type=NamedDevice.parse,
            metavar="ADDRESS=VENDOR:PRODUCT",
            help="a device to match, such as 0000:0a:00.1=144d:a808 (repeat for more); of a virtual function, "
            "0000:0a:02.1=8086:154c@0000:0a:00.0 also says which physical function it belongs to; without any, the "
            "entries are shown as they are understood",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """One row a device: whether it is meant, by which entry, counted from 1, and what that says of it.

        Without a device, one row an entry.

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
        """Each device with the entry that means it and the :attr:`device_columns`: those of the entry.

        :raises InvalidConfiguration: the entries contradict each other for these devices.
        """
        for device in devices:
            spec = first_match(specs, device.vendor_id, device.product_id, device.address, device.physfn)
            yield device, spec, self.shown(spec) if spec else (None,) * len(self.columns)


class CheckDeviceSpec(CheckEntries):
    """Check entries of [nvme] device_spec, and show which devices they mean.

    As in the option, the first entry that matches a device counts. Nothing is read from this host.
    """

    option = ("nvme", "device_spec")
    columns = device_columns = ("clear_action", "clear_strategy")

    def parse(self, values: Sequence[str]) -> Sequence[DeviceSpec]:
        return parse_device_spec(values)

    def shown(self, spec: DeviceSpec) -> tuple[object, ...]:
        return spec.clear_action.value, spec.clear_strategy.value


class CheckPassthroughWhitelist(CheckEntries):
    """Check entries of [pci] passthrough_whitelist, and show which functions they mean.

    As in the option, the first entry that matches a function counts. Nothing is read from this host.
    """

    option = ("pci", "passthrough_whitelist")
    columns = device_columns = ("managed",)

    def parse(self, values: Sequence[str]) -> Sequence[DeviceSpec]:
        return parse_device_spec(values, option=PASSTHROUGH_OPTION, extra_keys=PASSTHROUGH_KEYS)

    def shown(self, spec: DeviceSpec) -> tuple[object, ...]:
        return (spec.extra.get("managed", True),)
