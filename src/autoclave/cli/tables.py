"""Commands that print a table: what all of them refuse and offer."""

import argparse
from collections.abc import Iterable, Sequence
from typing import Any

from cliff import lister, show
from cliff.columns import FormattableColumn

from autoclave.cli.cells import Cell
from autoclave.exceptions import AutoclaveError


class Rows(lister.Lister):  # type: ignore[misc]  # cliff comes without types
    """A command that prints a row for each of several things. Rows can be sorted by each of its columns."""

    nothing: str | None = None
    """What stderr gets instead of a table without rows; None: the table is printed all the same."""

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Sequence[str], data: Iterable[Any]) -> int:
        """Print the rows.

        :raises AutoclaveError: ``--column`` or ``--sort-column`` names a column that there is not.
        """
        _refuse_unknown("--column", parsed_args.columns, column_names)
        _refuse_unknown("--sort-column", parsed_args.sort_columns, column_names)
        # Cells compare where plain values do not: texts with nothing.
        cells = [tuple(each if isinstance(each, FormattableColumn) else Cell(each) for each in row) for row in data]
        if not cells and self.nothing is not None and parsed_args.formatter == "table":
            self.app.stderr.write(f"{self.nothing}\n")
            return 0
        status: int = super().produce_output(parsed_args, column_names, cells)
        return status


class Fields(show.ShowOne):  # type: ignore[misc]
    """A command that prints the fields of one thing."""

    def produce_output(self, parsed_args: argparse.Namespace, column_names: Iterable[str], data: Any) -> int:
        """Print the fields.

        :raises AutoclaveError: ``--column`` names a field that there is not.
        """
        names = tuple(column_names)
        _refuse_unknown("--column", parsed_args.columns, names)
        status: int = super().produce_output(parsed_args, names, data)
        return status


def with_details(
    parsed_args: argparse.Namespace, columns: tuple[str, ...], details: tuple[str, ...]
) -> tuple[str, ...]:
    """Return *columns*, and *details* where ``--long`` was given, or where a column of theirs was named."""
    named = {_normal(name) for name in (*parsed_args.columns, *parsed_args.sort_columns)}
    return columns + details if parsed_args.long or not named.isdisjoint(details) else columns


def _refuse_unknown(option: str, asked: Sequence[str], columns: Sequence[str]) -> None:
    known = {_normal(column) for column in columns}
    for name in asked:
        if _normal(name) not in known:
            raise AutoclaveError(f"{option} {name}: there is no such column. There are: {', '.join(columns)}.")


def _normal(name: str) -> str:
    """The form in which cliff compares names of columns."""
    return name.lower().strip().replace(" ", "_")
