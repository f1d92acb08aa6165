"""Make accelerator requests, roll back a bind, and unbind.

An unbind has two transactions: :func:`begin_unbind` and :func:`finish_unbind`.
:func:`record_unbind` does only the first, for services that cannot ask a conductor.
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
"""Values of the columns of an ARQ that holds nothing."""


def take_bind_back(
    tx: Connection,
    arq_uuid: str,
    reason: str,
    cause: Cause,
    *,
    event_debt: Mapping[str, Any],
    lease_owner: str | None = None,
) -> DeviceRecord | None:
    """Roll back a bind in the caller's transaction: BindStarted → BindFailed, and the device back to available.

    :param event_debt: see :meth:`Ports.event_debt`.
    :param lease_owner: roll back only a bind of this owner; None for a sweep.
    :returns: the device to reconcile; None if the ARQ held none, or was changed concurrently.
    :raises StateConflict: a device was linked to it concurrently.
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
    """Fail a bind and free its handle: BindStarted → BindFailed. The caller handles the device.

    :param event_debt: see :meth:`Ports.event_debt`.
    :returns: whether the ARQ was changed; see :func:`autoclave.db.arqs.swap`.
    """
    values = {"state_reason": reason, "lease_owner": None, "lease_expires_at": None, **UNLINKED, **event_debt}
    return arq_rows.swap(tx, arq_uuid, [ARQState.BIND_STARTED], ARQState.BIND_FAILED, values, lease_owner=lease_owner)


@dataclass(frozen=True)
class Begun:
    """Describe an unbind that was begun.

    :param arq: the ARQ as it was.
    :param device: the device that it held shortly before; None if it held none, or was linked concurrently.
    :param settled: the ARQ's bind has set ``reserved=total`` in Placement. False if that is unknown.
    """

    arq: ARQRecord
    device: DeviceRecord | None
    settled: bool


def begin_unbind(
    tx: Connection, arq_uuid: str, cause: Cause, *, lease_owner: str, lease_expires_at: datetime, delete: bool
) -> Begun | None:
    """Begin an unbind: any state → Deleting, with a lease. A concurrent bind detects this and stops.

    An unfinished unbind is taken over; every later step can be repeated. A device bound by the release before gets its
    state first, which records that a guest has had it.

    :returns: the ARQ as it was, or None if it is gone.
    """
    seen = _put_right(tx, arq_uuid, cause)
    device = seen.device if seen else None
    unsettled = device is not None and was_backfilled(tx, device)
    # Locked, so that no bind can link a device between this read and the compare-and-swap.
    arq = arq_rows.get(tx, arq_uuid, lock=True)
    if arq is None:
        return None
    values = {
        "lease_owner": lease_owner,
        "lease_expires_at": lease_expires_at,
        "delete_when_unbound": delete or arq.delete_when_unbound,
        **arqs.NOT_OWED,  # no Nova event is needed any longer
    }
    arq_rows.swap(tx, arq.uuid, [arq.state], ARQState.DELETING, values)
    named = device if device is not None and device.id == arq.device_id else None
    return Begun(arq, named, settled=arq.state is ARQState.BOUND and not unsettled)


def _put_right(tx: Connection, arq_uuid: str, cause: Cause) -> Holding | None:
    """Read an ARQ and the device that it holds, after completing rows that the release before wrote.

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
    """Describe what is left to do after an unbind was committed.

    :param device: the device that was returned.
    :param clean: ask its agent to clean it; otherwise reconcile its new state.
    """

    device: DeviceRecord
    clean: bool


def finish_unbind(
    tx: Connection, arq_uuid: str, cause: Cause, *, not_cleaned: str | None, user_id: str | None
) -> Released | None:
    """Finish an unbind in one transaction: Deleting → Unbound or gone, its handle freed, its device moved on.

    :param not_cleaned: why the agent cannot be asked to clean the device, or None.
    :param user_id: the user that requested the unbind, or None.
    :returns: the remaining work; None if the ARQ held no device, or was finished concurrently.
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
    if device.is_held_back:
        return Released(swap(tx, device, Event.SPEND, cause, locked=True), clean=False)
    if not device.supports_cleaning:
        return Released(swap(tx, device, Event.RELEASE, cause, locked=True), clean=False)
    if not_cleaned is not None:
        told = replace(cause, reason=f"it could not be cleaned: {not_cleaned}; then clean the device")
        return Released(swap(tx, device, Event.CANNOT_CLEAN, told, locked=True), clean=False)
    return Released(device, clean=True)


