"""``autoclave function list``: PCI functions that instances get by flavor, over ``/autoclave/v1``."""

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from autoclave.cli.cells import Cell
from autoclave.cli.client import add_service, service_of
from autoclave.cli.tables import Rows, with_details

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
"""Characters of a line of ``waiting_for`` in the table."""


class FunctionList(Rows):
    """List the PCI functions that instances get by flavor, and what keeps them from being offered as configured."""

    nothing = "There are no such PCI functions."

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The arguments."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        add_service(parser)
        parser.add_argument("--host", help="only of this host")
        parser.add_argument("--waiting", action="store_true", help="only where a change waits, or one cannot be read")
        parser.add_argument("--long", action="store_true", help="all that is known, for programs: best with -f json")
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], Iterable[tuple[Any, ...]]]:
        """Ask, and show.

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
    """Say in words who has the function, and what else keeps it from being offered."""
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
