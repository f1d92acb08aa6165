"""A JSON patch of an image: ``[{"op": "add", "path": "/trait:HW_X", "value": "required"}]``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autoclave.api import body
from autoclave.api.image.attributes import require_settable
from autoclave.api.image.schemas import ATTRIBUTES, READ_ONLY, VALIDATE_ATTRIBUTES
from autoclave.db import images as image_rows
from autoclave.db.images import ImageRecord
from autoclave.exceptions import BadRequest, Conflict, Forbidden
from autoclave.objects.base import RequestContext

_BEFORE_DATA = ("disk_format", "container_format")


@dataclass(frozen=True)
class Change:
    """One operation of a patch."""

    op: str
    name: str
    value: Any


def parse(context: RequestContext, patch: Sequence[Mapping[str, Any]]) -> list[Change]:
    """The operations of *patch*, which are such as this caller may ask for of an image of his.

    :raises BadRequest: a value is none that the attribute can have, or is missing.
    :raises Forbidden: an attribute may not be set, or not removed.
    """
    return [_parsed(context, operation) for operation in patch]


def _parsed(context: RequestContext, operation: Mapping[str, Any]) -> Change:
    op, path = operation["op"], operation["path"]
    name = path[1:].replace("~1", "/").replace("~0", "~")
    if op == "remove":
        if name in ATTRIBUTES or name in READ_ONLY:
            raise Forbidden(f"Attribute '{name}' may not be removed.")
        return Change(op, name, None)
    if "value" not in operation:
        raise BadRequest(f"The operation on {path} needs a value.")
    require_settable(context, name, operation["value"])
    try:
        body.check({name: operation["value"]}, VALIDATE_ATTRIBUTES)
    except BadRequest as error:
        raise BadRequest(f"The value for {path} cannot be set. {error}") from None
    return Change(op, name, operation["value"])


def patched(image: ImageRecord, changes: Sequence[Change]) -> dict[str, Any]:
    """The attributes and properties of *image* after *changes*.

    :raises Forbidden: an attribute may not be set any more.
    :raises Conflict: what is to be replaced or removed is not there.
    """
    wanted = {**image.properties, **{name: getattr(image, name) for name in ATTRIBUTES}}
    for change in changes:
        if change.op != "add" and change.name not in wanted:
            raise Conflict(f"Image {image.uuid} has no property {change.name}.")
        if change.op == "remove":
            del wanted[change.name]
            continue
        if change.name in _BEFORE_DATA and image.status != image_rows.QUEUED and change.value != wanted[change.name]:
            raise Forbidden(f"Attribute '{change.name}' cannot be changed once the image has data.")
        wanted[change.name] = change.value
    return wanted
