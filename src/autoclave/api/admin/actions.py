"""Serve the actions of operators on devices: ``POST /autoclave/v1/devices/{device}/<action>``.

The decision is recorded before the answer: 200 if Placement agrees, 202 if Placement is down and is updated later.

``take-back`` reclaims a device whose instance no longer exists. Another service may delete an instance and lose its
accelerator requests; only services may ``DELETE`` requests.
"""

from collections.abc import Callable, Mapping

import falcon
from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.api.accelerator.arqs import delete_requests
from autoclave.api.admin.devices import (
    SAID,
    VALIDATE_REASON_IF_ANY,
    VALIDATE_TAKE_BACK,
    VALIDATE_WITH_REASON,
    find,
    waiting_for,
)
from autoclave.api.context import Api
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import handles as handle_rows
from autoclave.db import pci
from autoclave.db.devices import DeviceRecord
from autoclave.exceptions import BadRequest, Conflict, PlacementConflict, RPCError
from autoclave.lifecycle import operator
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.requests import note_take_back, to_take_back
from autoclave.lifecycle.transitions import Cause
from autoclave.objects.base import RequestContext
from autoclave.rules.device_lifecycle import Actor, DeviceState, shown_state

LOG = logging.getLogger(__name__)


Action = Callable[[Ports, str, Cause], bool]
"""Apply the operator's decision to a device, and return whether Placement agrees."""


def say(ports: Ports, resp: falcon.Response, asked: Asked, uuid: str, action: Action) -> bool:
    """Apply *action* to the device *uuid*, for the caller and with the reason of the body.

    If Placement is down, answer 202 with ``{"placement_settled": false}``; Placement is updated later.

    :returns: whether Placement agrees; the caller writes the answer then.
    """
    context = asked.context
    cause = Cause(Actor.OPERATOR, context.user_id or "", context.request_id, asked.body.get("reason"))
    settled = action(ports, uuid, cause)
    if not settled:
        resp.status = falcon.HTTP_202
        resp.media = {"placement_settled": False}
    return settled


_NOT_NOW: Mapping[DeviceState | None, str] = {
    None: "has no device_state: run `autoclave db online-data-migrations` first",
    DeviceState.AVAILABLE: "is available and clean already",
    DeviceState.PENDING_CLEANING: "is pending_cleaning and will be cleaned",
    DeviceState.CLEANING: "is being cleaned already",
}


def clean(api: Api, record: DeviceRecord, asked: Asked) -> None:
    """Ask the agent of a device to clean it again, for the caller and with the reason of the body.

    The agent makes the transition with the version in the message. Of several requests one succeeds; a late one finds
    another version and fails.

    :raises BadRequest: the device, or the agent of its host, does not support cleaning.
    :raises Conflict: its state, its holder or a concurrent change does not allow it now.
    """
    context, reason = asked.context, asked.body.get("reason")
    if record.device_state is DeviceState.SPENT:
        raise Conflict(
            f"Device {record.uuid} is spent: Autoclave does not clean it. Clean it yourself, then release it by "
            f"`autoclave device release {record.hostname}/{record.pci_address}`."
        )
    if not record.supports_cleaning:
        raise BadRequest(
            f"Device {record.uuid} does not support cleaning: its type is {record.type.value}, and its reclaim policy "
            f"is {record.reclaim.value}."
        )
    if record.device_state in _NOT_NOW:
        raise Conflict(_why_not_now(record))
    with api.ports.db.read() as tx:
        holders = arq_rows.active_of_device(tx, record.id)
        claimed = pci.is_claimed(tx, record.id)
    if record.device_state is DeviceState.ALLOCATED:
        raise Conflict(f"Device {record.uuid} is allocated: {_why_allocated(record, bool(holders) or claimed)}.")
    if record.was_replaced:
        raise Conflict(f"Device {record.uuid} cannot be cleaned yet. {waiting_for(record)}")
    if holders:
        raise Conflict(
            f"Device {record.uuid} is held by accelerator request {holders[0].uuid}. Delete the request first."
        )
    cleaners = api.ports.cleaners
    refusal = cleaners.why_not(record.hostname)
    if refusal is not None:
        raise BadRequest(f"The agent of host {record.hostname} does not support cleaning: {refusal}.")
    cause = Cause(Actor.OPERATOR, context.user_id or "", context.request_id, reason)
    operator.ask_to_clean(api.ports, record.uuid, cause)
    cleaners.clean(context, record)


def _why_not_now(record: DeviceRecord) -> str:
    shown = shown_state(record.offer)
    if record.device_state is DeviceState.AVAILABLE and shown != DeviceState.AVAILABLE:
        why = waiting_for(record) or "It is being forgotten."
        return f"Device {record.uuid} is {shown} and needs no cleaning. {why}"
    return f"Device {record.uuid} {_NOT_NOW[record.device_state]}."


def _why_allocated(record: DeviceRecord, held: bool) -> str:
    if held:
        return "an instance has it"
    return (
        f"its instance no longer exists, and the agent of host {record.hostname} has not cleaned it yet. Check that "
        "the agent runs"
    )


_ACT = "autoclave:device:act"
_ANSWERS = {200: SAID, 202: SAID}


def _release(ports: Ports, uuid: str, cause: Cause) -> bool:
    if not operator.is_held(ports, uuid):
        raise Conflict(f"Device {uuid} is neither held nor spent; what it waits for, if anything, is shown with it.")
    return operator.release(ports, uuid, cause)


def _accept(ports: Ports, uuid: str, cause: Cause) -> bool:
    operator.accept(ports, uuid, cause)
    with ports.db.read() as tx:
        device = device_rows.get(tx, uuid)
    return device is None or not device.release_pending


