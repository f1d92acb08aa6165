"""Bodies of ``/v2/accelerator_requests``."""

from typing import Any

from autoclave.api.body import compiled
from autoclave.api.schemas.common import UUID_PATTERN

CREATE: dict[str, Any] = {
    "type": "object",
    "required": ["device_profile_name"],
    "additionalProperties": False,
    "properties": {
        "device_profile_name": {"type": "string", "maxLength": 255},
        # openstackclient sends these as null; one group or image alone cannot be asked for.
        "device_profile_group_id": {"type": "null", "x-message": "one group alone cannot be asked for"},
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
    "patternProperties": {
        UUID_PATTERN: {
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
        }
    },
    "additionalProperties": False,
}
VALIDATE_UPDATE = compiled(UPDATE)
