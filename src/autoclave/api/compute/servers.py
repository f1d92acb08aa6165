"""``/compute/v2.1/servers``: asking for servers, looking at them, and having them deleted.

The rows are made and marked here; what happens to a server is a conductor's and an agent's. A caller sees the
servers of his own project, an administrator all; those of others do not exist for him (404, not 403).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import falcon
from sqlalchemy.engine import Connection

from autoclave.api import query
from autoclave.api.compute import server_filters, server_views
from autoclave.api.compute.common import links_to, next_link
from autoclave.api.compute.dispatch import delete, hand_over
from autoclave.api.compute.new_servers import destination, flavor_for, image_for, rows_for
from autoclave.api.compute.server_schemas import (
    MADE_SERVER,
    SERVERS,
    SERVERS_IN_DETAIL,
    SHOWN_SERVER,
    VALIDATE_CREATE,
    VALIDATE_UPDATE,
)
from autoclave.api.compute.visible import find, require_project
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.db import instances as instance_rows
from autoclave.db.instances import InstanceRecord
from autoclave.exceptions import BadRequest, NotFound


class _List(Resource):
    def _found(self, tx: Connection, asked: Asked) -> list[InstanceRecord]:
        wanted = server_filters.list_arguments(asked)
        if wanted["after"] is not None:
            try:
                wanted["after"] = find(tx, asked.context, wanted["after"]).uuid
            except NotFound:
                raise query.unknown_marker(wanted["after"]) from None
        return instance_rows.list_for(tx, **wanted)

    def _further(self, req: falcon.Request, found: Sequence[InstanceRecord]) -> dict[str, Any]:
        return next_link(req, self._api.conf, "servers", [instance.uuid for instance in found])


class Servers(_List):
    """``GET`` and ``POST /compute/v2.1/servers``."""

    @Operation(
        "List the servers that the caller may see",
        rule="os_compute_api:servers:index",
        query=server_filters.ARGUMENTS,
        answers={200: SERVERS},
    )
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        with self._api.ports.db.read() as tx:
            found = self._found(tx, asked)
        servers = [server_views.summary(self._api, req, instance) for instance in found]
        resp.media = {"servers": servers, **self._further(req, found)}

    @Operation(
        "Ask for servers",
        rule="os_compute_api:servers:create",
        waits=True,
        body=VALIDATE_CREATE,
        answers={202: MADE_SERVER},
        fails={504: "No conductor answered in time; nothing was done."},
    )
    def on_post(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        wanted, context = asked.body["server"], asked.context
        project_id = require_project(context)
        with self._api.ports.db.read() as tx:
            common = self._named(tx, asked, wanted)
        rows = rows_for(context, project_id, wanted, common)
        self._api.conductor.check_request(context, common["flavor"], common["image"])
        self._api.ports.db.transact(lambda tx: _insert(tx, rows))
        hand_over(self._api, context, [str(row["uuid"]) for row in rows])
        first = rows[0]["uuid"]
        links = links_to(req, self._api.conf, "servers", first)
        resp.status = falcon.HTTP_202
        resp.location = links[0]["href"]
        resp.media = {
            "server": {
                "id": first,
                "links": links,
                "OS-DCF:diskConfig": "MANUAL",
                "security_groups": [],
            }
        }

    def _named(self, tx: Connection, asked: Asked, wanted: Mapping[str, Any]) -> dict[str, Any]:
        context = asked.context
        flavor = flavor_for(tx, context, wanted["flavorRef"])
        image = image_for(tx, context, flavor.snapshot, wanted["imageRef"])
        for boot in wanted.get("block_device_mapping_v2", ()):
            if boot["uuid"].lower() != image.uuid:
                raise BadRequest(f"block_device_mapping_v2 names image {boot['uuid']}, and imageRef {image.uuid}.")
        zone, host = destination(tx, context, wanted)
        return {
            "flavor": flavor.snapshot,
            "image_uuid": image.uuid,
            "image": image.snapshot,
            "availability_zone": zone,
            "requested_host": host,
        }


class ServersInDetail(_List):
    """``GET /compute/v2.1/servers/detail``."""

    @Operation(
        "List the servers that the caller may see with all that is to be said of them",
        rule="os_compute_api:servers:detail",
        query=server_filters.ARGUMENTS,
        answers={200: SERVERS_IN_DETAIL},
    )
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        with self._api.ports.db.read() as tx:
            found = self._found(tx, asked)
            servers = server_views.shown(tx, self._api, req, asked.context, found)
        resp.media = {"servers": servers, **self._further(req, found)}


class Server(Resource):
    """``GET``, ``PUT`` and ``DELETE /compute/v2.1/servers/{server}``."""

    @Operation("Show a server", rule="os_compute_api:servers:show", answers={200: SHOWN_SERVER})
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked, server: str) -> None:
        with self._api.ports.db.read() as tx:
            found = find(tx, asked.context, server)
            [view] = server_views.shown(tx, self._api, req, asked.context, [found])
        resp.media = {"server": view}

    @Operation(
        "Name or describe a server in other words",
        rule="os_compute_api:servers:update",
        body=VALIDATE_UPDATE,
        answers={200: SHOWN_SERVER},
    )
    def on_put(self, req: falcon.Request, resp: falcon.Response, asked: Asked, server: str) -> None:
        def change(tx: Connection) -> dict[str, Any]:
            instance_rows.update(tx, find(tx, asked.context, server, lock=True), asked.body["server"])
            [view] = server_views.shown(tx, self._api, req, asked.context, [find(tx, asked.context, server)])
            return view

        resp.media = {"server": self._api.ports.db.transact(change)}

    @Operation(
        "Have a server deleted; it is gone when it is not found any more",
        rule="os_compute_api:servers:delete",
        waits=True,
        answers={204: None},
    )
    def on_delete(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str) -> None:
        delete(self._api, asked.context, server)
        resp.status = falcon.HTTP_204


def _insert(tx: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    for row in rows:
        instance_rows.insert(tx, row)
