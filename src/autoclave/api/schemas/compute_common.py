"""Pieces that several nouns of the compute API use."""

from typing import Any

from autoclave.api.schema import LINKS, STRING, Schema, optional, shape

MAX_NUMBER = 2_147_483_647
"""What an INTEGER column holds at most."""

NAME: dict[str, Any] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 255,
    "pattern": r"^(?=.*\S)[^\x00-\x1f\x7f-\x9f]*$(?!\n)",
    "x-message": "must have 1 to 255 characters, not all of them spaces and none a control character",
}
DESCRIPTION: dict[str, Any] = {
    "type": ["string", "null"],
    "maxLength": 4096,
    "x-message": "must be a text of at most 4096 characters, or null",
}


def number(minimum: int) -> dict[str, Any]:
    """A whole number that a column can hold."""
    return {
        "type": "integer",
        "minimum": minimum,
        "maximum": MAX_NUMBER,
        "x-message": f"must be a whole number from {minimum} to {MAX_NUMBER}",
    }


def envelope(name: str, inner: dict[str, Any]) -> dict[str, Any]:
    """``{name: inner}`` and nothing else."""
    return {"type": "object", "required": [name], "additionalProperties": False, "properties": {name: inner}}


def texts(key_pattern: str, most: int, says: str) -> dict[str, Any]:
    """An object of texts.

    :param key_pattern: what a key must be; *says* so in words.
    :param most: how many there may be.
    """
    return {
        "type": "object",
        "maxProperties": most,
        "propertyNames": {"pattern": key_pattern, "x-message": says},
        "additionalProperties": {
            "type": "string",
            "maxLength": 255,
            "x-message": "must be a text of at most 255 characters",
        },
    }


def paged(title: str, name: str, schema: Schema) -> Schema:
    """The envelope of a list that comes in pages: ``<name>_links`` says where the next one is."""
    return shape(title, {name: {"type": "array", "items": schema}, f"{name}_links": optional(LINKS)})


NOVAS_MOMENT: Schema = {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}$"}
"""A moment in UTC, where Nova's extensions once wrote it without the zone; clients there take no other."""
MAP_OF_TEXTS: Schema = {"type": "object", "additionalProperties": STRING}
VERSION = shape(
    "ComputeVersionDocument",
    {
        "id": STRING,
        "status": {"const": "CURRENT"},
        "version": STRING,
        "min_version": STRING,
        "updated": STRING,
        "links": LINKS,
        "media-types": {"type": "array", "items": {"type": "object"}},
    },
)
SHOWN_VERSION = shape("ShownComputeVersion", {"version": VERSION})
VERSIONS = shape("ComputeVersions", {"versions": {"type": "array", "items": VERSION}})
