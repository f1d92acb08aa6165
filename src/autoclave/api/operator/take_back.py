"""``POST /autoclave/v1/devices/{device}/take-back``: give a device back whose instance is no longer there.

Another service may delete an instance and forget its accelerator requests. Nothing gives the device back then, and
``DELETE`` of the requests is for services.
"""

import falcon
from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.api.accelerator.arqs import delete_requests
from autoclave.api.admin.devices import find
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.schemas.operator_devices import SAID, VALIDATE_TAKE_BACK
from autoclave.db import handles as handle_rows
from autoclave.exceptions import Conflict, RPCError
from autoclave.lifecycle.requests import note_take_back, to_take_back
from autoclave.lifecycle.transitions import Cause
from autoclave.objects.base import RequestContext
from autoclave.rules.device_lifecycle import Actor

LOG = logging.getLogger(__name__)


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
        """Ask the device's agent for the guests that have it. Where it cannot tell, the operator's word counts.

        :raises Conflict: there is one, or the device cannot be taken back.
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
