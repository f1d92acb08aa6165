"""``POST /autoclave/v1/devices/{device}/take-back``: give a device back whose instance is no longer there.

Another service may delete an instance and forget its accelerator requests. Nothing gives the device back then, and
``DELETE`` of the requests is for services.
"""

import falcon
from sqlalchemy.engine import Connection

from autoclave.api.accelerator.accelerator_requests import delete_requests
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.operator.devices import find
from autoclave.api.schemas.operator_devices import SAID, VALIDATE_TAKE_BACK
from autoclave.lifecycle.recorded_unbind import note_take_back
from autoclave.lifecycle.swap import Cause
from autoclave.objects.context import RequestContext
from autoclave.rules.device_states import Actor


class TakeBack(Resource):
    """Delete the requests that hold a device, on the operator's word that their instances are gone."""

    @Operation(
        "Give a device back whose instance is no longer there",
        rule="autoclave:device:act",
        waits=True,
        body=VALIDATE_TAKE_BACK,
        answers={200: SAID},
        fails={
            409: "No request has the device, or one is being bound, or its server is on record, or several servers "
            "have it and none is named; the text says which.",
            504: "No conductor answered in time; it may still be done.",
        },
    )
    def on_post(
        self, _req: falcon.Request, resp: falcon.Response, asked: Asked, device: str, address: str | None = None
    ) -> None:
        context = asked.context
        cause = Cause(Actor.OPERATOR, context.user_id or "", context.request_id, asked.body.get("reason"))

        def note(tx: Connection) -> list[str]:
            return note_take_back(tx, find(tx, device, address), cause, asked.body.get("instance_uuid"))

        wanted = self._api.ports.db.transact(note)
        delete_requests(self._api, RequestContext.admin(context.request_id), wanted)
        resp.media = {"placement_settled": True}
