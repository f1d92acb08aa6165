"""``autoclave check provider-config``: what the files of ``[compute] provider_config_location`` will add."""

import argparse
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autoclave.agent.compute.provider_config import load, load_file
from autoclave.cli.cells import Cell
from autoclave.cli.tables import Rows
from autoclave.rules.provider_config import AddedInventory


class CheckProviderConfig(Rows):
    """Check provider configuration, and show what it adds to which provider, with every default filled in.

    Everything that is wrong is told, not only the first of it. Placement is not asked: whether the providers are there,
    and whether they have such an inventory already, shows when the agent starts.
    """

    def get_parser(self, prog_name: str) -> argparse.ArgumentParser:
        """The argument: what to read."""
        parser: argparse.ArgumentParser = super().get_parser(prog_name)
        parser.add_argument(
            "path",
            metavar="PATH",
            help="a directory, read as [compute] provider_config_location is, or one file of any name",
        )
        return parser

    def take_action(self, parsed_args: argparse.Namespace) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
        """One row an entry, in the order in which the agent reads them.

        :raises ProviderConfigFaults: with everything that is wrong.
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
