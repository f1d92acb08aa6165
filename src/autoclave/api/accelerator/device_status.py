"""``POST /v2/devices/{uuid}/disable`` and ``/enable``: whether a device is used at all.

The intent is recorded when this answers: 200 without a body, as Cyborg's clients know it, when Placement agrees.
While Placement is away it is 202 with ``{"placement_settled": false}``; Placement is told later. An optional
body ``{"reason": "…"}``, beyond Cyborg's, is kept in the device's history.
"""

import falcon

from autoclave.api import uuids
from autoclave.api.intents import Action, say
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.schemas.operator_devices import SAID, VALIDATE_REASON_IF_ANY
from autoclave.exceptions import NotFound
from autoclave.lifecycle import operator

_ANSWERS = {200: None, 202: SAID}


class _Switch(Resource):
    def _switch(self, resp: falcon.Response, asked: Asked, uuid: str, switch: Action) -> None:
        device = uuids.canonical(uuid)
        if device is None:
            raise NotFound(f"Device not found with uuid={uuid}")
        say(self._api.ports, resp, asked, device, switch)


class DeviceDisable(_Switch):
    """See :func:`autoclave.lifecycle.operator.disable`."""

    @Operation(
        "Take a device out of service",
        rule="cyborg:device:disable",
        waits=True,
        body=VALIDATE_REASON_IF_ANY,
        body_optional=True,
        answers=_ANSWERS,
    )
    def on_post(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, uuid: str) -> None:
        self._switch(resp, asked, uuid, operator.disable)


class DeviceEnable(_Switch):
    """See :func:`autoclave.lifecycle.operator.enable`."""

    @Operation(
        "Put a device back in service",
        rule="cyborg:device:enable",
        waits=True,
        body=VALIDATE_REASON_IF_ANY,
        body_optional=True,
        answers=_ANSWERS,
    )
    def on_post(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, uuid: str) -> None:
        self._switch(resp, asked, uuid, operator.enable)
