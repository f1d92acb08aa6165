"""What is written into a device's history although its state stays what it is."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Connection

from autoclave.db import devices as device_rows
from autoclave.db.devices import DeviceRecord
from autoclave.lifecycle.transitions import Cause, tell_history


def remark(tx: Connection, device: DeviceRecord, event: str, cause: Cause, changes: Mapping[str, Any]) -> None:
    """Write *changes*, if there are any, and the event, in the caller's transaction."""
    if changes:
        device_rows.update(tx, device, changes)
    tell_history(tx, device, device.device_state, device.device_state, event, cause)
