"""Bodies and answers of ``/v2/attributes``."""

from typing import Any

from autoclave.api.body import compiled
from autoclave.api.schema import (
    INTEGER,
    LINKS,
    READ_ONLY,
    STRING,
    TIMESTAMP,
    UUID,
    UUID_PATTERN,
    listed,
    nullable,
    shape,
)

MAX_ID = 2_147_483_647
"""The largest id that a row can have."""

DEPLOYABLE_ID: dict[str, Any] = {
    # openstackclient sends as text what was typed, and never shows a deployable's id.
    "type": ["integer", "string"],
    "minimum": 1,
    "maximum": MAX_ID,
    "pattern": rf"^[0-9]{{1,10}}$(?!\n)|{UUID_PATTERN}",
    "x-message": "must be the id of a deployable, or its uuid",
}
_NEW: dict[str, Any] = {
    "type": "object",
    "required": ["deployable_id", "key", "value"],
    "additionalProperties": False,
    "properties": {
        **READ_ONLY,
        "uuid": {"description": "Ignored: the service chooses it."},
        "deployable_id": DEPLOYABLE_ID,
        "key": {
            "type": "string",
            "maxLength": 255,
            "pattern": r"^[^\x00-\x1f\x7f-\x9f]+$(?!\n)",
            "x-message": "must have 1 to 255 characters, none of them a control character",
        },
        "value": {"type": "string", "maxLength": 4096},
    },
}

CREATE: dict[str, Any] = {
    # openstacksdk puts an envelope around it.
    "if": {"type": "object", "required": ["attribute"]},
    "then": {"additionalProperties": False, "properties": {"attribute": _NEW}},
    "else": _NEW,
}
VALIDATE_CREATE = compiled(CREATE)

ATTRIBUTE = shape(
    "Attribute",
    {
        "uuid": UUID,
        "deployable_id": INTEGER,
        "key": STRING,
        "value": STRING,
        "links": LINKS,
        "created_at": nullable(TIMESTAMP),
        "updated_at": nullable(TIMESTAMP),
    },
)
ATTRIBUTES = listed("Attributes", "attributes", ATTRIBUTE)
