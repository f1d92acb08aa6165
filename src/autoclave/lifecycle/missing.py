"""A device that is not on its host."""

from dataclasses import replace

from sqlalchemy.engine import Connection

from autoclave.db import devices as device_rows
from autoclave.db.devices import DeviceRecord
from autoclave.lifecycle.remarks import remark
from autoclave.lifecycle.transitions import Cause

NOT_THERE = "it was not in its slot when it was to be erased"
"""``state_reason`` of a drive that its erase did not find."""
THERE_AGAIN = f"{NOT_THERE}, and is there again"
"""The same once the drive is back."""


def miss(tx: Connection, uuid: str, cause: Cause, reason: str) -> DeviceRecord | None:
    """Note that a device is missing, and why it is thought to be; return the row, or None if there is none."""
    device = device_rows.get(tx, uuid, lock=True)
    if device is None:
        return None
    # What was found in the slot is gone, too.
    gone = {"missing": True, "found_serial": None, "found_drive_model": None, "found_layout": None}
    remark(tx, device, "missing", replace(cause, reason=reason), gone)
    return device_rows.get(tx, device.uuid)
