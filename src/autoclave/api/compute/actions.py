"""Serve ``POST /compute/v2.1/servers/{server}/action``."""

from collections.abc import Mapping
from typing import Any

import falcon
from sqlalchemy.engine import Connection

from autoclave.api.body import storable
from autoclave.api.compute import servers
from autoclave.api.compute.common import find, links_to
from autoclave.api.compute.dispatch import begin, delete, require_allowed
from autoclave.api.compute.server_schemas import SHOWN_SERVER, VALIDATE_ACTION
from autoclave.api.compute.servers import image_for
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.schema import optional
from autoclave.db.images import ImageRecord
from autoclave.db.instances import InstanceRecord
from autoclave.rules.instance_states import Action

_POWER = {"os-start": Action.START, "os-stop": Action.STOP, "reboot": Action.REBOOT}
_RULES = {
    "os-start": "os_compute_api:servers:start",
    "os-stop": "os_compute_api:servers:stop",
    "reboot": "os_compute_api:servers:reboot",
    "rebuild": "os_compute_api:servers:rebuild",
    "forceDelete": "os_compute_api:os-deferred-delete:force",
}


class ServerAction(Resource):
    """Serve ``POST /compute/v2.1/servers/{server}/action``. Each action has a policy rule of its own.

    As Nova does, a rebuild answers with the server, and nothing else does.
    """

    @Operation(
        "Start, stop, reboot, rebuild or delete a server",
        rules=tuple(_RULES.values()),
        waits=True,
        body=VALIDATE_ACTION,
        answers={202: optional(SHOWN_SERVER)},
        fails={
            409: "The state of the server forbids the action, or the agent of its host does not support it.",
            504: "No conductor answered in time; nothing was done.",
        },
    )
    def on_post(self, req: falcon.Request, resp: falcon.Response, asked: Asked, server: str) -> None:
        [(name, arguments)] = asked.body.items()
        self._api.authorize(req, _RULES[name])
        if name == "forceDelete":
            delete(self._api, asked.context, server)
        elif name == "rebuild":
            rebuilt = self._rebuild(asked, server, arguments)
            with self._api.ports.db.read() as tx:
                [view] = servers.shown(tx, self._api, req, asked.context, [rebuilt])
            resp.location = links_to(req, self._api.conf, "servers", rebuilt.uuid)[0]["href"]
            resp.media = {"server": view}
        else:
            self._power(asked, server, _POWER[name])
        resp.status = falcon.HTTP_202

    def _power(self, asked: Asked, server: str, action: Action) -> None:
        def send(host: str, instance: InstanceRecord) -> None:
            self._api.agents.power(asked.context, host, action, instance.uuid)

        begin(self._api, asked.context, server, action, send)

    def _rebuild(self, asked: Asked, server: str, wanted: Mapping[str, Any]) -> InstanceRecord:
        with self._api.ports.db.read() as tx:
            instance, image = self._to_rebuild(tx, asked, server, wanted["imageRef"])
        # Check traits only: the server has its other resources, and an alias or a profile may be deleted by now.
        specs = {key: value for key, value in instance.flavor["extra_specs"].items() if key.startswith("trait:")}
        self._api.conductor.check_request(asked.context, {**instance.flavor, "extra_specs": specs}, image.snapshot)
        values: dict[str, Any] = {name: wanted[name] for name in ("name", "description") if name in wanted}
        if "metadata" in wanted:
            values["metadata"] = storable(wanted["metadata"], "The metadata")

        def send(_host: str, marked: InstanceRecord) -> None:
            self._api.conductor.rebuild_instance(asked.context, marked.uuid)

        values["rebuild"] = {"image_uuid": image.uuid, "image": image.snapshot}
        values["agent_run_id"] = None  # no agent works on it: an agent writes its run id when it begins
        return begin(self._api, asked.context, server, Action.REBUILD, send, values)

    def _to_rebuild(
        self, tx: Connection, asked: Asked, server: str, image_uuid: str
    ) -> tuple[InstanceRecord, ImageRecord]:
        instance = find(tx, asked.context, server)
        require_allowed(instance, Action.REBUILD)
        return instance, image_for(tx, asked.context, instance.flavor, image_uuid)
