"""``autoclave function list``: PCI functions that instances get by flavor, over ``/autoclave/v1``."""

import argparse
from collections.abc import Iterable
from typing import Any

from cliff import lister

from autoclave.cli.cells import Cell
from autoclave.cli.client import add_service, service_of

_COLUMNS = ("hostname", "pci_address", "resource_class", "instance_uuid", "waiting_for")
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


class FunctionList(lister.Lister):  # type: ignore[misc]  # cliff comes without types
    """List the PCI functions that instances get by flavor, and what keeps them from being offered as configured."""

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
        columns = _COLUMNS + _DETAILS if parsed_args.long else _COLUMNS
        shown = [row for row in rows if row["waiting_for"] is not None or not parsed_args.waiting]
        return columns, [tuple(_cell(name, row[name]) for name in columns) for row in shown]


def _cell(name: str, value: Any) -> Cell:
    if name == "traits":
        return Cell(value, "\n".join)
    return Cell(value, str, _WAITING_WIDTH if name == "waiting_for" else None)
