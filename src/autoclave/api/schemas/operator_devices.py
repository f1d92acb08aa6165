"""Bodies and answers of ``/autoclave/v1/devices``."""

from typing import Any

from autoclave.api.body import compiled
from autoclave.api.schema import BOOLEAN, NUMBER, STRING, TIMESTAMP, UUID, listed, nullable, one_of, shape
from autoclave.db.tables import DeviceStatus, DeviceType
from autoclave.rules.device_lifecycle import SHOWN_STATES, ARQState, DeviceState

REASON = {"type": "string", "minLength": 1, "maxLength": 1000, "pattern": r"\S", "x-message": "say why, in words"}

WITH_REASON: dict[str, Any] = {
    "type": "object",
    "required": ["reason"],
    "additionalProperties": False,
    "properties": {"reason": REASON},
}
VALIDATE_WITH_REASON = compiled(WITH_REASON)

REASON_IF_ANY: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {"reason": {"anyOf": [REASON, {"type": "null"}]}},
}
VALIDATE_REASON_IF_ANY = compiled(REASON_IF_ANY)

TAKE_BACK: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {**REASON_IF_ANY["properties"], "instance_uuid": {"anyOf": [UUID, {"type": "null"}]}},
}
"""``instance_uuid``: the server that is gone; needed where several servers have a part of the device."""
VALIDATE_TAKE_BACK = compiled(TAKE_BACK)

_STATE = nullable(one_of(DeviceState))
DEVICE = shape(
    "OperatorDevice",
    {
        "uuid": UUID,
        "hostname": STRING,
        "pci_address": STRING,
        "type": one_of(DeviceType),
        "vendor": STRING,
        "model": STRING,
        "serial": nullable(STRING),
        "drive_model": nullable(STRING),
        "found_serial": nullable(STRING),
        "found_drive_model": nullable(STRING),
        "layout": {**nullable(STRING), "description": "The namespaces of the drive that are on record."},
        "found_layout": {**nullable(STRING), "description": "Another layout, which waits for accept or clean."},
        "device_state": nullable(one_of(SHOWN_STATES)),
        "state_reason": nullable(STRING),
        "status": one_of(DeviceStatus),
        "held": BOOLEAN,
        "hold_reason": nullable(STRING),
        "host_maintained": BOOLEAN,
        "rewritten": BOOLEAN,
        "forgetting": BOOLEAN,
        "missing": BOOLEAN,
        "excluded_reason": nullable(STRING),
        "unreadable_reason": nullable(STRING),
        "release_pending": BOOLEAN,
        "cleanup_action": nullable(STRING),
        "progress": shape(
            "Progress",
            {
                "percent": nullable(NUMBER),
                "step": nullable(STRING),
                "stalled": BOOLEAN,
                "seconds_left": nullable(NUMBER),
            },
        ),
        "rp_uuid": nullable(UUID),
        "rp_name": nullable(STRING),
        "resource_class": nullable(STRING),
        "instance_uuid": nullable(UUID),
        "arqs": {
            "type": "array",
            "items": shape("Holder", {"uuid": UUID, "state": one_of(ARQState), "instance_uuid": nullable(UUID)}),
        },
        "agent_last_seen": nullable(TIMESTAMP),
        "waiting_for": {**nullable(STRING), "description": "What somebody must do before it is offered again."},
        "created_at": nullable(TIMESTAMP),
        "updated_at": nullable(TIMESTAMP),
    },
)
DEVICES = listed("OperatorDevices", "devices", DEVICE)

EVENT = shape(
    "Event",
    {
        "at": TIMESTAMP,
        "event": STRING,
        "from_state": _STATE,
        "to_state": _STATE,
        "device_uuid": UUID,
        "serial": nullable(STRING),
        "instance_uuid": nullable(STRING),
        "project_id": nullable(STRING),
        "user_id": nullable(STRING),
        "actor": STRING,
        "request_id": nullable(STRING),
        "reason": nullable(STRING),
        "evidence": nullable({"type": "object"}),
    },
)
HISTORY = listed("History", "events", EVENT)

SAID = shape(
    "Said",
    {
        "placement_settled": {
            **BOOLEAN,
            "description": "Placement agrees already; otherwise it was away and will be told later.",
        }
    },
)
