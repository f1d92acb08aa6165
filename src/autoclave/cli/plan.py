"""``autoclave plan``: what an agent would do with this host's devices. Changes nothing."""

import argparse
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from oslo_config import cfg

from autoclave.cli import plan_nova, plan_pci
from autoclave.cli.cells import Cell
from autoclave.cli.durations import in_words
from autoclave.cli.sim import add_data_dir
from autoclave.cli.tables import Fields, Rows, with_details
from autoclave.conf import is_set, new_config
from autoclave.drivers.base import DiscoveredDevice, Estimate, Inspected
from autoclave.drivers.loader import load_drivers
from autoclave.exceptions import AutoclaveError
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_inventory import DEVICE_SPEC_OPTION, parse_pci_device_spec
from autoclave.rules.resource_names import OWNER_CYBORG, provider_name
from autoclave.services.hosts import host_name, host_paths
from autoclave.simulator.host import Fleet

_SUMMARY = ("address", "device", "serial", "action", "refused")
_DETAILS = (
    "entry",
    "why",
    "rejected",
    "estimate",
    "quicker",
    "holders",
    "iommu_group",
    "handles",
    "provider",
    "resource_class",
    "reserved",
    "traits",
)
_WIDTHS = {"device": 24, "action": 21, "refused": 33}
"""Characters of a line in the table of all functions, which must fit on a terminal of 120 columns."""
_BLOCK_WIDTH = 90
"""Characters of a line in the table of one function."""


class Plan(Rows):
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
        columns = with_details(parsed_args, _SUMMARY, _DETAILS)
        records, lacks = _look(_configured(parsed_args), parsed_args.nova_config_file)
        self.app.stderr.write(_in_words(lacks))
        return columns, [tuple(_cell(record[c], _WIDTHS.get(c)) for c in columns) for record in records]


class PlanShow(Fields):
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
        records, lacks = _look(_configured(parsed_args), parsed_args.nova_config_file)
        for record in records:
            if record["address"] == wanted:
                self.app.stderr.write(_in_words(lacks))
                return tuple(record), tuple(_cell(value, _BLOCK_WIDTH) for value in record.values())
        raise AutoclaveError(
            f"{wanted} is no NVMe controller of this host, and no entry of an enabled driver's option, or of [pci] "
            "device_spec, names it"
        )


def _in_words(lacks: Sequence[str]) -> str:
    """What the host should be set up for, on stderr: it is of no function, and programs read stdout."""
    return "".join(f"Host setup: {lack}\n" for lack in lacks)


def _cell(value: str | Sequence[str] | None, width: int | None) -> Cell:
    return Cell(value, partial(_in_lines, width=width))


def _in_lines(value: str | Sequence[str], width: int | None) -> str:
    """A text, or each of a list, in lines of a width."""
    items = [value] if isinstance(value, str) else value
    return "\n".join(items if width is None else (textwrap.fill(item, width) for item in items))


