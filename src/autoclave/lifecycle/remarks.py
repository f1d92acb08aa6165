"""What is written into a device's history although its state stays what it is."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy.engine import Connection

from autoclave.db import devices as device_rows
from autoclave.db import events
from autoclave.db.devices import DeviceRecord
from autoclave.lifecycle.swap import Cause


def remark(tx: Connection, device: DeviceRecord, event: str, cause: Cause, changes: Mapping[str, Any]) -> None:
    """Write *changes*, if there are any, and the event, in the caller's transaction."""
    if changes:
        device_rows.update(tx, device, changes)
    state = device.device_state.value if device.device_state else None
    events.append(
        tx,
        device_uuid=device.uuid,
        serial=device.serial,
        from_state=state,
        to_state=state,
        event=event,
        actor=str(cause),
        request_id=cause.request_id,
        reason=cause.reason,
        evidence=cause.evidence,
    )
