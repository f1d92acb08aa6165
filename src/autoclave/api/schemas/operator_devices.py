"""Bodies of ``/autoclave/v1/devices/{device}/…``."""

from typing import Any

from autoclave.api.body import compiled

_REASON = {"type": "string", "minLength": 1, "maxLength": 1000, "pattern": r"\S", "x-message": "say why, in words"}

WITH_REASON: dict[str, Any] = {
    "type": "object",
    "required": ["reason"],
    "additionalProperties": False,
    "properties": {"reason": _REASON},
}
VALIDATE_WITH_REASON = compiled(WITH_REASON)

REASON_IF_ANY: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"reason": {"anyOf": [_REASON, {"type": "null"}]}},
}
VALIDATE_REASON_IF_ANY = compiled(REASON_IF_ANY)
