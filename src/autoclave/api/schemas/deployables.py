"""Bodies and answers of ``/v2/deployables``."""

from typing import Any

from autoclave.api.body import compiled
from autoclave.api.schema import INTEGER, LINKS, STRING, TIMESTAMP, UUID, listed, nullable, shape

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

DEPLOYABLE = shape(
    "Deployable",
    {
        "uuid": UUID,
        "parent_id": nullable(INTEGER),
        "root_id": nullable(INTEGER),
        "name": STRING,
        "num_accelerators": INTEGER,
        "device_id": INTEGER,
        "attributes_list": {**STRING, "description": "A list of objects with one key each, written as JSON."},
        "rp_uuid": UUID,
        "driver_name": STRING,
        "bitstream_id": nullable(STRING),
        "links": LINKS,
        "created_at": nullable(TIMESTAMP),
        "updated_at": nullable(TIMESTAMP),
    },
)
DEPLOYABLES = listed("Deployables", "deployables", DEPLOYABLE)
