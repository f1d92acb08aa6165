"""Bodies and answers of ``/autoclave/v1/burned``."""

from typing import Any

from autoclave.api.body import compiled
from autoclave.api.schema import BOOLEAN, STRING, TIMESTAMP, UUID, listed, nullable, one_of, shape
from autoclave.api.schemas.operator_devices import REASON
from autoclave.rules.burn import BurnEvent, BurnState

RELEASE: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "burned_for": {
            **UUID,
            "description": "Release only what this instance has burned: whoever has cleaned a device for long may "
            "find that others have used it meanwhile.",
        },
        "reason": {**REASON, "description": "Kept in the device's history."},
    },
}
VALIDATE_RELEASE = compiled(RELEASE)

BURNED = shape(
    "BurnedDevice",
    {
        "rp_uuid": UUID,
        "hostname": STRING,
        "pci_address": STRING,
        "serial": {
            **nullable(STRING),
            "description": "The card's: its Device Serial Number, or SN of its Vital Product Data; null: not known.",
        },
        "resource_class": STRING,
        "one_time_use": {
            **BOOLEAN,
            "description": "[pci] device_spec still says so; what is burned stays so until it is released, anyway.",
        },
        "burned_for": {**nullable(UUID), "description": "The instance that has burned it."},
        "burned_at": nullable(TIMESTAMP),
        "in_use": BOOLEAN,
        "instance_uuid": {**nullable(UUID), "description": "The instance that has it now."},
        "confirmed": {
            **BOOLEAN,
            "description": "It was seen idle and reserved since it was burned; from then on, whoever lowers reserved "
            "in Placement releases it.",
        },
        "release_pending": {**BOOLEAN, "description": "It was released, and Placement has not been told yet."},
        "missing": {**BOOLEAN, "description": "Its host, or the configuration there, has it no more."},
        "offered": {
            **nullable(BOOLEAN),
            "description": "Placement would give it to somebody now; null: it does not answer. True of what is burned: "
            "somebody has lowered reserved there, and its agent has not looked since.",
        },
        "waiting_for": {**nullable(STRING), "description": "What must happen before it is offered again."},
    },
)
BURNED_LIST = listed("BurnedDevices", "burned", BURNED)

_STATE = one_of(BurnState)
BURN_HISTORY = listed(
    "BurnHistory",
    "events",
    shape(
        "BurnEvent",
        {
            "at": TIMESTAMP,
            "event": one_of(BurnEvent),
            "from_state": {**nullable(_STATE), "description": "null: it was not on record before."},
            "to_state": _STATE,
            "serial": {**nullable(STRING), "description": "Of the card; null: it has none, or none is known."},
            "actor": {**STRING, "description": "Who did it; Placement: what was found there, or told to it."},
            "request_id": nullable(STRING),
            "reason": nullable(STRING),
            "evidence": {"type": "object", "description": "Host and PCI address, which the provider may outlive."},
        },
    ),
)
