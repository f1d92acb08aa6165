"""Define the bodies and answers of ``/image/v2/images``."""

from typing import Any

from autoclave.api.body import compiled
from autoclave.api.compute.common import number
from autoclave.api.schema import BOOLEAN, INTEGER, LINKS, STRING, TIMESTAMP, UUID, nullable, one_of, optional, shape

DISK_FORMATS = ("ami", "ari", "aki", "vhd", "vhdx", "vmdk", "raw", "qcow2", "vdi", "ploop", "iso")
CONTAINER_FORMATS = ("ami", "ari", "aki", "bare", "ovf", "ova", "docker", "compressed")
VISIBILITIES = ("public", "private", "shared")
_HERE = ("queued", "saving", "active")
STATUSES = (*_HERE, "uploading", "importing", "killed", "deactivated", "deleted", "pending_delete")
"""List Glance's statuses; a list can filter by any of them."""
PATCH_TYPE = "application/openstack-images-v2.1-json-patch"

_TEXT: dict[str, Any] = {
    "type": "string",
    "maxLength": 255,
    "pattern": r"^[^\x00-\x1f\x7f-\x9f]*$(?!\n)",
    "x-message": "must be a text of at most 255 characters, without control characters",
}
ATTRIBUTES: dict[str, Any] = {
    "name": nullable(_TEXT),
    "disk_format": nullable(one_of(DISK_FORMATS)),
    "container_format": nullable(one_of(CONTAINER_FORMATS)),
    "min_disk": number(0),
    "min_ram": number(0),
    "visibility": one_of(VISIBILITIES),
    "protected": {"type": "boolean", "x-message": "must be true or false"},
    "owner": {**_TEXT, "minLength": 1},
}
"""List the attributes that a caller can set, without free properties."""

READ_ONLY = frozenset(
    {
        "id",
        "status",
        "size",
        "virtual_size",
        "checksum",
        "os_hash_algo",
        "os_hash_value",
        "os_hidden",
        "created_at",
        "updated_at",
        "self",
        "file",
        "schema",
        "direct_url",
        "locations",
        "stores",
    }
)
"""List the read-only attributes, and Glance's names that no free property may have."""

_PROPERTY: dict[str, Any] = {
    "type": "string",
    "maxLength": 4096,
    "x-message": "must be a text of at most 4096 characters",
}
_NO_TAGS: dict[str, Any] = {
    "type": "array",
    "maxItems": 0,
    "x-message": "must be an empty list or absent: images have no tags",
}
_KEYS = {
    "minLength": 1,
    "maxLength": 255,
    "pattern": r"^[^\x00-\x1f\x7f-\x9f]*$(?!\n)",
    "x-message": "has 1 to 255 characters, without control characters",
}
_ANY: dict[str, Any] = {
    "type": "object",
    "maxProperties": 256,
    "propertyNames": _KEYS,
    "properties": {**ATTRIBUTES, "tags": {"not": {}, "x-message": "is not supported: images have no tags"}},
    "additionalProperties": _PROPERTY,
}
# a read-only attribute is refused by name, not by type
_UNSETTABLE: dict[str, Any] = {name: {} for name in sorted(READ_ONLY)}
VALIDATE_CREATE = compiled({**_ANY, "properties": {**_UNSETTABLE, **ATTRIBUTES, "id": UUID, "tags": _NO_TAGS}})
VALIDATE_ATTRIBUTES = compiled(_ANY)
VALIDATE_PATCH = compiled(
    {
        "type": "array",
        "minItems": 1,
        "maxItems": 256,
        "items": {
            "type": "object",
            "required": ["op", "path"],
            "additionalProperties": False,
            "properties": {
                "op": one_of(["add", "replace", "remove"]),
                "path": {
                    "type": "string",
                    "pattern": r"^/([^~/\x00-\x1f\x7f-\x9f]|~[01]){1,255}$(?!\n)",
                    "x-message": "must be '/' and the name of an attribute",
                },
                "value": {},
            },
        },
    }
)

IMAGE = {
    **shape(
        "Image",
        {
            "id": UUID,
            "name": nullable(STRING),
            "status": one_of(_HERE),
            "visibility": one_of(VISIBILITIES),
            "owner": nullable(STRING),
            "disk_format": nullable(STRING),
            "container_format": nullable(STRING),
            "min_disk": INTEGER,
            "min_ram": INTEGER,
            "protected": BOOLEAN,
            "size": nullable(INTEGER),
            "virtual_size": {"type": "null"},
            "checksum": nullable(STRING),
            "os_hash_algo": nullable(STRING),
            "os_hash_value": nullable(STRING),
            "os_hidden": BOOLEAN,
            "tags": {"type": "array", "maxItems": 0},
            "created_at": TIMESTAMP,
            "updated_at": TIMESTAMP,
            "self": STRING,
            "file": STRING,
            "schema": STRING,
        },
    ),
    "additionalProperties": STRING,
}
IMAGES = shape("Images", {"images": {"type": "array", "items": IMAGE}, "next": optional(STRING)})
VERSIONS = shape(
    "ImageVersions",
    {
        "versions": {
            "type": "array",
            "items": shape("ImageVersion", {"id": STRING, "status": {"const": "CURRENT"}, "links": LINKS}),
        }
    },
)
DATA: dict[str, Any] = {"type": "string", "format": "binary"}
