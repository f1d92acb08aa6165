"""Make accelerator requests, roll back a bind, and unbind.

Roll back a bind, and begin and finish an unbind: see the protocol page, "Bind" and "Unbind".

Making the accelerator requests of a device profile.

Record that accelerator requests are to be given back, where their service has not asked a conductor for it.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import arqs, backfill, orphans
from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import instances as instance_rows
from autoclave.db.arqs import ARQRecord, Holding
from autoclave.db.devices import DeviceRecord
from autoclave.db.profiles import ProfileRecord
from autoclave.exceptions import Conflict, PlacementError, RPCError, StateConflict
from autoclave.lifecycle.backfill import put_right, was_backfilled
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.reserve import fail_rewritten, settle
from autoclave.lifecycle.tenants import of_instance
from autoclave.lifecycle.transitions import Cause, remark, swap
from autoclave.objects.base import RequestContext
from autoclave.rules.device_lifecycle import ACTIVE, ARQState, DeviceState, Event
from autoclave.rules.resource_request import counts

LOG = logging.getLogger(__name__)

UNLINKED = {
    "device_id": None,
    "deployable_id": None,
    "attach_handle_id": None,
    "orphan_since": None,
    "orphan_reason": None,
    "server_seen": False,
}
"""The columns of an ARQ that holds nothing."""


def take_bind_back(
    tx: Connection,
    arq_uuid: str,
    reason: str,
    cause: Cause,
    *,
    event_debt: Mapping[str, Any],
    lease_owner: str | None = None,
) -> DeviceRecord | None:
    """BindStarted → BindFailed, and the device back to available: one transaction, the caller's.

    :param event_debt: see :meth:`Ports.event_debt`.
    :param lease_owner: take back only what this owner began; None for a sweeper.
    :returns: the device to settle, or None if there is none: the ARQ held nothing, or somebody else
        has moved it, and then it is theirs.
    :raises StateConflict: it was given a device while we looked.
    """
    arq, device = _locked(tx, arq_rows.get(tx, arq_uuid))
    if arq is None or not fail_bind(tx, arq_uuid, reason, event_debt=event_debt, lease_owner=lease_owner):
        return None
    if device is not None and (failed := fail_rewritten(tx, device, cause)) is not None:
        return failed
    if device is not None and device.device_state is DeviceState.ALLOCATED:
        tenant = {"instance_uuid": arq.instance_uuid, "project_id": arq.project_id, "user_id": None}
        told = replace(cause, evidence={**cause.evidence, "tenant": tenant})
        return swap(tx, device, Event.TAKE_BIND_BACK, told, locked=True)
    return device


def fail_bind(
    tx: Connection, arq_uuid: str, reason: str, *, event_debt: Mapping[str, Any], lease_owner: str | None = None
) -> bool:
    """BindStarted → BindFailed, the handle freed. What becomes of the device is the caller's.

    :param event_debt: see :meth:`Ports.event_debt`.
    :returns: whether it was moved; see :func:`autoclave.db.arqs.swap`.
    """
    values = {"state_reason": reason, "lease_owner": None, "lease_expires_at": None, **UNLINKED, **event_debt}
    return arq_rows.swap(tx, arq_uuid, [ARQState.BIND_STARTED], ARQState.BIND_FAILED, values, lease_owner=lease_owner)


@dataclass(frozen=True)
class Begun:
    """An unbind that was begun.

    :param arq: the ARQ as it was.
    :param device: the device that it names, as it was shortly before; None if it names none, or was linked meanwhile.
    :param settled: ``reserved=total`` stands in Placement since the ARQ's bind. Of all others we do not know.
    """

    arq: ARQRecord
    device: DeviceRecord | None
    settled: bool


def begin_unbind(
    tx: Connection, arq_uuid: str, cause: Cause, *, lease_owner: str, lease_expires_at: datetime, delete: bool
) -> Begun | None:
    """Any state → Deleting, with a lease. A binder still at work sees it and stops.

    An unbind that was begun and not finished is taken over: every later step can be done twice. What a service of
    the release before has bound gets its state first, or nobody would know that a guest has had it.

    :returns: the ARQ as it was, or None if it is gone.
    """
    seen = _put_right(tx, arq_uuid, cause)
    device = seen.device if seen else None
    unsettled = device is not None and was_backfilled(tx, device)
    # Locked: a binder that links a device between the look and the swap would leave the caller without it.
    arq = arq_rows.get(tx, arq_uuid, lock=True)
    if arq is None:
        return None
    values = {
        "lease_owner": lease_owner,
        "lease_expires_at": lease_expires_at,
        "delete_when_unbound": delete or arq.delete_when_unbound,
        **arqs.NOT_OWED,  # nobody waits for it any more
    }
    arq_rows.swap(tx, arq.uuid, [arq.state], ARQState.DELETING, values)
    named = device if device is not None and device.id == arq.device_id else None
    return Begun(arq, named, settled=arq.state is ARQState.BOUND and not unsettled)


def _put_right(tx: Connection, arq_uuid: str, cause: Cause) -> Holding | None:
    """An ARQ and the device that it holds; that has a state and the ARQ names it, whatever release has bound it.

    Neither is locked.
    """
    seen = arqs.of_arq(tx, arq_uuid)
    if seen is None or seen.arq.state not in ACTIVE:
        return seen
    if seen.device is None:
        deployable_id = seen.arq.deployable_id
        device_id = None if deployable_id is None else backfill.device_of_deployable(tx, deployable_id)
    else:
        device_id = seen.device.id if seen.device.device_state is None else None
    if device_id is None:
        return seen
    put_right(tx, device_id, cause)
    return arqs.of_arq(tx, arq_uuid)


@dataclass(frozen=True)
class Released:
    """What is left to do after an unbind was committed.

    :param device: the device that was let go of.
    :param clean: its agent must be asked to clean it; else its new state must be settled.
    """

    device: DeviceRecord
    clean: bool


def finish_unbind(
    tx: Connection, arq_uuid: str, cause: Cause, *, not_cleaned: str | None, user_id: str | None
) -> Released | None:
    """Deleting → Unbound or gone, the handle freed, the device sent on its way: one transaction.

    :param not_cleaned: why its agent cannot be asked to clean it, or None.
    :param user_id: the user who asked for the unbind, or None.
    :returns: what is left to do, or None if nothing is: it held no device, or somebody else finished.
    """
    seen = _put_right(tx, arq_uuid, cause)
    arq, device = _locked(tx, seen.arq if seen else None)
    if arq is None or arq.state is not ARQState.DELETING:
        return None
    end_unbind(tx, arq)
    if device is None:
        return None
    told = of_instance(
        cause, "returned by", instance_uuid=arq.instance_uuid, project_id=arq.project_id, user_id=user_id
    )
    remark(tx, device, "unbind", told, {})
    if (failed := fail_rewritten(tx, device, cause)) is not None:
        return Released(failed, clean=False)
    if device.device_state is not DeviceState.ALLOCATED:
        return Released(device, clean=False)
    if not device.supports_cleaning:
        return Released(swap(tx, device, Event.RELEASE, cause, locked=True), clean=False)
    if not_cleaned is not None:
        told = replace(cause, reason=f"it could not be cleaned: {not_cleaned}; then clean the device")
        return Released(swap(tx, device, Event.CANNOT_CLEAN, told, locked=True), clean=False)
    return Released(device, clean=True)


def end_unbind(tx: Connection, arq: ARQRecord) -> None:
    """Deleting → Unbound or gone, the handle freed. What becomes of the device is the caller's."""
    if arq.delete_when_unbound:
        arq_rows.delete(tx, arq.uuid)
        return
    forgotten = {"hostname": None, "device_rp_uuid": None, "instance_uuid": None, "state_reason": None}
    lease = {"lease_owner": None, "lease_expires_at": None}
    arq_rows.swap(tx, arq.uuid, [ARQState.DELETING], ARQState.UNBOUND, {**forgotten, **lease, **UNLINKED})


