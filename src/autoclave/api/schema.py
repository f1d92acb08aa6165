"""Define the parts of schemas that several resources share.

``x-message`` is the text of the error. ``x-since`` is the microversion that added a property. ``x-optional`` marks a
property that may be absent. A schema with a ``title`` is a component of the OpenAPI document.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from autoclave.api.microversion import Microversion

Schema = Mapping[str, Any]

UUID_PATTERN = r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$(?!\n)"
"""Define a uuid. The look-ahead is for Python, where ``$`` also matches before a final line feed."""

UUID: Schema = {"type": "string", "pattern": UUID_PATTERN, "x-message": "must be a UUID"}
TEXT: Schema = {
    "type": "string",
    "pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$(?!\n)",
    "x-message": "must not contain control characters",
}
STRING: Schema = {"type": "string"}
INTEGER: Schema = {"type": "integer"}
NUMBER: Schema = {"type": "number"}
BOOLEAN: Schema = {"type": "boolean"}
TIMESTAMP: Schema = {"type": "string", "format": "date-time"}


def one_of(values: Iterable[str]) -> Schema:
    """Accept one of *values*."""
    known = [str(value) for value in values]
    return {"enum": known, "x-message": f"must be {' or '.join(known)}"}


def nullable(schema: Schema) -> Schema:
    """Accept *schema* or null."""
    return {"anyOf": [schema, {"type": "null"}]}


def since(version: Microversion, schema: Schema) -> Schema:
    """Mark *schema* as a property that *version* adds."""
    return {**schema, "x-since": str(version)}


def optional(schema: Schema) -> Schema:
    """Mark *schema* as a property that may be absent: without a value, or for callers that may not see it."""
    # a component is the same in every schema
    return {"allOf": [schema], "x-optional": True} if "title" in schema else {**schema, "x-optional": True}


def shape(title: str, properties: Mapping[str, Schema]) -> Schema:
    """Define an object with these properties. All are required, except later microversions' and optional ones."""
    always = [name for name, schema in properties.items() if not schema.keys() & {"x-since", "x-optional"}]
    return {"title": title, "type": "object", "required": always, "properties": properties}


def listed(title: str, name: str, schema: Schema) -> Schema:
    """Define the envelope of a list."""
    return shape(title, {name: {"type": "array", "items": schema}})


LINKS: Schema = {
    "type": "array",
    "items": shape("Link", {"href": {"type": "string", "format": "uri"}, "rel": STRING}),
}

READ_ONLY: Mapping[str, Schema] = {name: {"description": "Ignored."} for name in ("created_at", "updated_at", "links")}
"""List the properties of an answer that a request may repeat, and that are ignored there."""
