"""Run ``autoclave function``: manage the PCI functions that instances get by flavor.

``list`` uses ``/autoclave/v1``; ``take-back`` works on the database directly.
"""

import argparse
import getpass
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from cliff import command

from autoclave.audit.remedies import TakingBack
from autoclave.cli.audit import add_audited
from autoclave.cli.client import add_service, service_of
from autoclave.cli.main import Cell, Rows, with_details
from autoclave.exceptions import InvalidConfiguration
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor
from autoclave.rules.pci_address import PCIAddress
from autoclave.services.audit import audited
from autoclave.services.service import Resources


class FunctionTakeBack(command.Command):  # type: ignore[misc]  # cliff comes without types
    """Take PCI functions back from instances that are not there, as `autoclave audit` names them.

    Refuses while a guest of the host has one, or nobody can tell. What is of one time use stays burned; all else is
    offered again, so clean it first.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "functions", nargs="+", type=_slot, metavar="HOST/PCI-ADDRESS", help="a function, not the card it is of"
        )
        add_audited(parser)
        parser.add_argument(
            "--looked",
            action="store_true",
            help="you have looked, and no guest of the host has them: needed where the host cannot be asked from here",
        )
        parser.add_argument("--reason", help="why; kept in the device's history")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> None:
        """Reclaim the functions, host by host, and print the result.

        :raises AutoclaveError: names a host for which nothing was done; hosts after it were skipped.
        """
        of_hosts: dict[str, list[str]] = defaultdict(list)
        for host, address in dict.fromkeys(parsed_args.functions):
            of_hosts[host].append(address)
        cause = Cause(Actor.OPERATOR, getpass.getuser(), reason=parsed_args.reason)
        resources = Resources()
        try:
            parts = audited(parsed_args.config_file, parsed_args.data_dir, resources)
            if parts.schema_behind is not None:
                raise InvalidConfiguration(parts.schema_behind.seen)
            taking = TakingBack(parts.db, parts.placement, parts.hosts)
            for host, addresses in of_hosts.items():
                done = taking.take_back(host, addresses, cause, looked=parsed_args.looked)
                for address, told in done.items():
                    self.app.stdout.write(f"{host}/{address}: {told}\n")
        finally:
            resources.close()


def _slot(text: str) -> tuple[str, str]:
    host, slash, address = text.rpartition("/")
    if not slash or not host:
        raise argparse.ArgumentTypeError(f"{text!r} is not HOST/PCI-ADDRESS, such as host-1/0000:41:00.0")
    try:
        return host, str(PCIAddress.parse(address))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


_COLUMNS = ("hostname", "pci_address", "resource_class", "state", "instance_uuid", "waiting_for")
_DETAILS = (
    "rp_uuid",
    "dev_type",
    "vendor_id",
    "product_id",
    "managed",
    "traits",
    "one_time_use",
    "burned",
    "missing",
    "unreadable_reason",
)
_WAITING_WIDTH = 30
"""Limit the characters of a line of ``waiting_for`` in the table."""


class FunctionList(Rows):
    """List the PCI functions that instances get by flavor, and what keeps them from being offered as configured."""

    nothing = "There are no such PCI functions."

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """Return the parser of the arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_service(parser)
        parser.add_argument("--host", help="only of this host")
        parser.add_argument("--waiting", action="store_true", help="only where a change waits, or one cannot be read")
        parser.add_argument("--long", action="store_true", help="all that is known, for programs: best with -f json")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        """Request the data, and print it.

        :raises AutoclaveError: the service does not answer.
        """
        asked = {} if parsed_args.host is None else {"hostname": parsed_args.host}
        rows = service_of(parsed_args).ask("GET", "/autoclave/v1/functions", query=asked)["functions"]
        columns = with_details(parsed_args, _COLUMNS, _DETAILS)
        shown = [
            {**row, "state": _state(row)} for row in rows if row["waiting_for"] is not None or not parsed_args.waiting
        ]
        return columns, [tuple(_cell(name, row[name]) for name in columns) for row in shown]


def _state(row: Mapping[str, Any]) -> str:
    """Describe the holder of the function, and all else that prevents the offer."""
    states = {
        "in use": row["instance_uuid"] is not None,
        "burned": row["burned"] and row["instance_uuid"] is None,
        "missing": row["missing"],
        "unreadable": row["unreadable_reason"] is not None,
    }
    return ", ".join(state for state, so in states.items() if so) or "free"


def _cell(name: str, value: Any) -> Cell:
    if name == "traits":
        return Cell(value, "\n".join)
    return Cell(value, str, _WAITING_WIDTH if name == "waiting_for" else None)
