"""Bodies and answers of ``/v2/device_profiles``."""

from typing import Any

from autoclave.api.body import compiled
from autoclave.api.schema import LINKS, READ_ONLY, STRING, TIMESTAMP, UUID, listed, nullable, shape

MAX_GROUPS = 16

CREATE: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "maxItems": 1,
    "x-message": "must be a list of exactly one device profile",
    "items": {
        "type": "object",
        "required": ["name", "groups"],
        "additionalProperties": False,
        "properties": {
            **READ_ONLY,
            "uuid": UUID,
            "name": {
                "type": "string",
                "minLength": 1,
                "maxLength": 255,
                "pattern": r"^[a-zA-Z0-9_-]+$(?!\n)",
                "x-message": "a name has 1 to 255 letters, digits, '-' and '_'",
            },
            "description": {"type": ["string", "null"], "maxLength": 4096},
            "groups": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_GROUPS,
                "x-message": f"must be a list of 1 to {MAX_GROUPS} groups",
                "items": {
                    "type": "object",
                    "description": "What devices must be: resources:CLASS with a count, trait:NAME with required or "
                    "forbidden, accel:… with what the driver knows.",
                    "minProperties": 1,
                    "maxProperties": 128,
                },
            },
        },
    },
}
"""The keys and values of a group are checked by ``accelerator.profile_groups``: a schema cannot say why."""

VALIDATE_CREATE = compiled(CREATE)

PROFILE = shape(
    "DeviceProfile",
    {
        "uuid": UUID,
        "name": STRING,
        "description": nullable(STRING),
        "groups": {"type": "array", "items": {"type": "object", "additionalProperties": STRING}},
        "created_at": nullable(TIMESTAMP),
        "updated_at": nullable(TIMESTAMP),
        "links": LINKS,
    },
)
PROFILES = listed("DeviceProfiles", "device_profiles", PROFILE)
SHOWN_PROFILE = shape("ShownDeviceProfile", {"device_profile": PROFILE})
