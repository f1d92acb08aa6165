"""Serve placeholder routes, which clients request and which have one fixed answer.

These are aggregates, migrations, instance actions, flavor access, the one availability zone, and the version
documents.
"""

from typing import Any

import falcon

from autoclave.api.compute import flavors
from autoclave.api.compute.common import PAGING, ROOT, SHOWN_VERSION, VERSIONS, find, novas_moment
from autoclave.api.compute.hosts import (
    AGGREGATES,
    BINARY,
    FLAVOR_ACCESS,
    INSTANCE_ACTIONS,
    MIGRATIONS,
    ZONES,
    ZONES_IN_DETAIL,
    host_states,
)
from autoclave.api.microversion import COMPUTE
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument, public_url
from autoclave.api.schema import UUID
from autoclave.exceptions import NotFound
from autoclave.rules.instance_states import ZONE

_OF_MIGRATIONS = (
    *(
        Argument(name, "Accepted without effect: there are none.")
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
    Argument("instance_uuid", "Only migrations of this server.", UUID),
    *PAGING,
)


class Aggregates(Resource):
    """Serve ``GET /compute/v2.1/os-aggregates``."""

    @Operation("List the aggregates: none", rule="os_compute_api:os-aggregates:index", answers={200: AGGREGATES})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        resp.media = {"aggregates": []}


class Migrations(Resource):
    """Serve ``GET /compute/v2.1/os-migrations``."""

    @Operation(
        "List the migrations: none",
        rule="os_compute_api:os-migrations:index",
        query=_OF_MIGRATIONS,
        answers={200: MIGRATIONS},
    )
    def on_get(self, _req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        resp.media = {"migrations": []}


class InstanceActions(Resource):
    """Serve ``GET /compute/v2.1/servers/{server}/os-instance-actions``."""

    @Operation(
        "List the actions of a server: none are recorded",
        rule="os_compute_api:os-instance-actions:list",
        query=PAGING,
        answers={200: INSTANCE_ACTIONS},
    )
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str) -> None:
        with self._api.ports.db.read() as tx:
            find(tx, asked.context, server)
        resp.media = {"instanceActions": []}


class FlavorAccess(Resource):
    """Serve ``GET /compute/v2.1/flavors/{flavor}/os-flavor-access``."""

    @Operation(
        "List the projects with access to a flavor: none",
        rule="os_compute_api:os-flavor-access",
        answers={200: FLAVOR_ACCESS},
    )
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, flavor: str) -> None:
        with self._api.ports.db.read() as tx:
            found = flavors.find(tx, asked.context, flavor)
        if found.is_public:
            raise NotFound(f"Flavor {flavor} is public: every project may use it, so that it has no access list.")
        resp.media = {"flavor_access": []}


_AVAILABLE = {"available": True}


class Zones(Resource):
    """Serve ``GET /compute/v2.1/os-availability-zone``."""

    @Operation("List the availability zones", rule="os_compute_api:os-availability-zone:list", answers={200: ZONES})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        resp.media = {"availabilityZoneInfo": [{"zoneName": ZONE, "zoneState": _AVAILABLE, "hosts": None}]}


class ZonesInDetail(Resource):
    """Serve ``GET /compute/v2.1/os-availability-zone/detail``."""

    @Operation(
        "List the availability zones with their hosts",
        rule="os_compute_api:os-availability-zone:detail",
        answers={200: ZONES_IN_DETAIL},
    )
    def on_get(self, _req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        with self._api.ports.db.read() as tx:
            states = host_states(tx, self._api)
        hosts = {
            state.record.hostname: {
                BINARY: {
                    "active": not state.disabled,
                    "available": state.up,
                    "updated_at": novas_moment(state.last_seen),
                }
            }
            for state in states
        }
        resp.media = {"availabilityZoneInfo": [{"zoneName": ZONE, "zoneState": _AVAILABLE, "hosts": hosts}]}


class Versions(Resource):
    """Serve ``GET /compute``."""

    @Operation("Show the versions of the compute API", answers={200: VERSIONS})
    def on_get(self, req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        resp.media = {"versions": [_document(req, self._api.conf)]}


class V21(Resource):
    """Serve ``GET /compute/v2.1``."""

    @Operation("Show the version of the compute API", answers={200: SHOWN_VERSION})
    def on_get(self, req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        resp.media = {"version": _document(req, self._api.conf)}


def _document(req: falcon.Request, conf: Any) -> dict[str, Any]:
    return {
        "id": "v2.1",
        "status": "CURRENT",
        "version": str(COMPUTE.maximum),
        "min_version": str(COMPUTE.minimum),
        "updated": "2013-07-23T11:33:21Z",
        "links": [{"rel": "self", "href": f"{public_url(req, conf)}{ROOT}/"}],
        "media-types": [{"base": "application/json", "type": "application/vnd.openstack.compute+json;version=2.1"}],
    }
