"""``POST /autoclave/v1/devices/{device}/take-back``: give a device back whose instance is no longer there.

Another service may delete an instance and forget its accelerator requests. Nothing gives the device back then, and
``DELETE`` of the requests is for services.
"""

import falcon
from sqlalchemy.engine import Connection

from autoclave.api.accelerator.accelerator_requests import delete_requests
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.operator.devices import find
from autoclave.api.schemas.operator_devices import SAID, VALIDATE_REASON_IF_ANY
from autoclave.db import arqs as arq_rows
from autoclave.db import instances as instance_rows
from autoclave.db.devices import DeviceRecord
from autoclave.exceptions import Conflict
from autoclave.lifecycle.remarks import remark
from autoclave.lifecycle.swap import Cause
from autoclave.objects.context import RequestContext
from autoclave.rules.arq_states import ARQState
from autoclave.rules.device_states import Actor


class TakeBack(Resource):
    """Delete the requests that hold a device, on the operator's word that their instances are gone."""

    @Operation(
        "Give a device back whose instance is no longer there",
        rule="autoclave:device:act",
        waits=True,
        body=VALIDATE_REASON_IF_ANY,
        answers={200: SAID},
        fails={
            409: "No request has the device, or one is being bound, or its server is on record; the text says which.",
            504: "No conductor answered in time; it may still be done.",
        },
    )
    def on_post(
        self, _req: falcon.Request, resp: falcon.Response, asked: Asked, device: str, address: str | None = None
    ) -> None:
        context = asked.context
        cause = Cause(Actor.OPERATOR, context.user_id or "", context.request_id, asked.body.get("reason"))

        def note(tx: Connection) -> list[str]:
            found = find(tx, device, address)
            uuids = _to_delete(tx, found)
            remark(tx, found, "take_back", cause, {})
            return uuids

        wanted = self._api.ports.db.transact(note)
        delete_requests(self._api, RequestContext.admin(context.request_id), wanted)
        resp.media = {"placement_settled": True}


def _to_delete(tx: Connection, device: DeviceRecord) -> list[str]:
    holders = arq_rows.active_of_device(tx, device.id)
    if not holders:
        raise Conflict(f"Device {device.uuid} is held by no accelerator request: nothing is to be taken back.")
    for arq in holders:
        if arq.state is ARQState.BIND_STARTED:
            raise Conflict(f"Accelerator request {arq.uuid} is being bound to device {device.uuid}: try again later.")
        if arq.instance_uuid is not None and instance_rows.get(tx, arq.instance_uuid) is not None:
            raise Conflict(f"Device {device.uuid} belongs to server {arq.instance_uuid}: delete that server instead.")
    return [arq.uuid for arq in holders]
