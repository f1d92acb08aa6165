"""``/autoclave/v1/devices``: all that is known of a device, its history, and what an operator may say about it.

A device is named by its uuid, or as ``hostname/pci_address``.
"""

from collections.abc import Callable

import falcon
from sqlalchemy.engine import Connection

from autoclave.api import body, query, uuids
from autoclave.api.context import Api
from autoclave.api.operator import views
from autoclave.api.schemas.operator_devices import VALIDATE_REASON_IF_ANY, VALIDATE_WITH_REASON
from autoclave.db import device_views, events
from autoclave.db import devices as device_rows
from autoclave.db.devices import DeviceRecord
from autoclave.exceptions import BadRequest, Conflict, NotFound, PlacementConflict
from autoclave.lifecycle import holds
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.swap import Cause
from autoclave.rules.device_states import Actor, DeviceState
from autoclave.rules.pci_address import PCIAddress

_GET = "autoclave:device:get"
_ACT = "autoclave:device:act"


class Devices:
    """``GET /autoclave/v1/devices``."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._api.authorize(req, _GET)
        asked = query.arguments(req, "hostname", "type", "device_state", *query.PAGING)
        page = query.page(asked)
        states = [_state(asked["device_state"])] if "device_state" in asked else None
        with self._api.ports.db.read() as tx:
            if page.marker is not None and device_rows.get(tx, page.marker) is None:
                raise query.unknown_marker(page.marker)
            records = device_rows.list_all(
                tx,
                hostname=asked.get("hostname"),
                device_type=asked.get("type"),
                states=states,
                after=page.marker,
                limit=page.limit,
            )
            found = device_views.of(tx, records)
        resp.media = {"devices": [views.device(view) for view in found]}


class Device:
    """``GET /autoclave/v1/devices/{device}``."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def on_get(self, req: falcon.Request, resp: falcon.Response, device: str, address: str | None = None) -> None:
        self._api.authorize(req, _GET)
        query.arguments(req)
        with self._api.ports.db.read() as tx:
            [view] = device_views.of(tx, [_find(tx, device, address)])
        resp.media = views.device(view)


class History:
    """``GET /autoclave/v1/devices/{device}/history``. That of a forgotten device stays, under its uuid."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def on_get(self, req: falcon.Request, resp: falcon.Response, device: str, address: str | None = None) -> None:
        self._api.authorize(req, _GET)
        query.arguments(req)
        with self._api.ports.db.read() as tx:
            forgotten = uuids.canonical(device) if address is None else None
            found = events.history(tx, forgotten) if forgotten else []
            if not found:
                found = events.history(tx, _find(tx, device, address).uuid)
        resp.media = {"events": [views.event(record) for record in found]}


Action = Callable[[Ports, str, Cause], bool]
"""Does what the operator said of a device, and returns whether Placement agrees already."""


def release(ports: Ports, uuid: str, cause: Cause) -> bool:
    """See :func:`autoclave.lifecycle.holds.release`.

    :raises Conflict: nobody holds it.
    """
    if not holds.is_held(ports, uuid):
        raise Conflict(f"Device {uuid} is not held; what it waits for, if anything, is shown with it.")
    return holds.release(ports, uuid, cause)


def accept(ports: Ports, uuid: str, cause: Cause) -> bool:
    """See :func:`autoclave.lifecycle.holds.accept`."""
    holds.accept(ports, uuid, cause)
    with ports.db.read() as tx:
        device = device_rows.get(tx, uuid)
    return device is None or not device.release_pending


def forget(ports: Ports, uuid: str, cause: Cause) -> bool:
    """See :func:`autoclave.lifecycle.holds.forget`.

    :raises Conflict: somebody still holds an allocation from its provider.
    """
    try:
        holds.forget(ports, uuid, cause)
    except PlacementConflict as error:
        raise Conflict(f"The provider of device {uuid} cannot be deleted, so the device stays: {error}") from error
    return True


class Say:
    """``POST /autoclave/v1/devices/{device}/<action>`` with ``{"reason": "…"}``.

    The intent is recorded when this answers: 200 when Placement agrees already, 202 when it was away and
    will be told later.

    :param needs_reason: a hold without a reason would be a riddle to the next operator.
    """

    def __init__(self, api: Api, action: Action, *, needs_reason: bool = False) -> None:
        self._api = api
        self._action = action
        self._needs_reason = needs_reason

    def on_post(self, req: falcon.Request, resp: falcon.Response, device: str, address: str | None = None) -> None:
        context = self._api.authorize(req, _ACT)
        query.arguments(req)
        validator = VALIDATE_WITH_REASON if self._needs_reason else VALIDATE_REASON_IF_ANY
        reason = body.read(req, validator, self._api.max_body).get("reason")
        with self._api.ports.db.read() as tx:
            uuid = _find(tx, device, address).uuid
        cause = Cause(Actor.OPERATOR, context.user_id or "", context.request_id, reason)
        settled = self._action(self._api.ports, uuid, cause)
        resp.status = falcon.HTTP_200 if settled else falcon.HTTP_202
        resp.media = {"placement_settled": settled}


def _find(tx: Connection, device: str, address: str | None) -> DeviceRecord:
    found = None
    if address is not None:
        slot = _canonical_address(address)
        found = next((row for row in device_rows.list_all(tx, hostname=device) if row.pci_address == slot), None)
    elif (canonical := uuids.canonical(device)) is not None:
        found = device_rows.get(tx, canonical)
    if found is None:
        raise NotFound(f"There is no device {device if address is None else f'{device}/{address}'}.")
    return found


def _canonical_address(address: str) -> str:
    try:
        return str(PCIAddress.parse(address))
    except ValueError as error:
        raise BadRequest(f"{address!r} is no PCI address: {error}") from None


def _state(text: str) -> DeviceState:
    try:
        return DeviceState(text)
    except ValueError:
        known = ", ".join(state.value for state in DeviceState)
        raise BadRequest(f"device_state can be {known}, not {text!r}.") from None
