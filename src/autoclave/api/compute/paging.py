"""Pages of the lists of the compute API: 0 rows are as many as there may be, as Nova has it."""

from collections.abc import Mapping

from autoclave.api import query
from autoclave.api.query import Page

LIMIT = query.limit(0, "Rows at most; without it, or with 0, all of them.")
PAGING = (LIMIT, query.MARKER)


def page(values: Mapping[str, str]) -> Page:
    """As :func:`autoclave.api.query.page`."""
    asked = query.page(values)
    return Page(asked.limit or None, asked.marker)
