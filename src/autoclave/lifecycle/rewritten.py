"""Devices whose provider another service has rewritten as its own: a second writer in Placement.

Nova does that to a device that its ``[pci] device_spec`` matches, too. It writes its own class over ours, with nothing
reserved, and may have given the device to a guest past us. So nothing is known of the device from then on.
"""

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db.devices import DeviceRecord
from autoclave.db.engine import Database
from autoclave.lifecycle.remarks import remark
from autoclave.lifecycle.transitions import Cause, swap
from autoclave.placement.client import PlacementClient
from autoclave.rules.device_lifecycle import Actor, DeviceState, Event
from autoclave.rules.resource_names import OWNER_NOVA

LOG = logging.getLogger(__name__)


def is_rewritten(placement: PlacementClient, rp_uuid: str) -> bool:
    """Return whether a provider of ours says that it is Nova's.

    :raises PlacementError: Placement did not tell.
    """
    return OWNER_NOVA in placement.get_traits(rp_uuid).names


def note_rewritten(db: Database, device_uuid: str) -> bool:
    """Record that another service has rewritten the provider of a device, once, and stop offering the device.

    An idle device goes to ``error``. One that an instance or a worker has keeps its state, and is held.

    :returns: whether it was recorded by this call. The caller reconciles Placement.
    :raises DatabaseUnavailable: nothing was recorded.
    """
    noted = db.transact(lambda tx: _note(tx, device_uuid))
    if noted is not None:
        LOG.error("Device %s (%s) must not be offered: %s", device_uuid, noted.slot, reason_of(noted))
    return noted is not None


def reason_of(device: DeviceRecord) -> str:
    """Return why a device whose provider was rewritten is not offered, and what to do."""
    return (
        f"another service has written its provider in Placement ({OWNER_NOVA}). Let Nova's [pci] device_spec on "
        f"{device.hostname} not match it, restart nova-compute there, and make sure that no guest has it"
    )


def fail_rewritten(tx: Connection, device: DeviceRecord, cause: Cause) -> DeviceRecord | None:
    """Move a device whose provider was rewritten to ``error``, if no request has it any longer.

    :param device: its row, locked by this transaction.
    :returns: the device in ``error``; None: its provider is its own, or the device is still in use.
    """
    in_reach = device.device_state in (DeviceState.AVAILABLE, DeviceState.ALLOCATED)
    if not device.rewritten or not in_reach or arq_rows.active_of_device(tx, device.id):
        return None
    return swap(tx, device, Event.REWRITTEN, _because(device, cause))


def _note(tx: Connection, device_uuid: str) -> DeviceRecord | None:
    device = device_rows.get(tx, device_uuid, lock=True)
    if device is None or device.rewritten:
        return None
    cause = _because(device, Cause(Actor.PLACEMENT, OWNER_NOVA))
    changes: dict[str, object] = {"rewritten": True}
    in_use = arq_rows.active_of_device(tx, device.id)
    if device.device_state is DeviceState.AVAILABLE and not in_use:
        return swap(tx, device, Event.REWRITTEN, cause, changes)
    if device.device_state is not DeviceState.ERROR and not device.held:
        changes |= {"held": True, "hold_reason": cause.reason}
    remark(tx, device, Event.REWRITTEN.value, cause, changes)
    return device


def _because(device: DeviceRecord, cause: Cause) -> Cause:
    return Cause(cause.actor, cause.name, cause.request_id, reason_of(device))
