"""``/v2/devices``: the hardware, and asking for it to be cleaned again."""

from collections.abc import Mapping, Sequence
from typing import Any

import falcon

from autoclave.api import microversion, query, uuids
from autoclave.api.accelerator import listing
from autoclave.api.context import Api
from autoclave.api.links import public_url, resource_link
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.operator.waiting import waiting_for
from autoclave.api.query import Argument
from autoclave.api.schemas.devices import DEVICE, DEVICES
from autoclave.api.schemas.operator_devices import VALIDATE_REASON_IF_ANY
from autoclave.db import arqs as arq_rows
from autoclave.db import devices
from autoclave.db import devices as device_rows
from autoclave.db.devices import DeviceRecord, DeviceSummary
from autoclave.exceptions import BadRequest, Conflict, NotFound
from autoclave.lifecycle import operator
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor, DeviceState, shown_state

_NOT_NOW: Mapping[DeviceState | None, str] = {
    None: "is in no known state: run the online data migrations first",
    DeviceState.AVAILABLE: "is available: it is clean already",
    DeviceState.PENDING_CLEANING: "is pending_cleaning: it will be cleaned",
    DeviceState.CLEANING: "is cleaning: it is being cleaned",
}

_SORT_KEYS = ("created_at", "updated_at", "uuid", "type", "vendor", "model", "hostname")

_ARGUMENTS = (
    Argument("type", "Only devices of this type, such as NVME."),
    Argument("vendor", "Only devices of this vendor, by its PCI vendor id."),
    Argument("hostname", "Only devices of this host."),
    *listing.ARGUMENTS,
)


class Devices(Resource):
    """``GET /v2/devices``."""

    @Operation("List the devices", rule="cyborg:device:get_all", query=_ARGUMENTS, answers={200: DEVICES})
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        wanted = listing.asked(req, asked.query, sort_keys=_SORT_KEYS)
        page = wanted.page
        with self._api.ports.db.read() as tx:
            if page.marker is not None and device_rows.get(tx, page.marker) is None:
                raise query.unknown_marker(page.marker)
            found = devices.summaries(
                tx,
                device_type=wanted.own.get("type"),
                vendor=wanted.own.get("vendor"),
                hostname=wanted.own.get("hostname"),
                related=wanted.related,
                order=wanted.order,
                after=page.marker,
                limit=page.limit,
            )
        resp.media = {"devices": _shown(found, asked.version, public_url(req, self._api.conf))}


class Device(Resource):
    """``GET /v2/devices/{uuid}``."""

    @Operation("Show a device", rule="cyborg:device:get_one", answers={200: DEVICE})
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked, uuid: str) -> None:
        canonical = uuids.canonical(uuid)
        with self._api.ports.db.read() as tx:
            found = devices.find(tx, canonical) if canonical else None
        if found is None:
            raise _not_found(uuid)
        [resp.media] = _shown([found], asked.version, public_url(req, self._api.conf))


class DeviceClean(Resource):
    """``POST /v2/devices/{uuid}/clean`` (NVMe specification), from microversion 2.5 on.

    The agent makes the swap, with the version that the message carries: of several requests one wins,
    and one that comes late finds another version and loses. What the operator says is his reason (an
    optional body ``{"reason": "…"}``, beyond the specification) is kept in the device's history.
    """

    @Operation(
        "Clean a device again",
        rule="cyborg:device:clean",
        waits=True,
        since=microversion.DEVICE_STATE,
        body=VALIDATE_REASON_IF_ANY,
        body_optional=True,
        answers={202: None},
        fails={409: "Its state, its holder or somebody else does not allow it now; the text says which."},
    )
    def on_post(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, uuid: str) -> None:
        context, reason = asked.context, asked.body.get("reason")
        record = _find(self._api, uuid)
        if not record.supports_cleaning:
            raise BadRequest(f"Device {record.uuid} does not support cleaning: its type is {record.type.value}.")
        if record.device_state in _NOT_NOW:
            raise Conflict(_why_not_now(record))
        with self._api.ports.db.read() as tx:
            holders = arq_rows.active_of_device(tx, record.id)
        if record.device_state is DeviceState.ALLOCATED:
            raise Conflict(f"Device {record.uuid} is allocated: {_why_allocated(record, bool(holders))}.")
        if record.was_replaced:
            raise Conflict(f"Device {record.uuid} cannot be cleaned yet. {waiting_for(record)}")
        if holders:
            raise Conflict(f"Device {record.uuid} is held by accelerator request {holders[0].uuid}: delete that first.")
        cleaners = self._api.ports.cleaners
        refusal = cleaners.why_not(record.hostname)
        if refusal is not None:
            raise BadRequest(f"The agent of host {record.hostname} does not support cleaning: {refusal}.")
        cause = Cause(Actor.OPERATOR, context.user_id or "", context.request_id, reason)
        operator.ask_to_clean(self._api.ports, record.uuid, cause)
        cleaners.clean(context, record)
        resp.status = falcon.HTTP_202


def _why_not_now(record: DeviceRecord) -> str:
    shown = shown_state(record.offer)
    if record.device_state is DeviceState.AVAILABLE and shown != DeviceState.AVAILABLE:
        return (
            f"Device {record.uuid} is {shown}, and needs no cleaning. {waiting_for(record) or 'It is being forgotten.'}"
        )
    return f"Device {record.uuid} {_NOT_NOW[record.device_state]}."


def _why_allocated(record: DeviceRecord, held: bool) -> str:
    if held:
        return "an instance has it"
    return f"its instance is gone, and the agent of host {record.hostname} has yet to clean it; see that it runs"


def _find(api: Api, uuid: str) -> DeviceRecord:
    canonical = uuids.canonical(uuid)
    if canonical is not None:
        with api.ports.db.read() as tx:
            record = device_rows.get(tx, canonical)
        if record is not None:
            return record
    raise _not_found(uuid)


def _not_found(uuid: str) -> NotFound:
    return NotFound(f"Device not found with uuid={uuid}")


def _shown(found: Sequence[DeviceSummary], version: microversion.Microversion, base: str) -> list[dict[str, Any]]:
    link = resource_link(base, "devices")
    shown: list[dict[str, Any]] = [
        {
            "uuid": row.uuid,
            "type": row.type,
            "vendor": row.vendor,
            "model": row.model,
            "std_board_info": row.std_board_info,
            "vendor_board_info": row.vendor_board_info,
            "hostname": row.hostname,
            "links": [{"href": link + row.uuid, "rel": "self"}],
            "created_at": row.created_at,
            "updated_at": row.updated_at,
        }
        for row in found
    ]
    if version >= microversion.DEVICE_STATUS:
        for device, row in zip(shown, found, strict=True):
            device["status"] = row.status
    if version >= microversion.DEVICE_STATE:
        for device, row in zip(shown, found, strict=True):
            device["device_state"] = row.device_state
    return shown
