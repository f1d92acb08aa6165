"""The attributes of an image that a caller sets: told apart from free properties, and those he may not set."""

from collections.abc import Mapping
from typing import Any

from autoclave.api.body import storable
from autoclave.api.image.schemas import ATTRIBUTES, READ_ONLY
from autoclave.db import images as image_rows
from autoclave.exceptions import Forbidden
from autoclave.objects.base import RequestContext


def require_settable(context: RequestContext, name: str, value: Any) -> None:
    """Refuse what this caller may not set.

    :raises Forbidden: nobody may set it, or only an administrator.
    """
    if name in READ_ONLY:
        raise Forbidden(f"Attribute '{name}' is read-only.")
    if context.is_admin:
        return
    if name == "owner" and value != context.project_id:
        raise Forbidden("Only an administrator may give an image to another project.")
    if name == "visibility" and value == image_rows.PUBLIC:
        raise Forbidden("Only an administrator may make an image public.")


def row_of(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of an image with the attributes and properties *wanted*.

    :raises BadRequest: the properties are too large.
    """
    properties = {name: value for name, value in wanted.items() if name not in ATTRIBUTES}
    return {
        "name": wanted.get("name"),
        "disk_format": wanted.get("disk_format"),
        "container_format": wanted.get("container_format"),
        "min_disk": wanted.get("min_disk", 0),
        "min_ram": wanted.get("min_ram", 0),
        "visibility": wanted.get("visibility", "shared"),
        "protected": wanted.get("protected", False),
        "owner": wanted.get("owner"),
        "properties": storable(properties, "The image's properties"),
    }
