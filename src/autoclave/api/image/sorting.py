"""In which order a list of images is asked for, in either of the two ways that Glance knows."""

from collections.abc import Mapping

from autoclave.api.query import Argument
from autoclave.api.schemas.common import one_of
from autoclave.db.paging import NEWEST_FIRST, Order
from autoclave.exceptions import BadRequest

_COLUMNS = {
    "created_at": "created_at",
    "updated_at": "updated_at",
    "name": "name",
    "status": "status",
    "size": "size",
    "disk_format": "disk_format",
    "container_format": "container_format",
    "id": "uuid",
}
_SORT = {
    "pattern": f"^({'|'.join(_COLUMNS)})(:(asc|desc))?$(?!\\n)",
    "x-message": f"must be one of {', '.join(_COLUMNS)}, with :asc or :desc behind it or without",
}
ARGUMENTS = (
    Argument("sort", "What they are sorted by, and how, such as name:asc; desc if not said.", _SORT),
    Argument("sort_key", "What they are sorted by; created_at if not said.", one_of(_COLUMNS)),
    Argument("sort_dir", "desc if not said.", one_of(["asc", "desc"])),
)


def order(given: Mapping[str, str]) -> Order:
    """The order that the arguments ask for.

    :raises BadRequest: they do so in both ways.
    """
    if "sort" in given and given.keys() & {"sort_key", "sort_dir"}:
        raise BadRequest('The argument "sort" says everything: leave out "sort_key" and "sort_dir".')
    key, _, direction = given.get("sort", "").partition(":")
    key = key or given.get("sort_key", NEWEST_FIRST.key)
    return Order(_COLUMNS[key], descending=(direction or given.get("sort_dir", "desc")) == "desc")
