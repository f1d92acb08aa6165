"""Values that programs get as they are, and people so that they can be read in a table."""

import textwrap
from collections.abc import Callable
from typing import Any

from cliff.columns import FormattableColumn

from autoclave.rules.plain_text import printable


class Cell(FormattableColumn):  # type: ignore[misc]  # cliff comes without types
    """A value that has a form of its own for people.

    :param shown: the text for people; None stands as nothing.
    :param width: characters of a line; None does not break it.
    """

    def __init__(self, value: Any, shown: Callable[[Any], str] = str, width: int | None = None) -> None:
        super().__init__(value)
        self._shown = shown
        self._width = width

    def human_readable(self) -> str:
        text = "" if self._value is None else printable(self._shown(self._value), keep="\n")
        return text if self._width is None else textwrap.fill(text, self._width)

    def __lt__(self, other: Any) -> bool:
        """Sort empty values last, numbers by value, and the rest by text: cliff sorts a column by its cells."""
        if not isinstance(other, Cell):
            return NotImplemented
        return self._sort_key() < other._sort_key()

    def _sort_key(self) -> tuple[int, float, str]:
        value = self._value
        if value is None or value == "":
            return 2, 0.0, ""
        if isinstance(value, bool | int | float):
            return 0, float(value), ""
        return 1, 0.0, self._shown(value)

    def machine_readable(self) -> Any:
        return self._value
