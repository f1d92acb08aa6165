"""``autoclave check provider-config``: what the files of ``[compute] provider_config_location`` will add."""

import argparse
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cliff import lister
from cliff.columns import FormattableColumn

from autoclave.agent.provider_config import load, load_file
from autoclave.rules.provider_config import AddedInventory


class CheckProviderConfig(lister.Lister):  # type: ignore[misc]  # cliff comes without types
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
                _Inventories({name: _fields(record) for name, record in sorted(entry.inventories.items())}),
                _Names(sorted(entry.traits)),
                str(entry.place),
            )
            for entry in config.entries
        ]
        return ("uuid", "name", "inventories", "traits", "place"), rows


def _fields(record: AddedInventory) -> dict[str, int | float]:
    return {
        "total": record.total,
        "reserved": record.reserved,
        "min_unit": record.min_unit,
        "max_unit": record.max_unit,
        "step_size": record.step_size,
        "allocation_ratio": record.allocation_ratio,
    }


class _Inventories(FormattableColumn):  # type: ignore[misc]
    """Inventories by class: as they are for programs, in lines for people."""

    def human_readable(self) -> str:
        inventories: Mapping[str, Mapping[str, Any]] = self._value
        return "\n".join(
            line
            for name, fields in inventories.items()
            for line in (name, *(f"  {field} {value}" for field, value in fields.items()))
        )

    def machine_readable(self) -> Any:
        return self._value


class _Names(FormattableColumn):  # type: ignore[misc]
    """A list of names: as it is for programs, in lines for people."""

    def human_readable(self) -> str:
        return "\n".join(self._value)

    def machine_readable(self) -> Any:
        return self._value
