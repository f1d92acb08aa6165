"""Bind and unbind accelerator requests; see the protocol page."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import handles
from autoclave.db.arqs import ARQRecord
from autoclave.db.columns import utcnow
from autoclave.db.devices import DeployableRecord, DeviceRecord, burned_for
from autoclave.exceptions import ApiError, AutoclaveError, BadRequest, Conflict, NotFound, PlacementError, StateConflict
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.requests import Begun, begin_unbind, complete_unbind, take_bind_back
from autoclave.lifecycle.reserve import Settled, reason_of, secure, settle, settle_others
from autoclave.lifecycle.tenants import of_instance
from autoclave.lifecycle.transitions import Cause, remark, swap
from autoclave.objects.base import RequestContext
from autoclave.rules.device_lifecycle import (
    ACTIVE,
    BINDABLE,
    Actor,
    ARQState,
    DeviceState,
    Event,
    Offer,
    must_be_reserved,
)
from autoclave.rules.reclaim import Reclaim, RequestedBy

LOG = logging.getLogger(__name__)


def visible_arqs(tx: Connection, context: RequestContext, uuids: Sequence[str]) -> dict[str, ARQRecord]:
    """Return the ARQs with *uuids* that the caller may see, by uuid.

    :raises NotFound: an ARQ does not exist, or belongs to another project; the message is the same.
    """
    found = {
        arq.uuid: arq
        for arq in arq_rows.get_many(tx, list(uuids))
        if context.is_admin or arq.project_id == context.project_id
    }
    for each in uuids:
        if each not in found:
            raise NotFound(f"ExtArq not found with uuid={each}")
    return found


@dataclass(frozen=True)
class BindRequest:
    """Request a bind of one ARQ to the device whose provider the scheduler chose."""

    arq_uuid: str
    hostname: str
    device_rp_uuid: str
    instance_uuid: str
    project_id: str | None = None


class _Refused(Exception):
    """Signal that one ARQ cannot have its device, so that the whole transaction is rolled back."""


class Binder:
    """Bind the ARQs of one PATCH, all or none.

    :param name: this conductor's name, for the history.
    :param lease_seconds: duration after which any conductor rolls back an unfinished bind.
    :param resolved: called when a bind has succeeded or failed; returns at once.
    """

    def __init__(
        self, ports: Ports, name: str, lease_seconds: float, resolved: Callable[[], None] = lambda: None
    ) -> None:
        self._ports = ports
        self._name = name
        self._resolved = resolved
        self._lease = timedelta(seconds=lease_seconds)

    def bind(self, context: RequestContext, requests: Sequence[BindRequest]) -> None:
        """Bind every request to a free handle of its device.

        The order is: all transitions in one transaction, then ``reserved=total`` for each device, then Bound. Any
        failure rolls back everything.

        :raises NotFound: an ARQ or a resource provider does not exist.
        :raises BadRequest: an instance has requests already, or the device is on another host.
        :raises Conflict: a device cannot be bound, or was forgotten concurrently; the reason is stored in each ARQ.
        """
        owner = f"{context.request_id}/{uuid.uuid4().hex[:8]}"
        cause = Cause(Actor.CONDUCTOR, self._name, context.request_id)
        projects = self._begin(context, requests, owner)
        uuids = [request.arq_uuid for request in requests]
        try:
            causes = {
                request.arq_uuid: of_instance(
                    cause,
                    "bound to",
                    instance_uuid=request.instance_uuid,
                    project_id=projects[request.arq_uuid],
                    user_id=context.user_id,
                )
                for request in requests
            }
            devices = self._claim(requests, owner, causes)
            for device in devices:
                if secure(self._ports.db, self._ports.placement, device.uuid) is Settled.REWRITTEN:
                    raise _Refused(f"device {device.uuid} cannot be bound: {reason_of(device)}")
                settle_others(self._ports.db, self._ports.placement, device)
            self._finish(uuids, owner)
            instances = {request.instance_uuid for request in requests}
            LOG.info("Bound to %s: %s", ", ".join(sorted(instances)), ", ".join(device.slot for device in devices))
        except (_Refused, ApiError, PlacementError, StateConflict) as error:
            self._take_back(uuids, owner, cause, str(error))
            raise Conflict(f"The accelerator requests were not bound: {error}") from error
        finally:
            self._resolved()

    def _begin(self, context: RequestContext, requests: Sequence[BindRequest], owner: str) -> dict[str, str | None]:
        """Put every ARQ into BindStarted; return the project of each."""
        expires = self._ports.clock() + self._lease

        def begin(tx: Connection) -> dict[str, str | None]:
            arqs = visible_arqs(tx, context, [request.arq_uuid for request in requests])
            for request in requests:
                _check_instance(tx, arqs, request)
                _deployable(tx, request)
            for request in sorted(requests, key=lambda r: r.arq_uuid):  # a fixed order prevents deadlocks
                values = {
                    "hostname": request.hostname,
                    "device_rp_uuid": request.device_rp_uuid,
                    "instance_uuid": request.instance_uuid,
                    "lease_owner": owner,
                    "lease_expires_at": expires,
                    "state_reason": None,
                }
                if request.project_id is not None:
                    values["project_id"] = request.project_id
                if not arq_rows.swap(tx, request.arq_uuid, BINDABLE, ARQState.BIND_STARTED, values):
                    state = arqs[request.arq_uuid].state.value
                    raise Conflict(f"Accelerator request {request.arq_uuid} cannot be bound: its state is {state}.")
            return {request.arq_uuid: request.project_id or arqs[request.arq_uuid].project_id for request in requests}

        # Serializable: no lock prevents another transaction from inserting requests of the instance.
        return self._ports.db.transact(begin, serializable=True)

    def _claim(self, requests: Sequence[BindRequest], owner: str, causes: Mapping[str, Cause]) -> list[DeviceRecord]:
        """Claim every device in one transaction, or none; return the devices to reconcile."""

        def claim(tx: Connection) -> list[DeviceRecord]:
            wanted = sorted(((_deployable(tx, request), request) for request in requests), key=lambda w: w[0].device_id)
            devices = [
                _claim_one(tx, deployable, request, owner, causes[request.arq_uuid]) for deployable, request in wanted
            ]
            return list({device.uuid: device for device in devices}.values())

        return self._ports.db.transact(claim)

    def _finish(self, uuids: Sequence[str], owner: str) -> None:
        debt = self._ports.event_debt()

        def finish(tx: Connection) -> None:
            for arq_uuid in sorted(uuids):
                values = {"lease_owner": None, "lease_expires_at": None, **debt}
                if not arq_rows.swap(tx, arq_uuid, [ARQState.BIND_STARTED], ARQState.BOUND, values, lease_owner=owner):
                    raise StateConflict(f"accelerator request {arq_uuid} was changed concurrently during its bind")

        self._ports.db.transact(finish)

    def _take_back(self, uuids: Sequence[str], owner: str, cause: Cause, reason: str) -> None:
        told = replace(cause, reason=reason)
        debt = self._ports.event_debt()

        def take_back(tx: Connection) -> list[DeviceRecord | None]:
            held = {arq.uuid: arq.device_id or 0 for arq in arq_rows.get_many(tx, uuids)}
            ordered = sorted(uuids, key=lambda arq_uuid: (held.get(arq_uuid, 0), arq_uuid))
            return [
                take_bind_back(tx, arq_uuid, reason, told, event_debt=debt, lease_owner=owner) for arq_uuid in ordered
            ]

        for device in self._ports.db.transact(take_back):
            if device is None:
                continue
            try:
                settle(self._ports.db, self._ports.placement, device.uuid)
            except AutoclaveError as error:
                LOG.warning("Bind of device %s rolled back; Placement is updated later: %s", device.uuid, error)


def _check_instance(tx: Connection, arqs: Mapping[str, ARQRecord], request: BindRequest) -> None:
    for other in arq_rows.of_instance(tx, request.instance_uuid):
        if other.uuid not in arqs and other.state in ACTIVE:
            raise BadRequest(
                f"Instance {request.instance_uuid} already has accelerator requests, for example {other.uuid}."
            )


def _deployable(tx: Connection, request: BindRequest) -> DeployableRecord:
    found = device_rows.by_provider(tx, request.device_rp_uuid)
    if found is None or found[1].requested_by is not RequestedBy.PROFILE:
        raise NotFound(f"No device has the resource provider {request.device_rp_uuid}.")
    deployable, device = found
    if device.hostname != request.hostname:
        raise BadRequest(
            f"Resource provider {request.device_rp_uuid} belongs to host {device.hostname}, not {request.hostname}."
        )
    return deployable


def _claim_one(
    tx: Connection, deployable: DeployableRecord, request: BindRequest, owner: str, cause: Cause
) -> DeviceRecord:
    device = device_rows.get_by_id(tx, deployable.device_id, lock=True)
    if device is None:
        raise _Refused(f"the device of resource provider {request.device_rp_uuid} no longer exists")
    free = handles.free(tx, deployable.id)
    if must_be_reserved(device.offer) or not free:
        raise _Refused(f"device {device.uuid} cannot be bound: {_why(device.offer, bool(free))}")
    if len(free) == 1 or device.reclaim is not Reclaim.NONE:
        # The device is no longer offered without its last handle. One that does not return as it is has one instance.
        burned = burned_for(request.instance_uuid, utcnow()) if device.reclaim is Reclaim.HOLD else {}
        device = swap(tx, device, Event.BIND, cause, burned, locked=True)
    else:
        remark(tx, device, Event.BIND.value, cause, {})
    link = {"device_id": device.id, "deployable_id": deployable.id, "attach_handle_id": free[0].id}
    if not arq_rows.swap(tx, request.arq_uuid, [ARQState.BIND_STARTED], ARQState.BIND_STARTED, link, lease_owner=owner):
        raise _Refused(f"accelerator request {request.arq_uuid} was changed concurrently")
    return device


def _why(offer: Offer, has_handle: bool) -> str:
    state = offer.device_state
    if state is not DeviceState.AVAILABLE:
        return f"it is {state.value if state else 'in no known state'}"
    reasons = offer.withheld
    if not has_handle:
        reasons.append("without a free attach handle")
    return "it is " + " and ".join(reasons)


class Unbinder:
    """Unbind accelerator requests. Every step can be repeated, and a sweep finishes an interrupted unbind.

    :param name: this conductor's name, for the history.
    :param lease_seconds: duration after which any conductor finishes an unbind.
    """

    def __init__(self, ports: Ports, name: str, lease_seconds: float) -> None:
        self._ports = ports
        self._name = name
        self._lease = timedelta(seconds=lease_seconds)

    def unbind(self, context: RequestContext, arq_uuids: Sequence[str]) -> None:
        """Give back the devices of the ARQs, which stay and may be bound again.

        :raises NotFound: an ARQ does not exist.
        :raises PlacementError: ``reserved=total`` could not be written for an unfinished bind. The caller must keep its
            allocation; a sweep finishes the unbind.
        """
        self._give_back(context, arq_uuids, delete=False)

    def delete(self, context: RequestContext, arq_uuids: Sequence[str]) -> None:
        """Give back the devices of the ARQs, and remove the ARQs.

        :raises NotFound: an ARQ does not exist.
        :raises PlacementError: see :meth:`unbind`.
        """
        self._give_back(context, arq_uuids, delete=True)

    def delete_for_instance(self, context: RequestContext, instance_uuid: str) -> None:
        """Remove every ARQ of an instance that the caller may see. There may be none: Nova repeats this request.

        :raises PlacementError: see :meth:`unbind`.
        """
        with self._ports.db.read() as tx:
            arqs = arq_rows.of_instance(tx, instance_uuid)
        mine = [arq.uuid for arq in arqs if context.is_admin or arq.project_id == context.project_id]
        self._give_back(context, mine, delete=True)

    def _give_back(self, context: RequestContext, arq_uuids: Sequence[str], *, delete: bool) -> None:
        with self._ports.db.read() as tx:
            visible_arqs(tx, context, arq_uuids)
        cause = Cause(Actor.CONDUCTOR, self._name, context.request_id)
        unbinds = [self._begin(context, arq_uuid, cause, delete=delete) for arq_uuid in arq_uuids]
        for begun in unbinds:
            if begun is not None and not begun.settled:
                self._secure(begun.arq)
        for begun in unbinds:
            if begun is not None:
                complete_unbind(self._ports, context, begun.arq, begun.device, cause)

    def _begin(self, context: RequestContext, arq_uuid: str, cause: Cause, *, delete: bool) -> Begun | None:
        """Put one ARQ into Deleting; return None if it is gone already."""
        owner = f"{context.request_id}/{uuid.uuid4().hex[:8]}"
        expires = self._ports.clock() + self._lease

        return self._ports.db.transact(
            lambda tx: begin_unbind(tx, arq_uuid, cause, lease_owner=owner, lease_expires_at=expires, delete=delete)
        )

    def _secure(self, arq: ARQRecord) -> None:
        if arq.device_id is None:
            return
        with self._ports.db.read() as tx:
            device = device_rows.get_by_id(tx, arq.device_id)
        if device is not None:
            secure(self._ports.db, self._ports.placement, device.uuid)
