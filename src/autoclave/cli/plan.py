"""Run ``autoclave plan``: show what an agent would do with this host's devices, without changes.

It covers drives, cards, and the functions that ``[pci] device_spec`` gives to flavors. It also reports accelerators
that ``[pci] device_spec`` of nova.conf matches.
"""

import argparse
import json
import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from oslo_config import cfg

from autoclave.cli.main import Cell, Fields, Rows, in_words, with_details
from autoclave.cli.sim import add_data_dir
from autoclave.conf import is_set, new_config
from autoclave.conf.agent import allowed_host_devices
from autoclave.conf.check import require_text
from autoclave.drivers.base import DiscoveredDevice, Estimate, Inspected
from autoclave.drivers.loader import load_drivers
from autoclave.drivers.pci import of_card
from autoclave.exceptions import AutoclaveError, HardwareError, InvalidConfiguration
from autoclave.hardware.host import HostPaths
from autoclave.hardware.pci_functions import HostFunctions
from autoclave.hardware.sysfs import iommu_group_members
from autoclave.hardware.usage import host_uses
from autoclave.rules.device_spec import DeviceSpec, ExtraKeys, first_match, parse_device_spec
from autoclave.rules.json_options import option_entries
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
from autoclave.rules.reclaim import Reclaim, ReclaimPolicy, guarantee
from autoclave.rules.resource_names import OWNER_CYBORG, provider_name
from autoclave.services.hosts import host_name, host_paths
from autoclave.simulator.host import Fleet

BURNED_AFTER_USE = "one-time-use: burned after every instance"

Told = dict[str, Any]
"""Hold the inventory and traits that Placement would get for a function."""


def look(conf: cfg.ConfigOpts, paths: HostPaths, host: str) -> list[tuple[Inspected, Told]]:
    """Return the plan of every slot that an entry matches, in bus order.

    Report an unusable entry at its slot.

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
    """Hold a slot, and its functions that entries match."""

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
        """Describe the slot, and name its provider."""
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
            why=f"{DEVICE_SPEC_OPTION} gives it to instances by flavor; {_how(self._meant[0].policy)}",
            holders=list(self._holders()),
            iommu_group=[str(member) for member in sorted(set(self._group()))],
            handles=[self._words(match) for match in virtual],
        )

    def _action(self, provider: PCIProvider) -> str:
        if provider.reclaim is Reclaim.HOLD:
            return BURNED_AFTER_USE
        return guarantee(provider.reclaim, provider.cleanup_action)

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
        """Return the withheld virtual functions of a card that is offered."""
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
            except HardwareError:  # it is the reason to withhold the function
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
        reserved = {
            Reclaim.HOLD: f"{provider.total} from its first instance until it is released, else 0",
            Reclaim.ERASE: f"0 if its state is available, else {provider.total}",
            Reclaim.NONE: "0",
        }
        return {
            "provider": provider_name(host, provider.address),
            "resource_class": provider.resource_class,
            "reserved": reserved[provider.reclaim],
            "traits": sorted(provider.traits),
            **_reclaimed(provider.reclaim, provider.cleanup_action),
        }


def _how(policy: ReclaimPolicy) -> str:
    if policy.cleanup_action is None:
        return "Autoclave does not erase it"
    return f"the entry has {policy.words}"


def _reclaimed(reclaim: Reclaim, cleanup_action: str | None) -> Told:
    """Return what becomes of a device after each instance."""
    return {"policy": str(reclaim), "method": cleanup_action, "guarantee": guarantee(reclaim, cleanup_action)}


_MATCH_KEYS = ("vendor_id", "product_id", "address")


@dataclass(frozen=True)
class NovaSpecs:
    """Return the functions that Nova's ``[pci] device_spec`` matches on this host.

    :param source: the files that were read, for messages.
    :param reported: ``[pci] report_in_placement``.
    """

    source: str
    specs: Sequence[DeviceSpec]
    reported: bool
    functions: HostFunctions

    def clash(self, device: DiscoveredDevice) -> str | None:
        """Return the fault of an accelerator that Nova's option matches as well; None: Nova does not match it."""
        slot = _slot(device.pci_address)
        if slot is None:
            return None
        parts = [_slot(handle.identity) for handle in device.attach_handles]
        for address in (slot, *parts):
            found = None if address is None else self.functions.seen(address)
            if found is None:
                continue
            spec = first_match(self.specs, found.vendor_id, found.product_id, found.address, found.physfn)
            if spec is not None:
                does = "writes its provider as its own" if self.reported else "gives it to guests past Autoclave"
                return (
                    f"[pci] device_spec of {self.source} ({spec.text}) matches it as well: "
                    f"nova-compute {does}. Let only one of the two match it"
                )
        return None


def read(files: Sequence[str], paths: HostPaths) -> NovaSpecs:
    """Read Nova's option.

    Nova takes keys that it does not know for tags, so only those that match a device are read here. An entry that names
    a network interface (``devname``) is skipped.

    :raises InvalidConfiguration: an entry cannot be read, or a file is no text; names the file.
    :raises HardwareError: the PCI bus cannot be listed.
    :raises cfg.Error: a file cannot be read.
    """
    require_text(files)
    source = ", ".join(files)
    conf = cfg.ConfigOpts()
    old = [cfg.DeprecatedOpt("passthrough_whitelist", group="pci")]
    conf.register_opts(
        [
            cfg.MultiStrOpt("device_spec", default=[], deprecated_opts=old),
            cfg.BoolOpt("report_in_placement", default=False),
        ],
        group="pci",
    )
    conf([], project="nova", default_config_files=list(files))
    option = f"[pci] device_spec of {source}"
    entries = []
    for number, raw in option_entries(conf.pci.device_spec, option):
        if not isinstance(raw, dict):
            raise InvalidConfiguration("must be a JSON object", option=option, entry=number)
        if "devname" not in raw:
            entries.append({key: raw[key] for key in _MATCH_KEYS if key in raw} or {"address": "*"})
    specs = parse_device_spec([json.dumps(entries)], option=option, extra_keys=ExtraKeys({}, {}, {}))
    return NovaSpecs(source, specs, conf.pci.report_in_placement, HostFunctions(paths))


