"""What this service never has, although clients ask for it in passing.

Aggregates, migrations, records of actions, and projects that may use a flavor which is not public.
"""

import falcon

from autoclave.api.compute import flavors
from autoclave.api.compute.paging import PAGING
from autoclave.api.compute.visible import find
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument
from autoclave.api.schema import UUID
from autoclave.api.schemas.compute_services import AGGREGATES, FLAVOR_ACCESS, INSTANCE_ACTIONS, MIGRATIONS
from autoclave.exceptions import NotFound

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


class FlavorAccess(Resource):
    """``GET /compute/v2.1/flavors/{flavor}/os-flavor-access``."""

    @Operation(
        "List the projects that may use a flavor which is not public: none",
        rule="os_compute_api:os-flavor-access",
        answers={200: FLAVOR_ACCESS},
    )
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, flavor: str) -> None:
        with self._api.ports.db.read() as tx:
            found = flavors.find(tx, asked.context, flavor)
        if found.is_public:
            raise NotFound(f"Flavor {flavor} is public: every project may use it, and no list says which.")
        resp.media = {"flavor_access": []}
