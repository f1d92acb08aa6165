"""``autoclave plan``: what an agent would do with this host's drives. Changes nothing."""

import argparse
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from cliff import lister, show
from cliff.columns import FormattableColumn

from autoclave.cli.durations import in_words
from autoclave.conf import new_config
from autoclave.drivers.loader import load_drivers
from autoclave.drivers.nvme import NVMeDriver
from autoclave.drivers.nvme_inspection import Finding
from autoclave.exceptions import AutoclaveError, HardwareError
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.resource_names import OWNER_CYBORG, provider_name
from autoclave.services.hosts import host_name, host_paths

_SUMMARY = ("address", "device", "serial", "action", "refused")
_DETAILS = (
    "entry",
    "why",
    "rejected",
    "estimate",
    "holders",
    "iommu_group",
    "provider",
    "resource_class",
    "reserved",
    "traits",
)
_WIDTHS = {"device": 24, "refused": 33}
"""Characters of a line in the table of all functions, which must fit on a terminal of 120 columns."""
_BLOCK_WIDTH = 90
"""Characters of a line in the table of one function."""


class Plan(lister.Lister):  # type: ignore[misc]  # cliff comes without types
    """Show, for every PCI function that could match, how it would be erased or why it is refused. Changes nothing."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_configuration(parser)
        parser.add_argument(
            "--long", action="store_true", help="all that `plan show` shows, for programs: best with -f json"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        """Look at the host, and say what was found.

        :raises AutoclaveError: an option cannot be used, or the host lacks a tool.
        """
        columns = _SUMMARY + _DETAILS if parsed_args.long else _SUMMARY
        records = _look(parsed_args.config_file)
        return columns, [tuple(_Cell(record[c], _WIDTHS.get(c)) for c in columns) for record in records]


class PlanShow(show.ShowOne):  # type: ignore[misc]
    """Show all that would be done with one PCI function, and why. Changes nothing."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_configuration(parser)
        parser.add_argument("address", type=_address, help="PCI address, such as 0000:41:00.0")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        """Look at the host, and say what was found there.

        :raises AutoclaveError: an option cannot be used, the host lacks a tool, or nothing there could match.
        """
        wanted = str(parsed_args.address)
        for record in _look(parsed_args.config_file):
            if record["address"] == wanted:
                return tuple(record), tuple(_Cell(value, _BLOCK_WIDTH) for value in record.values())
        raise AutoclaveError(
            f"{wanted} is no NVMe controller of this host, and no entry of [nvme] device_spec names it"
        )


class _Cell(FormattableColumn):  # type: ignore[misc]
    """A text, a list of them, or None: as it is for programs, in lines of a width for people."""

    def __init__(self, value: str | Sequence[str] | None, width: int | None) -> None:
        super().__init__(value)
        self._width = width

    def human_readable(self) -> str:
        items = [self._value] if isinstance(self._value, str) else self._value or []
        if self._width is None:
            return "\n".join(items)
        return "\n".join(textwrap.fill(item, self._width) for item in items)

    def machine_readable(self) -> Any:
        return self._value


def _add_configuration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config-file", action="append", default=[], metavar="FILE", help="configuration file")


def _look(config_files: Sequence[str]) -> list[dict[str, Any]]:
    """A record for every PCI function that could match, in bus order."""
    conf = new_config(config_files)
    host = host_name(conf)
    records = []
    for driver in load_drivers(conf, host_paths(conf)):
        driver.init_host()
        if isinstance(driver, NVMeDriver):
            for finding in driver.inspect():
                estimate = _estimate(driver, finding, conf.nvme.cleanup_timeout)
                records.append(_record(host, finding) | {"estimate": estimate})
    return records


def _record(host: str, finding: Finding) -> dict[str, Any]:
    resolution, device = finding.resolution, finding.device
    record = {
        "address": finding.address,
        "device": f"{finding.vendor or '?'}:{finding.product or '?'} {finding.model or ''}".strip(),
        "serial": finding.serial,
        "action": str(resolution.action) if resolution and resolution.action else None,
        "refused": _refusals(finding),
        "entry": f"{finding.entry.entry}: {finding.entry.text}" if finding.entry else None,
        "why": resolution.reason if resolution else None,
        "rejected": [f"{each.action}: {each.reason}" for each in resolution.rejected] if resolution else [],
        "estimate": None,
        "holders": list(finding.holders),
        "iommu_group": list(finding.iommu_group),
        "provider": None,
        "resource_class": None,
        "reserved": None,
        "traits": [],
    }
    if device is not None:
        record |= {
            "provider": provider_name(host, PCIAddress.parse(finding.address)),
            "resource_class": device.resource_class,
            "reserved": "1" if record["refused"] else "0 if its state is available, else 1",
            "traits": [OWNER_CYBORG, *device.traits],
        }
    return record


def _estimate(driver: NVMeDriver, finding: Finding, timeout: int) -> str | None:
    """How long its erase will take, why that is thought, and whether it would be cut short."""
    if finding.refused or finding.unreadable:
        return None
    try:
        estimate = driver.estimate(finding)
    except HardwareError as error:
        return f"unknown: {error}"
    if estimate is None:
        return None
    if estimate.seconds is None:
        return f"unknown: {estimate.basis}"
    late = f"; [nvme] cleanup_timeout = {timeout} is too short for that" if estimate.seconds > timeout else ""
    return f"{in_words(estimate.seconds)} ({estimate.basis}){late}"


def _refusals(finding: Finding) -> list[str]:
    # A refusal says itself who uses the drive; a drive of another driver is exposed and unreadable for one reason.
    reasons = (finding.refused or finding.exposed, finding.excluded, finding.unreadable)
    return list(dict.fromkeys(why for why in reasons if why))


def _address(text: str) -> PCIAddress:
    try:
        return PCIAddress.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
