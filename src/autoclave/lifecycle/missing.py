"""A device that is not on its host."""

from sqlalchemy.engine import Connection

from autoclave.db import devices as device_rows
from autoclave.db import events
from autoclave.db.devices import DeviceRecord
from autoclave.lifecycle.swap import Cause


def miss(tx: Connection, uuid: str, cause: Cause, reason: str) -> DeviceRecord | None:
    """Note that a device is missing, and why it is thought to be; return the row, or None if there is none."""
    device = device_rows.get(tx, uuid, lock=True)
    if device is None:
        return None
    # What was found in the slot is gone, too.
    device_rows.update(tx, device, {"missing": True, "found_serial": None, "found_drive_model": None})
    state = device.device_state.value if device.device_state else None
    events.append(
        tx,
        device_uuid=device.uuid,
        serial=device.serial,
        from_state=state,
        to_state=state,
        event="missing",
        actor=str(cause),
        request_id=cause.request_id,
        reason=reason,
    )
    return device_rows.get(tx, device.uuid)