def _why_not_cleaned(ports: Ports, device: DeviceRecord | None) -> str | None:
    """Why what an ARQ holds cannot be cleaned by its agent; None if it can."""
    if device is None:
        return "its host was not known"
    if not device.supports_cleaning:
        return "its type is not cleaned"  # and then nobody asks
    return ports.cleaners.why_not(device.hostname)


def complete_unbind(
    ports: Ports, context: RequestContext, arq: ARQRecord, device: DeviceRecord | None, cause: Cause
) -> Released | None:
    """The second half of an unbind, for an ARQ in Deleting whose device's ``reserved`` stands.

    A message that cannot be handed over, or a Placement that does not answer, undoes nothing: the
    unbind is committed, the agent's next check finds the device, the next sweep pays the debt.

    :param device: what *arq* holds, if the caller has seen it.
    """
    if device is None and arq.device_id is not None:
        with ports.db.read() as tx:
            device = device_rows.get_by_id(tx, arq.device_id)
    why_not = _why_not_cleaned(ports, device)
    released = ports.db.transact(
        lambda tx: finish_unbind(tx, arq.uuid, cause, not_cleaned=why_not, user_id=context.user_id)
    )
    if released is None:
        return None
    LOG.info("Accelerator request %s gave back %s.", arq.uuid, released.device.slot)
    try:
        if released.clean:
            ports.cleaners.clean(context, released.device)
        else:
            settle(ports.db, ports.placement, released.device.uuid)
    except RPCError as error:
        LOG.warning(
            "Device %s was released, but its agent was not told; it will notice: %s", released.device.uuid, error
        )
    except PlacementError as error:
        LOG.warning("Device %s was released; Placement will be told later: %s", released.device.uuid, error)
    return released


def _locked(tx: Connection, seen: ARQRecord | None) -> tuple[ARQRecord | None, DeviceRecord | None]:
    """An ARQ and the device that it holds, both locked.

    :param seen: the ARQ as it was before; None if there was none.
    :raises StateConflict: a binder has linked the two since then.
    """
    if seen is None:
        return None, None
    # The device row is always locked before the ARQ is written: one order, no deadlock.
    device = device_rows.get_by_id(tx, seen.device_id, lock=True) if seen.device_id is not None else None
    arq = arq_rows.get(tx, seen.uuid, lock=True)
    if arq is not None and arq.device_id not in (None, device.id if device else None):
        raise StateConflict(f"accelerator request {seen.uuid} was given a device meanwhile")
    return arq, device


def make_arqs(
    tx: Connection, profile: ProfileRecord, project_id: str | None, instance_uuid: str | None = None
) -> list[str]:
    """Insert one ARQ for each device that *profile* asks for; their uuids, in the order of its groups.

    :param instance_uuid: whom they are for, if that is known before they are bound: it finds them again.

    The database refuses it (``DBReferenceError``) if the profile was deleted meanwhile.
    """
    made: list[str] = []
    for number, group in enumerate(profile.groups):
        for _ in range(sum(counts(group))):
            made.append(str(uuid.uuid4()))
            values = {
                "uuid": made[-1],
                "project_id": project_id,
                "instance_uuid": instance_uuid,
                "state": ARQState.INITIAL,
                "device_profile_id": profile.id,
                "device_profile_group_id": number,
            }
            arq_rows.insert(tx, values)
    return made


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
