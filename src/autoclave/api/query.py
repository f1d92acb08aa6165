"""Query strings: what is not understood is refused, so that a filter with a typo does not return everything."""

from collections.abc import Collection
from dataclasses import dataclass

import falcon

from autoclave.exceptions import BadRequest

PAGING = ("limit", "marker")
MAX_LIMIT = 1_000_000


@dataclass(frozen=True)
class Page:
    """Which part of a list is wanted.

    :param limit: rows at most; None: all of them.
    :param marker: the uuid of the last row already seen.
    """

    limit: int | None
    marker: str | None


def arguments(req: falcon.Request, *allowed: str, apart: Collection[str] = ()) -> dict[str, str]:
    """The arguments of the query string by name.

    :param apart: names that are allowed, and that the caller reads by itself.
    :raises BadRequest: one is not in *allowed*, is given twice, or holds a character that is none.
    """
    found: dict[str, str] = {}
    for name, value in req.params.items():
        if name in apart:
            continue
        if name not in allowed:
            raise BadRequest(f'Unknown argument: "{name}"')
        if not isinstance(value, str):
            raise BadRequest(f'The argument "{name}" is given more than once.')
        if not value.isprintable():
            raise BadRequest(f'The argument "{name}" holds a control character.')
        found[name] = value
    return found


def page(values: dict[str, str]) -> Page:
    """``limit`` and ``marker`` of *values*.

    :raises BadRequest: limit is not a number from 1 to :data:`MAX_LIMIT`.
    """
    limit = values.get("limit")
    if limit is None:
        return Page(None, values.get("marker"))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 7 and 1 <= int(limit) <= MAX_LIMIT):
        raise BadRequest(f'The argument "limit" must be a whole number from 1 to {MAX_LIMIT}.')
    return Page(int(limit), values.get("marker"))


def unknown_marker(marker: str) -> BadRequest:
    """The refusal of a marker that no row has."""
    return BadRequest(f'The argument "marker" names no row that you can see: {marker}')