def end_unbind(tx: Connection, arq: ARQRecord) -> None:
    """End an unbind and free its handle: Deleting → Unbound or gone. The caller handles the device."""
    if arq.delete_when_unbound:
        arq_rows.delete(tx, arq.uuid)
        return
    forgotten = {"hostname": None, "device_rp_uuid": None, "instance_uuid": None, "state_reason": None}
    lease = {"lease_owner": None, "lease_expires_at": None}
    arq_rows.swap(tx, arq.uuid, [ARQState.DELETING], ARQState.UNBOUND, {**forgotten, **lease, **UNLINKED})


def _why_not_cleaned(ports: Ports, device: DeviceRecord | None) -> str | None:
    """Return why the agent cannot clean the device of an ARQ; None if it can."""
    if device is None:
        return "its host was not known"
    if not device.supports_cleaning:
        return "its policy is not to clean it"  # unused: such a device is released without cleaning
    return ports.cleaners.why_not(device.hostname)


def complete_unbind(
    ports: Ports, context: RequestContext, arq: ARQRecord, device: DeviceRecord | None, cause: Cause
) -> Released | None:
    """Complete the unbind of an ARQ in Deleting whose device is reserved in Placement.

    The unbind stays committed if the message cannot be sent or Placement is unreachable. The agent's next check finds
    the device, and the next sweep completes the pending release.

    :param device: the device that *arq* holds, if the caller has read it.
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
    """Lock an ARQ and the device that it holds, and return both.

    :param seen: the ARQ as read before, or None.
    :raises StateConflict: a bind has linked them since.
    """
    if seen is None:
        return None, None
    # Always lock the device row before the ARQ: a fixed order prevents deadlocks.
    device = device_rows.get_by_id(tx, seen.device_id, lock=True) if seen.device_id is not None else None
    arq = arq_rows.get(tx, seen.uuid, lock=True)
    if arq is not None and arq.device_id not in (None, device.id if device else None):
        raise StateConflict(f"accelerator request {seen.uuid} was given a device meanwhile")
    return arq, device


def make_arqs(
    tx: Connection, profile: ProfileRecord, project_id: str | None, instance_uuid: str | None = None
) -> list[str]:
    """Insert one ARQ for each device that *profile* requests; return their uuids in the order of its groups.

    :param instance_uuid: the instance, if it is known before the bind; it finds its requests by this.
    :raises DBReferenceError: the profile was deleted concurrently.
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
    """Put requests into Deleting with an expired lease, so that the next sweep of any conductor finishes them.

    A conductor that works on one of them concurrently is not disturbed: every step can be repeated.

    :param delete: delete the requests; otherwise they stay, unbound.
    :returns: whether ``reserved=total`` is written for all devices held, so that the caller may drop its allocations.
    :raises DatabaseUnavailable: the requests not reached yet are unchanged.
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
    """Record in a device's history that an operator takes it back; return the requests to delete.

    :param server: see :func:`to_take_back`.
    :raises Conflict: see :func:`to_take_back`.
    """
    holders = to_take_back(tx, device, server)
    remark(tx, device, "take_back", cause, {})
    return [arq.uuid for arq in holders]


def to_take_back(tx: Connection, device: DeviceRecord, server: str | None = None) -> list[ARQRecord]:
    """Return the requests that hold a device, and that an operator may delete.

    :param server: the deleted server; None for the only one that has the device.
    :raises Conflict: no request holds the device, one is being bound, its server is one of Autoclave, or several
        servers have the device.
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
    """Put the request of a deleted server into Deleting, as :func:`record_unbind` does, with an event in the history.

    If several conductors try concurrently, one succeeds.

    :param request: the request as read before its server was looked up.
    :returns: whether it was put into Deleting; False if it has changed.
    """

    def work(tx: Connection) -> bool:
        # Always lock the device row before the request: a fixed order prevents deadlocks.
        device = device_rows.get_by_id(tx, request.device_id, lock=True)
        if device is None or not orphans.is_still(tx, request):
            return False
        remark(tx, device, "take_back", cause, {})
        begin_unbind(tx, request.uuid, cause, lease_owner=_owner(cause), lease_expires_at=ports.clock(), delete=True)
        return True

    return ports.db.transact(work)


def _owner(cause: Cause) -> str:
    return f"{cause.request_id}/{uuid.uuid4().hex[:8]}"
