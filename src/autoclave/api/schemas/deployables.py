"""Bodies of ``/v2/deployables``."""

from typing import Any

from autoclave.api.body import compiled
from autoclave.api.schemas.common import UUID

PROGRAM: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "maxItems": 1,
    "x-message": "must be a list of exactly one operation",
    "items": {
        "type": "object",
        "required": ["path", "op", "value"],
        "additionalProperties": False,
        "properties": {
            # The second is what openstackclient sends.
            "path": {"enum": ["/bitstream_id", "/program"]},
            "op": {"enum": ["replace"]},
            "value": {
                "type": "array",
                "minItems": 1,
                "maxItems": 1,
                "x-message": "must be a list of exactly one image, as [{'image_uuid': uuid}]",
                "items": {
                    "type": "object",
                    "required": ["image_uuid"],
                    "additionalProperties": False,
                    "properties": {"image_uuid": UUID},
                },
            },
        },
    },
}
VALIDATE_PROGRAM = compiled(PROGRAM)