def _slot(text: str) -> PCIAddress | None:
    try:
        return PCIAddress.parse(text)
    except ValueError:
        return None  # a device without a slot has a name


_SUMMARY = ("address", "device", "serial", "action", "refused")
_DETAILS = (
    "policy",
    "method",
    "guarantee",
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
"""Limit the characters of a line in the table of all functions, which must fit on a terminal of 120 columns."""
_BLOCK_WIDTH = 90
"""Limit the characters of a line in the table of one function."""


class Plan(Rows):
    """Show, for every PCI function that could match, how it would be erased or why it is refused. Changes nothing."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_configuration(parser)
        parser.add_argument(
            "--long", action="store_true", help="all that `plan show` shows, for programs: best with -f json"
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        """Inspect the host, and return a row for each function.

        :raises AutoclaveError: an option cannot be used, or the host lacks a tool.
        """
        columns = with_details(parsed_args, _SUMMARY, _DETAILS)
        records, lacks = _look(_configured(parsed_args), parsed_args.nova_config_file)
        self.app.stderr.write(_in_words(lacks))
        return columns, [tuple(_cell(record[c], _WIDTHS.get(c)) for c in columns) for record in records]


class PlanShow(Fields):
    """Show all that would be done with one PCI function, and why. Changes nothing."""

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        _add_configuration(parser)
        parser.add_argument("address", type=_address, help="PCI address, such as 0000:41:00.0")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], tuple[Any, ...]]:
        """Inspect the slot, and return its plan.

        :raises AutoclaveError: an option cannot be used, the host lacks a tool, or no function there could match.
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
    """Print hints about the host's setup to stderr: they belong to no function, and programs read stdout."""
    return "".join(f"Host setup: {lack}\n" for lack in lacks)


def _cell(value: str | Sequence[str] | None, width: int | None) -> Cell:
    return Cell(value, partial(_in_lines, width=width))


def _in_lines(value: str | Sequence[str], width: int | None) -> str:
    """Wrap a text, or each text of a list, to a width."""
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
    """Hold the plan of a driver or of an option for a function.

    :param by: a driver, or the option that gives functions to flavors.
    :param claimed: it manages the function, though perhaps without an offer.
    :param told: the inventory and traits for Placement.
    """

    by: str
    inspected: Inspected
    claimed: bool
    told: dict[str, Any] = field(default_factory=dict)


def _look(conf: cfg.ConfigOpts, nova_files: Sequence[str]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return a record for every PCI function that could match, in bus order, and hints about the host's setup."""
    parse_pci_device_spec(conf.pci.device_spec)  # a missing tool must not hide that an option is wrong
    host, paths = host_name(conf), host_paths(conf)
    nova = read(nova_files, paths) if nova_files else None
    seen: dict[str, list[_Planned]] = defaultdict(list)
    lacks: list[str] = []
    for driver in load_drivers(conf, paths):
        driver.init_host()
        lacks += driver.host_setup()
        for it in driver.inspect():
            told = _told(host, it.discovered, bool(it.refused)) if it.discovered else {}
            seen[it.address].append(_Planned(driver.name, it, it.discovered is not None, told))
    for it, provider in look(conf, paths, host):
        seen[it.address].append(_Planned(DEVICE_SPEC_OPTION, it, True, provider))
    lent = _lent(each.inspected for planned in seen.values() for each in planned)
    records = []
    for address, planned in sorted(seen.items()):
        claimed = [each for each in planned if each.claimed]
        if not claimed and address in lent:
            continue  # it is an attach handle of its physical function
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
    """Return the addresses of functions that guests would get as attach handles of a device."""
    return {handle.identity for it in inspected if it.discovered for handle in it.discovered.attach_handles}


def _told(host: str, device: DiscoveredDevice, refused: bool) -> dict[str, Any]:
    total = len(device.attach_handles)
    return {
        "provider": provider_name(host, PCIAddress.parse(device.pci_address), device.name),
        "resource_class": device.resource_class,
        "reserved": f"{total}" if refused else f"0 if its state is available, else {total}",
        "traits": [OWNER_CYBORG, *device.traits],
        **_reclaimed(device.reclaim, device.cleanup_action),
    }


def _record(planned: _Planned, cleanup_timeout: int, clashes: Sequence[str]) -> dict[str, Any]:
    inspected = planned.inspected
    return {
        "address": inspected.address,
        "device": inspected.device,
        "serial": inspected.serial,
        "action": inspected.action,
        "refused": [*clashes, *inspected.refused, *(f"not offered: {each}" for each in inspected.partly_refused)],
        "policy": None,
        "method": None,
        "guarantee": None,
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
    """Return the estimated duration of the erase, its reason, and whether the timeout is too short."""
    if estimate.seconds is None:
        return f"unknown: {estimate.basis}"
    late = f"; [nvme] cleanup_timeout = {timeout} is too short for that" if estimate.seconds > timeout else ""
    return f"{in_words(estimate.seconds)} ({estimate.basis}){late}"


def _address(text: str) -> PCIAddress:
    try:
        return PCIAddress.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
