"""``POST /v2/devices/{uuid}/disable`` and ``/enable``: whether a device is used at all.

The intent is recorded when this answers: 200 without a body, as Cyborg's clients know it, when Placement agrees.
While Placement is away it is 202 with ``{"placement_settled": false}``; Placement is told later. An optional
body ``{"reason": "…"}``, beyond Cyborg's, is kept in the device's history.
"""

from collections.abc import Callable

import falcon

from autoclave.api import uuids
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.schemas.operator_devices import SAID, VALIDATE_REASON_IF_ANY
from autoclave.exceptions import NotFound
from autoclave.lifecycle import status
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.swap import Cause
from autoclave.rules.device_states import Actor

_ANSWERS = {200: None, 202: SAID}


class _Switch(Resource):
    def _say(self, resp: falcon.Response, asked: Asked, uuid: str, switch: Callable[[Ports, str, Cause], bool]) -> None:
        device = uuids.canonical(uuid)
        if device is None:
            raise NotFound(f"Device not found with uuid={uuid}")
        context = asked.context
        cause = Cause(Actor.OPERATOR, context.user_id or "", context.request_id, asked.body.get("reason"))
        if not switch(self._api.ports, device, cause):
            resp.status = falcon.HTTP_202
            resp.media = {"placement_settled": False}


class DeviceDisable(_Switch):
    """See :func:`autoclave.lifecycle.status.disable`."""

    @Operation(
        "Take a device out of service",
        rule="cyborg:device:disable",
        body=VALIDATE_REASON_IF_ANY,
        body_optional=True,
        answers=_ANSWERS,
    )
    def on_post(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, uuid: str) -> None:
        self._say(resp, asked, uuid, status.disable)


class DeviceEnable(_Switch):
    """See :func:`autoclave.lifecycle.status.enable`."""

    @Operation(
        "Put a device back in service",
        rule="cyborg:device:enable",
        body=VALIDATE_REASON_IF_ANY,
        body_optional=True,
        answers=_ANSWERS,
    )
    def on_post(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, uuid: str) -> None:
        self._say(resp, asked, uuid, status.enable)
