"""Taking a device out of use because nobody vouches for it: by what an audit saw, or after a backup was restored."""

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import arqs
from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db.devices import DeviceRecord
from autoclave.db.engine import Database
from autoclave.exceptions import StateConflict
from autoclave.lifecycle.requests import end_unbind, fail_bind
from autoclave.lifecycle.transitions import Cause, swap
from autoclave.lifecycle.withdrawn import raise_reserved, settle_others
from autoclave.placement.client import PlacementClient
from autoclave.rules.device_lifecycle import ARQState, DeviceState, Event

LOG = logging.getLogger(__name__)


def distrust(db: Database, placement: PlacementClient, uuid: str, version: int, cause: Cause) -> bool:
    """available → error, and ``reserved=total``.

    :param version: of the row by which it was judged; one that has moved since is somebody else's.
    :returns: whether Placement has been told already.
    :raises StateConflict: the row has moved, is gone, or is not available.
    """
    return _told(db, placement, db.transact(lambda tx: swap(tx, _locked(tx, uuid, version), Event.DISTRUST, cause)))


def quarantine(db: Database, placement: PlacementClient, uuid: str, version: int, cause: Cause) -> bool:
    """available or allocated → error, and ``reserved=total``. Requests that were unfinished end with it.

    :param version: see :func:`distrust`.
    :returns: whether Placement has been told already.
    :raises StateConflict: the row has moved or is gone, or a request in Bound has it.
    """

    def write(tx: Connection) -> DeviceRecord:
        device = _locked(tx, uuid, version)
        if device.device_state is DeviceState.ALLOCATED:
            for arq in arq_rows.active_of_device(tx, device.id):
                if arq.state is ARQState.BIND_STARTED:
                    # Of the time of the backup: Nova waits for it no longer.
                    fail_bind(tx, arq.uuid, cause.reason or "", event_debt=arqs.NOT_OWED)
                elif arq.state is ARQState.DELETING:
                    end_unbind(tx, arq)
        return swap(tx, device, Event.QUARANTINE, cause)

    with db.read() as tx:
        before = device_rows.get(tx, uuid)
    if before is not None and before.device_state is DeviceState.ALLOCATED:
        # Whoever waits for a request to be gone drops its allocation then: reserved=total must stand before.
        raise_reserved(db, placement, uuid)
    return _told(db, placement, db.transact(write))


def _locked(tx: Connection, uuid: str, version: int) -> DeviceRecord:
    device = device_rows.get(tx, uuid, lock=True)
    if device is None or device.state_version != version:
        raise StateConflict(f"device {uuid} has changed since it was looked at")
    return device


def _told(db: Database, placement: PlacementClient, device: DeviceRecord) -> bool:
    LOG.warning("Device %s (%s) is in error: %s", device.uuid, device.slot, device.state_reason)
    told = raise_reserved(db, placement, device.uuid)
    settle_others(db, placement, device)
    return told
