"""Define the parts of schemas that several resources share.

``x-message`` is the text of the error. ``x-since`` is the microversion that added a property. ``x-optional`` marks a
property that may be absent. A schema with a ``title`` is a component of the OpenAPI document.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from autoclave.api.microversion import Microversion

Schema = Mapping[str, Any]

UUID_PATTERN = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$(?!\n)"
"""A uuid. The look-ahead is for Python, where ``$`` also stands before a line feed at the end."""

UUID: Schema = {"type": "string", "pattern": UUID_PATTERN, "x-message": "must be a uuid"}
TEXT: Schema = {
    "type": "string",
    "pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$(?!\n)",
    "x-message": "must hold no control character",
}
STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
TIMESTAMP: Schema = {"type": "string", "format": "date-time"}


def one_of(values: Iterable[str]) -> Schema:
    """One of *values*."""
    known = [str(value) for value in values]
    return {"enum": known, "x-message": f"must be {' or '.join(known)}"}


def nullable(schema: Schema) -> Schema:
    """What *schema* takes, or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def since(version: Microversion, schema: Schema) -> Schema:
    """*schema* of a property that is there from *version* on."""
    return {**schema, "x-since": str(version)}


def optional(schema: Schema) -> Schema:
    """*schema* of a property that is there only when there is something to say, or for those who may know."""
    # a component is the same wherever it is
    return {"allOf": [schema], "x-optional": True} if "title" in schema else {**schema, "x-optional": True}


def shape(title: str, properties: Mapping[str, Schema]) -> Schema:
    """An object with these properties: all of them always, but for those of later microversions and optional ones."""
    always = [name for name, schema in properties.items() if not schema.keys() & {"x-since", "x-optional"}]
    return {"title": title, "type": "object", "required": always, "properties": properties}


def listed(title: str, name: str, schema: Schema) -> Schema:
    """The envelope of a list."""
    return shape(title, {name: {"type": "array", "items": schema}})


LINKS: Schema = {
    "type": "array",
    "items": shape("Link", {"href": {"type": "string", "format": "uri"}, "rel": STRING}),
}

READ_ONLY: Mapping[str, Schema] = {name: {"description": "Ignored."} for name in ("created_at", "updated_at", "links")}
"""Properties of an answer that are ignored when the answer is sent back as a request."""
