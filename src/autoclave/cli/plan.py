"""``autoclave plan``: what an agent would do with this host's drives. Changes nothing."""

import argparse
from collections.abc import Iterable
from typing import Any

from cliff import lister

from autoclave.conf import new_config
from autoclave.drivers.loader import load_drivers
from autoclave.drivers.nvme import NVMeDriver
from autoclave.drivers.nvme_inspection import Finding
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.resource_names import OWNER_CYBORG, provider_name
from autoclave.services.hosts import host_name, host_paths

_COLUMNS = (
    "address",
    "device",
    "serial",
    "entry",
    "capabilities",
    "action",
    "why",
    "rejected",
    "refused",
    "iommu_group",
    "placement",
)


class Plan(lister.Lister):  # type: ignore[misc]  # cliff comes without types
    """Show, for every PCI function that could match, what would be done with it and why. Changes nothing."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument("--config-file", action="append", default=[], metavar="FILE", help="configuration file")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        """Look at the host, and say what was found.

        :raises AutoclaveError: an option cannot be used, or the host lacks a tool.
        """
        conf = new_config(parsed_args.config_file)
        host = host_name(conf)
        rows = []
        for driver in load_drivers(conf, host_paths(conf)):
            driver.init_host()
            if isinstance(driver, NVMeDriver):
                rows += [_row(host, finding) for finding in driver.inspect()]
        return _COLUMNS, rows


def _row(host: str, finding: Finding) -> tuple[Any, ...]:
    resolution = finding.resolution
    rejected = [] if resolution is None else [f"{each.action}: {each.reason}" for each in resolution.rejected]
    refused = [why for why in (finding.refused, finding.excluded, finding.unreadable) if why]
    return (
        finding.address,
        f"{finding.vendor or '?'}:{finding.product or '?'} {finding.model or ''}".strip(),
        finding.serial or "",
        f"{finding.entry.entry}: {finding.entry.text}" if finding.entry else "no device_spec entry matches",
        " ".join(finding.capabilities.traits) if finding.capabilities else "",
        str(resolution.action or "none") if resolution else "",
        resolution.reason if resolution else "",
        "\n".join(rejected),
        "\n".join([*refused, *finding.holders]),
        " ".join(finding.iommu_group),
        _placement(host, finding),
    )


def _placement(host: str, finding: Finding) -> str:
    device = finding.device
    if device is None:
        return "nothing is written"
    reserved = "1" if device.excluded or device.unreadable else "0 if its state is available, else 1"
    traits = " ".join([OWNER_CYBORG, *device.traits])
    name = provider_name(host, PCIAddress.parse(finding.address))
    return f"{name}: {device.resource_class} total=1 reserved={reserved}; {traits}"
