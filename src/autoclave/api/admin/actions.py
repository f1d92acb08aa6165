"""``POST /autoclave/v1/devices/{device}/<action>`` with ``{"reason": "…"}``: what an operator may say about a device.

The intent is recorded when this answers: 200 when Placement agrees already, 202 when it was away and
will be told later.
"""

import falcon

from autoclave.api.admin.devices import find
from autoclave.api.intents import Action, say
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.schemas.operator_devices import SAID, VALIDATE_REASON_IF_ANY, VALIDATE_WITH_REASON
from autoclave.db import devices as device_rows
from autoclave.exceptions import Conflict, PlacementConflict
from autoclave.lifecycle import operator
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.transitions import Cause

_ACT = "autoclave:device:act"
_ANSWERS = {200: SAID, 202: SAID}


def _release(ports: Ports, uuid: str, cause: Cause) -> bool:
    if not operator.is_held(ports, uuid):
        raise Conflict(f"Device {uuid} is not held; what it waits for, if anything, is shown with it.")
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
    """A hold without a reason would be a riddle to the next operator: it is the one that needs one."""

    @Operation(
        "Keep a device from being offered until it is released",
        rule=_ACT,
        waits=True,
        body=VALIDATE_WITH_REASON,
        answers=_ANSWERS,
        fails={409: "Somebody else changed the device meanwhile."},
    )
    def on_post(
        self, _req: falcon.Request, resp: falcon.Response, asked: Asked, device: str, address: str | None = None
    ) -> None:
        self._act(resp, asked, device, address, operator.hold)


class Release(_Act):
    """See :func:`autoclave.lifecycle.operator.release`."""

    @Operation(
        "End a hold",
        rule=_ACT,
        waits=True,
        body=VALIDATE_REASON_IF_ANY,
        answers=_ANSWERS,
        fails={409: "Nobody holds the device."},
    )
    def on_post(
        self, _req: falcon.Request, resp: falcon.Response, asked: Asked, device: str, address: str | None = None
    ) -> None:
        self._act(resp, asked, device, address, _release)


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
