"""What this service never has, although clients ask for it in passing: aggregates, migrations, records of actions."""

import falcon

from autoclave.api.compute.visible import find
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import PAGING, Argument
from autoclave.api.schemas.common import UUID
from autoclave.api.schemas.compute_services import AGGREGATES, INSTANCE_ACTIONS, MIGRATIONS

_OF_MIGRATIONS = (
    *(
        Argument(name, "Heeded as far as can be: there are none.")
        for name in (
            "host",
            "status",
            "migration_type",
            "source_compute",
            "user_id",
            "project_id",
            "changes-since",
            "changes-before",
        )
    ),
    Argument("instance_uuid", "Only those of this server.", UUID),
    *PAGING,
)


class Aggregates(Resource):
    """``GET /compute/v2.1/os-aggregates``."""

    @Operation("List the aggregates: none", rule="os_compute_api:os-aggregates:index", answers={200: AGGREGATES})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        resp.media = {"aggregates": []}


class Migrations(Resource):
    """``GET /compute/v2.1/os-migrations``."""

    @Operation(
        "List the migrations: none",
        rule="os_compute_api:os-migrations:index",
        query=_OF_MIGRATIONS,
        answers={200: MIGRATIONS},
    )
    def on_get(self, _req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        resp.media = {"migrations": []}


class InstanceActions(Resource):
    """``GET /compute/v2.1/servers/{server}/os-instance-actions``."""

    @Operation(
        "List what was done with a server: nothing is kept",
        rule="os_compute_api:os-instance-actions:list",
        query=PAGING,
        answers={200: INSTANCE_ACTIONS},
    )
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str) -> None:
        with self._api.ports.db.read() as tx:
            find(tx, asked.context, server)
        resp.media = {"instanceActions": []}