def _add_configuration(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config-file", action="append", default=[], metavar="FILE", help="configuration file")
    parser.add_argument(
        "--nova-config-file",
        action="append",
        default=[],
        metavar="FILE",
        help="nova.conf of this host's nova-compute: its [pci] device_spec must not match an accelerator (repeat for "
        "more files)",
    )
    parser.add_argument(
        "--simulated", metavar="NAME", help="plan for this simulated host, such as sim-1, instead of the real one"
    )
    add_data_dir(parser)


def _configured(parsed_args: argparse.Namespace) -> cfg.ConfigOpts:
    """Return the configuration of the host that the plan is for.

    :raises SimulatorError: there is no simulated host of that name.
    """
    conf = new_config(parsed_args.config_file)
    if parsed_args.simulated is None:
        return conf
    host = Fleet(parsed_args.data_dir).host(parsed_args.simulated)
    every_drive = not is_set(conf, "nvme", "device_spec")
    return new_config(parsed_args.config_file, dict(host.conf_overrides(device_spec=every_drive)))


@dataclass(frozen=True)
class _Planned:
    """What somebody would do with a function.

    :param by: a driver, or the option that gives functions to flavors.
    :param claimed: he has it, though perhaps not to offer it.
    :param told: what Placement would be told of it.
    """

    by: str
    inspected: Inspected
    claimed: bool
    told: dict[str, Any] = field(default_factory=dict)


def _look(conf: cfg.ConfigOpts, nova_files: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """A record for every PCI function that could match, in bus order, and what the host should be set up for."""
    parse_pci_device_spec(conf.pci.device_spec)  # a missing tool must not hide that an option is wrong
    host, paths = host_name(conf), host_paths(conf)
    nova = plan_nova.read(nova_files, paths) if nova_files else None
    seen: dict[str, list[_Planned]] = defaultdict(list)
    lacks: list[str] = []
    for driver in load_drivers(conf, paths):
        driver.init_host()
        lacks += driver.host_setup()
        for it in driver.inspect():
            told = _told(host, it.discovered, bool(it.refused)) if it.discovered else {}
            seen[it.address].append(_Planned(driver.name, it, it.discovered is not None, told))
    for it, provider in plan_pci.look(conf, paths, host):
        seen[it.address].append(_Planned(DEVICE_SPEC_OPTION, it, True, provider))
    lent = _lent(each.inspected for planned in seen.values() for each in planned)
    records = []
    for address, planned in sorted(seen.items()):
        claimed = [each for each in planned if each.claimed]
        if not claimed and address in lent:
            continue  # it is among the handles of its physical function
        clashes = [_clash([each.by for each in claimed])] if len(claimed) > 1 else []
        for discovered in (each.inspected.discovered for each in claimed):
            if nova and discovered and (clash := nova.clash(discovered)) is not None:
                clashes.append(clash)
        records += [_record(each, conf.nvme.cleanup_timeout, clashes) for each in claimed or planned[:1]]
    return records, lacks


def _clash(claimants: Sequence[str]) -> str:
    drivers = [each for each in claimants if each != DEVICE_SPEC_OPTION]
    follows = "the agent does not start" if len(drivers) > 1 else "it is not offered by flavor"
    return f"{' and '.join(claimants)} claim it, so {follows}: let only one match it"


def _lent(inspected: Iterable[Inspected]) -> set[str]:
    """The addresses of functions that guests would get as handles of a device."""
    return {handle.identity for it in inspected if it.discovered for handle in it.discovered.attach_handles}


def _told(host: str, device: DiscoveredDevice, refused: bool) -> dict[str, Any]:
    total = len(device.attach_handles)
    return {
        "provider": provider_name(host, PCIAddress.parse(device.pci_address), device.name),
        "resource_class": device.resource_class,
        "reserved": f"{total}" if refused else f"0 if its state is available, else {total}",
        "traits": [OWNER_CYBORG, *device.traits],
    }


def _record(planned: _Planned, cleanup_timeout: int, clashes: Sequence[str]) -> dict[str, Any]:
    inspected = planned.inspected
    return {
        "address": inspected.address,
        "device": inspected.device,
        "serial": inspected.serial,
        "action": inspected.action,
        "refused": [*clashes, *inspected.refused, *(f"not offered: {each}" for each in inspected.partly_refused)],
        "entry": inspected.entry,
        "why": inspected.why,
        "rejected": list(inspected.rejected),
        "estimate": _estimate(inspected.estimate, cleanup_timeout) if inspected.estimate else None,
        "quicker": inspected.quicker,
        "holders": list(inspected.holders),
        "iommu_group": list(inspected.iommu_group),
        "handles": list(inspected.handles),
        "provider": None,
        "resource_class": None,
        "reserved": None,
        "traits": [],
        **planned.told,
    }


def _estimate(estimate: Estimate, timeout: int) -> str:
    """How long its erase will take, why that is thought, and whether it would be cut short."""
    if estimate.seconds is None:
        return f"unknown: {estimate.basis}"
    late = f"; [nvme] cleanup_timeout = {timeout} is too short for that" if estimate.seconds > timeout else ""
    return f"{in_words(estimate.seconds)} ({estimate.basis}){late}"


def _address(text: str) -> PCIAddress:
    try:
        return PCIAddress.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
