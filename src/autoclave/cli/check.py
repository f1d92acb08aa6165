"""``autoclave check``: try a piece of configuration before a service is given it."""

import argparse
from typing import NamedTuple

from cliff import lister

from autoclave.rules.device_spec import DeviceSpec, first_match, parse_device_spec
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_id import parse_pci_id

_ERASE = ("clear_action", "clear_strategy")


class NamedDevice(NamedTuple):
    """A PCI function as ``--device`` names it."""

    address: PCIAddress
    vendor_id: str
    product_id: str

    @classmethod
    def parse(cls, text: str) -> "NamedDevice":
        """Read ``0000:0a:00.1=144d:a808``.

        :raises argparse.ArgumentTypeError: *text* has another form.
        """
        address, _, ids = text.partition("=")
        vendor_id, _, product_id = ids.partition(":")
        try:
            return cls(PCIAddress.parse(address), parse_pci_id(vendor_id), parse_pci_id(product_id))
        except ValueError as e:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not ADDRESS=VENDOR:PRODUCT, such as 0000:0a:00.1=144d:a808: {e}"
            ) from None


class CheckDeviceSpec(lister.Lister):  # type: ignore[misc]  # cliff comes without types
    """Check entries of [nvme] device_spec, and show which devices they mean.

    As in the option, the first entry that matches a device counts. Nothing is read from this host.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments: values of the option, and devices to hold against them."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "spec",
            nargs="+",
            metavar="JSON",
            help="a value of the option: a JSON object or a list of them; several are read as several lines",
        )
        parser.add_argument(
            "--device",
            action="append",
            default=[],
            dest="devices",
            type=NamedDevice.parse,
            metavar="ADDRESS=VENDOR:PRODUCT",
            help="a device to match, such as 0000:0a:00.1=144d:a808 (repeat for more); without any, the entries are "
            "shown as they are understood",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """One row a device: whether it is meant, by which entry, counted from 1, and how it would be erased.

        Without a device, one row an entry.

        :raises InvalidConfiguration: an entry cannot be used.
        """
        specs = parse_device_spec(parsed_args.spec)
        if not parsed_args.devices:
            return ("entry", "text", *_ERASE), [(spec.entry, spec.text, *_erase(spec)) for spec in specs]
        rows: list[tuple[object, ...]] = []
        for device in parsed_args.devices:
            spec = first_match(specs, device.vendor_id, device.product_id, device.address)
            rows.append((str(device.address), spec is not None, spec and spec.entry, *_erase(spec)))
        return ("address", "matches", "entry", *_ERASE), rows


def _erase(spec: DeviceSpec | None) -> tuple[str | None, str | None]:
    return (spec.clear_action.value, spec.clear_strategy.value) if spec else (None, None)
