"""Bodies and answers of ``/v2/accelerator_requests``."""

from typing import Any

from autoclave.api.body import compiled
from autoclave.api.microversion import MANAGED
from autoclave.api.schema import (
    BOOLEAN,
    INTEGER,
    LINKS,
    STRING,
    TIMESTAMP,
    UUID,
    listed,
    nullable,
    one_of,
    shape,
    since,
)
from autoclave.db.tables import AttachType
from autoclave.rules.device_lifecycle import ARQState

CREATE: dict[str, Any] = {
    "type": "object",
    "required": ["device_profile_name"],
    "additionalProperties": False,
    "properties": {
        "device_profile_name": {"type": "string", "maxLength": 255},
        # Cyborg ignores it as well: a profile's groups are requested together. openstackclient sends text, or null.
        "device_profile_group_id": {
            "type": ["integer", "string", "null"],
            "minimum": 0,
            "pattern": r"^[0-9]{1,3}$(?!\n)",
            "x-message": "must be the number of a group, or null; it is ignored, and every group is requested",
        },
        "image_uuid": {"type": "null", "x-message": "an image cannot be asked for"},
    },
}
VALIDATE_CREATE = compiled(CREATE)

PATHS = ("/hostname", "/device_rp_uuid", "/instance_uuid")
"""What a bind sets and an unbind removes, each exactly once."""
PROJECT_PATH = "/project_id"

UPDATE: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "x-message": "must be an object that maps the uuid of each accelerator request to a list of operations",
    "propertyNames": UUID,
    "additionalProperties": {
        "type": "array",
        "minItems": 1,
        "maxItems": 8,
        "items": {
            "type": "object",
            "required": ["path", "op"],
            "additionalProperties": False,
            "properties": {
                "path": {"enum": [*PATHS, PROJECT_PATH]},
                "op": {"enum": ["add", "remove"]},
                "value": {"type": ["string", "null"], "maxLength": 255},
            },
        },
    },
}
VALIDATE_UPDATE = compiled(UPDATE)

ARQ = shape(
    "AcceleratorRequest",
    {
        "uuid": UUID,
        "state": one_of(ARQState),
        "device_profile_name": STRING,
        "device_profile_group_id": INTEGER,
        "hostname": nullable(STRING),
        "device_rp_uuid": nullable(UUID),
        "instance_uuid": nullable(UUID),
        "project_id": nullable(STRING),
        "attach_handle_type": one_of(["", *AttachType]),
        "attach_handle_uuid": nullable(UUID),
        "attach_handle_info": {
            "type": "object",
            "description": "Where the device is, such as domain, bus, device and function; empty until it is bound.",
            "properties": {"managed": since(MANAGED, BOOLEAN)},
            "additionalProperties": STRING,
        },
        "links": LINKS,
        "created_at": nullable(TIMESTAMP),
        "updated_at": nullable(TIMESTAMP),
    },
)
ARQS = listed("AcceleratorRequests", "arqs", ARQ)
