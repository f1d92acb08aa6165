"""What somebody has decided about a device: committed first, then told to Placement (design §3, rule 2)."""

from collections.abc import Callable, Mapping
from typing import Any

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import devices as device_rows
from autoclave.db.devices import DeviceRecord
from autoclave.exceptions import NotFound, PlacementError
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.remarks import remark
from autoclave.lifecycle.reserve import settle
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import DeviceState

LOG = logging.getLogger(__name__)

Changes = Callable[[DeviceRecord], Mapping[str, Any] | None]
"""The columns that the intent writes of a device as it is; None if it was recorded before."""


def say(ports: Ports, uuid: str, event: str, what: str, cause: Cause, changes: Changes) -> bool:
    """Write an intent and its line in the device's history, in one transaction; log it; tell Placement.

    What was recorded before is not recorded again, but Placement is told once more.

    :param what: what the device is now, for the log.
    :returns: whether Placement has been told already.
    :raises NotFound: there is no such device.
    """

    def note(tx: Connection) -> bool:
        device = require(tx, uuid)
        wanted = changes(device)
        if wanted is not None:
            remark(tx, device, event, cause, wanted)
        return wanted is not None

    if ports.db.transact(note):
        LOG.info("Device %s is %s, says %s%s", uuid, what, cause, f": {cause.reason}" if cause.reason else ".")
    return tell_placement(ports, uuid)


def require(tx: Connection, uuid: str) -> DeviceRecord:
    """The device with *uuid*, its row locked until the transaction ends.

    :raises NotFound: there is none.
    """
    device = device_rows.get(tx, uuid, lock=True)
    if device is None:
        raise NotFound(f"Device not found with uuid={uuid}")
    return device


def debt(device: DeviceRecord) -> dict[str, Any]:
    """The columns that owe an available device its offer; none for a device in another state."""
    if device.device_state is not DeviceState.AVAILABLE:
        return {}
    return {"release_pending": True, "release_number": device.release_number + 1}


def tell_placement(ports: Ports, uuid: str) -> bool:
    """Settle a device about which something is recorded; returns whether Placement agrees.

    One that cannot be told now is told by the agent's next period, or by any conductor's sweep.
    """
    try:
        settle(ports.db, ports.placement, uuid)
    except PlacementError as error:
        LOG.warning("What was said of device %s is recorded; Placement will be told later: %s", uuid, error)
        return False
    return True
