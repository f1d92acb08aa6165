"""Answers of ``/v2/devices``."""

from autoclave.api.microversion import DEVICE_STATE, DEVICE_STATUS
from autoclave.api.schema import LINKS, STRING, TIMESTAMP, UUID, listed, nullable, one_of, shape, since
from autoclave.db.tables import DeviceStatus, DeviceType
from autoclave.rules.device_lifecycle import SHOWN_STATES, Withheld

_STATES = [state for state in SHOWN_STATES if state != Withheld.MAINTAINING]
"""Maintenance is said by ``status``."""

DEVICE = shape(
    "Device",
    {
        "uuid": UUID,
        "type": one_of(DeviceType),
        "vendor": STRING,
        "model": STRING,
        "std_board_info": {**nullable(STRING), "description": "An object, written as JSON."},
        "vendor_board_info": nullable(STRING),
        "hostname": STRING,
        "links": LINKS,
        "created_at": nullable(TIMESTAMP),
        "updated_at": nullable(TIMESTAMP),
        "status": since(DEVICE_STATUS, one_of(DeviceStatus)),
        "device_state": since(DEVICE_STATE, nullable(one_of(_STATES))),
    },
)
DEVICES = listed("Devices", "devices", DEVICE)
