"""Answers of the version documents."""

from autoclave.api.schema import INTEGER, LINKS, STRING, optional, shape

VERSION = shape(
    "Version",
    {"id": STRING, "status": {"const": "CURRENT"}, "max_version": STRING, "min_version": STRING, "links": LINKS},
)
VERSIONS = shape(
    "Versions",
    {
        "name": STRING,
        "description": STRING,
        "versions": {"type": "array", "items": VERSION},
        "default_version": VERSION,
    },
)

_IDENTITY = shape(
    "IdentityVersion",
    {
        "id": STRING,
        "status": STRING,
        "updated": STRING,
        "links": LINKS,
        "media-types": {"type": "array", "items": {"type": "object", "additionalProperties": STRING}},
    },
)
IDENTITY = shape("Identity", {"version": _IDENTITY})
IDENTITY_VERSIONS = shape(
    "IdentityVersions", {"versions": shape("IdentityValues", {"values": {"type": "array", "items": _IDENTITY}})}
)

HEALTH = shape(
    "Health", {"status": {"enum": ["ok", "unavailable"]}, "database": STRING, "hosts_not_yet_known": optional(INTEGER)}
)
