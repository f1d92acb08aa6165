"""Record that accelerator requests are to be given back, where their service has not asked a conductor for it."""

import uuid
from collections.abc import Sequence

from sqlalchemy.engine import Connection

from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import instances as instance_rows
from autoclave.db import orphans
from autoclave.db.arqs import ARQRecord
from autoclave.db.devices import DeviceRecord
from autoclave.exceptions import Conflict
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.remarks import remark
from autoclave.lifecycle.requests import begin_unbind
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import ARQState


def record_unbind(ports: Ports, arq_uuids: Sequence[str], cause: Cause, *, delete: bool) -> bool:
    """Put requests into Deleting, with a lease that is over: the next sweep of any conductor finishes them.

    A conductor that works on one of them in the meantime is not disturbed: every step may be done twice.

    :param delete: whether the requests go; else they stay, unbound.
    :returns: whether the caller may drop its allocations: ``reserved=total`` stands for all that the requests hold.
    :raises DatabaseUnavailable: those that were not reached yet are not recorded.
    """
    stands = True
    for arq_uuid in arq_uuids:
        owner = _owner(cause)
        now = ports.clock()

        begun = ports.db.transact(
            lambda tx, arq=arq_uuid, owner=owner, now=now: begin_unbind(  # type: ignore[misc]
                tx, arq, cause, lease_owner=owner, lease_expires_at=now, delete=delete
            )
        )
        stands = stands and (begun is None or begun.settled or begun.arq.device_id is None)
    return stands


def note_take_back(tx: Connection, device: DeviceRecord, cause: Cause, server: str | None = None) -> list[str]:
    """Write into a device's history that an operator takes it back; return the requests to delete.

    :param server: see :func:`to_take_back`.
    :raises Conflict: see :func:`to_take_back`.
    """
    holders = to_take_back(tx, device, server)
    remark(tx, device, "take_back", cause, {})
    return [arq.uuid for arq in holders]


def to_take_back(tx: Connection, device: DeviceRecord, server: str | None = None) -> list[ARQRecord]:
    """Return the requests that hold a device, and may be deleted on an operator's word.

    :param server: the server that is gone; None: the only one that has the device.
    :raises Conflict: no request has it, one is being bound, its server is our own, or several servers have it.
    """
    active = arq_rows.active_of_device(tx, device.id)
    holders = [arq for arq in active if server is None or arq.instance_uuid == server.lower()]
    if not holders:
        by_it = "" if server is None else f" of server {server}"
        raise Conflict(f"Device {device.uuid} is held by no accelerator request{by_it}: nothing is to be taken back.")
    for arq in holders:
        if arq.state is ARQState.BIND_STARTED:
            raise Conflict(f"Accelerator request {arq.uuid} is being bound to device {device.uuid}: try again later.")
        if arq.instance_uuid is not None and instance_rows.get(tx, arq.instance_uuid) is not None:
            raise Conflict(f"Device {device.uuid} belongs to server {arq.instance_uuid}: delete that server instead.")
    servers = sorted({arq.instance_uuid or "(none)" for arq in holders})
    if len(servers) > 1:
        raise Conflict(
            f"Device {device.uuid} is held by the servers {', '.join(servers)}: name the one that is gone "
            "(instance_uuid, --server)."
        )
    return holders


def take_back_orphan(ports: Ports, request: orphans.Bound, cause: Cause) -> bool:
    """Put the request of a deleted server into Deleting, as :func:`record_unbind` does, with a line in the history.

    Of several conductors that do so at the same time, one does it.

    :param request: as it was when its server was looked up.
    :returns: whether it was done; False: the request has moved on, and nothing was.
    """

    def work(tx: Connection) -> bool:
        # The device row is always locked before the request: one order, no deadlock.
        device = device_rows.get_by_id(tx, request.device_id, lock=True)
        if device is None or not orphans.is_still(tx, request):
            return False
        remark(tx, device, "take_back", cause, {})
        begin_unbind(tx, request.uuid, cause, lease_owner=_owner(cause), lease_expires_at=ports.clock(), delete=True)
        return True

    return ports.db.transact(work)


def _owner(cause: Cause) -> str:
    return f"{cause.request_id}/{uuid.uuid4().hex[:8]}"