def _forget(ports: Ports, uuid: str, cause: Cause) -> bool:
    try:
        operator.forget(ports, uuid, cause)
    except PlacementConflict as error:
        raise Conflict(f"The provider of device {uuid} cannot be deleted, so the device stays: {error}") from error
    return True


class _Act(Resource):
    def _act(self, resp: falcon.Response, asked: Asked, device: str, address: str | None, action: Action) -> None:
        with self._api.ports.db.read() as tx:
            uuid = find(tx, device, address).uuid
        if say(self._api.ports, resp, asked, uuid, action):
            resp.media = {"placement_settled": True}


class Hold(_Act):
    """Require a reason: the next operator cannot see why a device is held."""

    @Operation(
        "Keep a device from being offered until it is released",
        rule=_ACT,
        waits=True,
        body=VALIDATE_WITH_REASON,
        answers=_ANSWERS,
        fails={409: "The device was changed concurrently."},
    )
    def on_post(
        self, _req: falcon.Request, resp: falcon.Response, asked: Asked, device: str, address: str | None = None
    ) -> None:
        self._act(resp, asked, device, address, operator.hold)


class Release(_Act):
    """See :func:`autoclave.lifecycle.operator.release`."""

    @Operation(
        "End a hold, or release a spent device, which is clean",
        rule=_ACT,
        waits=True,
        body=VALIDATE_REASON_IF_ANY,
        answers=_ANSWERS,
        fails={409: "The device is neither held nor spent, or it is in use; the text says which."},
    )
    def on_post(
        self, _req: falcon.Request, resp: falcon.Response, asked: Asked, device: str, address: str | None = None
    ) -> None:
        self._act(resp, asked, device, address, _release)


class Clean(Resource):
    """Clean a device again, also one that flavors ask for."""

    @Operation(
        "Clean a device again",
        rule="cyborg:device:clean",
        waits=True,
        body=VALIDATE_REASON_IF_ANY,
        body_optional=True,
        answers={202: None},
        fails={409: "Its state, its holder or a concurrent change does not allow it now; the text says which."},
    )
    def on_post(
        self, _req: falcon.Request, resp: falcon.Response, asked: Asked, device: str, address: str | None = None
    ) -> None:
        with self._api.ports.db.read() as tx:
            record = find(tx, device, address)
        clean(self._api, record, asked)
        resp.status = falcon.HTTP_202


class Accept(_Act):
    """See :func:`autoclave.lifecycle.operator.accept`."""

    @Operation(
        "Take the drive that was found in the slot for the slot's drive",
        rule=_ACT,
        waits=True,
        body=VALIDATE_REASON_IF_ANY,
        answers=_ANSWERS,
        fails={409: "The device is not in error, or there is nothing to accept; the text says which."},
    )
    def on_post(
        self, _req: falcon.Request, resp: falcon.Response, asked: Asked, device: str, address: str | None = None
    ) -> None:
        self._act(resp, asked, device, address, _accept)


class Forget(_Act):
    """See :func:`autoclave.lifecycle.operator.forget`."""

    @Operation(
        "Delete a device that is gone from its host",
        rule=_ACT,
        waits=True,
        body=VALIDATE_REASON_IF_ANY,
        answers=_ANSWERS,
        fails={409: "The device is there, is held or is in use; the text says which."},
    )
    def on_post(
        self, _req: falcon.Request, resp: falcon.Response, asked: Asked, device: str, address: str | None = None
    ) -> None:
        self._act(resp, asked, device, address, _forget)


class TakeBack(Resource):
    """Delete the requests that hold a device. The operator guarantees that their instances no longer exist."""

    @Operation(
        "Give a device back whose instance is no longer there",
        rule="autoclave:device:act",
        waits=True,
        body=VALIDATE_TAKE_BACK,
        answers={200: SAID},
        fails={
            409: "No request has the device, or one is being bound, or its server is on record, or several servers "
            "have it and none is named, or the agent sees a guest that has it; the text says which.",
            504: "No conductor answered in time; it may still be done.",
        },
    )
    def on_post(
        self, _req: falcon.Request, resp: falcon.Response, asked: Asked, device: str, address: str | None = None
    ) -> None:
        context, server = asked.context, asked.body.get("instance_uuid")
        self._require_unused(device, address, server)
        cause = Cause(Actor.OPERATOR, context.user_id or "", context.request_id, asked.body.get("reason"))

        def note(tx: Connection) -> list[str]:
            return note_take_back(tx, find(tx, device, address), cause, server)

        wanted = self._api.ports.db.transact(note)
        delete_requests(self._api, RequestContext.admin(context.request_id), wanted)
        resp.media = {"placement_settled": True}

    def _require_unused(self, name: str, address: str | None, server: str | None) -> None:
        """Ask the device's agent for guests that have it. If the agent cannot answer, rely on the operator.

        :raises Conflict: there is one, or the device cannot be reclaimed.
        """
        with self._api.ports.db.read() as tx:
            device = find(tx, name, address)
            holders = to_take_back(tx, device, server)
            handles = [arq.attach_handle_id for arq in holders if arq.attach_handle_id is not None]
            functions = handle_rows.identities(tx, handles)
        try:
            users = self._api.guests.users(device.hostname, functions)
        except RPCError as error:
            LOG.warning("Device %s/%s is taken back unseen: %s.", device.hostname, device.pci_address, error)
            return
        if users:
            raise Conflict(
                f"Device {device.uuid} cannot be taken back, it is in use: {'; '.join(users)}. End and undefine that "
                "guest, or detach the device from it, then take the device back."
            )
