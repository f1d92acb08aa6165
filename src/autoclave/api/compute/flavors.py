"""Serve ``/compute/v2.1/flavors``.

A caller without the role ``admin`` sees public flavors only; there are no access lists. Flavors and servers show
extra specs to callers that may list them.
"""

from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import falcon
from oslo_db import exception as db_exc
from sqlalchemy.engine import Connection

from autoclave.api import query
from autoclave.api.body import compiled
from autoclave.api.compute import common
from autoclave.api.compute.common import (
    DESCRIPTION,
    MAP_OF_TEXTS,
    MAX_NUMBER,
    NAME,
    envelope,
    links_to,
    next_link,
    number,
    paged,
    texts,
)
from autoclave.api.context import Api
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument
from autoclave.api.schema import BOOLEAN, INTEGER, LINKS, NUMBER, STRING, nullable, one_of, optional, shape
from autoclave.db import flavors as flavor_rows
from autoclave.db.flavors import FlavorRecord
from autoclave.exceptions import Conflict, NotFound
from autoclave.objects.base import RequestContext

MAX_SPECS = 128
_SPECS = texts(
    r"^[a-zA-Z0-9_:. -]{1,255}$(?!\n)", MAX_SPECS, "has 1 to 255 letters, digits, spaces and characters of '_:.-'"
)
SPEC_KEY: dict[str, Any] = dict(_SPECS["propertyNames"])

_NEW: dict[str, Any] = {
    "type": "object",
    "required": ["name", "ram", "vcpus", "disk"],
    "additionalProperties": False,
    "properties": {
        "id": {
            "type": ["string", "null"],
            "pattern": r"^(?=.*[^ ])[a-zA-Z0-9. _-]{1,255}$(?!\n)",
            "x-message": "must be null or 'auto' for a new one, or have 1 to 255 letters, digits, spaces and '._-'",
        },
        "name": NAME,
        "ram": number(1),
        "vcpus": number(1),
        "disk": number(0),
        "swap": number(0),
        "OS-FLV-EXT-DATA:ephemeral": number(0),
        "rxtx_factor": {"type": "number", "exclusiveMinimum": 0, "maximum": 1e9, "x-message": "must be above 0"},
        "os-flavor-access:is_public": {"type": "boolean", "x-message": "must be true or false"},
        "description": DESCRIPTION,
    },
}
VALIDATE_CREATE = compiled(envelope("flavor", _NEW))
VALIDATE_UPDATE = compiled(
    envelope(
        "flavor",
        {
            "type": "object",
            "required": ["description"],
            "additionalProperties": False,
            "properties": {"description": DESCRIPTION},
        },
    )
)
VALIDATE_SPECS = compiled(envelope("extra_specs", {**_SPECS, "minProperties": 1}))
VALIDATE_SPEC = compiled({**_SPECS, "minProperties": 1, "maxProperties": 1})

FLAVOR = shape(
    "Flavor",
    {
        "id": STRING,
        "name": STRING,
        "ram": INTEGER,
        "vcpus": INTEGER,
        "disk": INTEGER,
        "swap": INTEGER,
        "OS-FLV-EXT-DATA:ephemeral": INTEGER,
        "OS-FLV-DISABLED:disabled": BOOLEAN,
        "os-flavor-access:is_public": BOOLEAN,
        "rxtx_factor": NUMBER,
        "description": nullable(STRING),
        "extra_specs": optional(MAP_OF_TEXTS),
        "links": LINKS,
    },
)
SHOWN_FLAVOR = shape("ShownFlavor", {"flavor": FLAVOR})
FLAVORS_IN_DETAIL = paged("FlavorsInDetail", "flavors", FLAVOR)
FLAVORS = paged(
    "Flavors",
    "flavors",
    shape("FlavorSummary", {"id": STRING, "name": STRING, "description": nullable(STRING), "links": LINKS}),
)
SPECS = shape("ExtraSpecs", {"extra_specs": MAP_OF_TEXTS})
SPEC = MAP_OF_TEXTS


def sees_extra_specs(api: Api, context: RequestContext) -> bool:
    """Return whether *context* may see the extra specs of flavors."""
    return api.policy.allows(context, "os_compute_api:os-flavor-extra-specs:index")


_WHICH = {"true": True, "1": True, "false": False, "0": False, "none": None}
_LEAST: dict[str, Any] = {
    "type": "integer",
    "minimum": 0,
    "maximum": MAX_NUMBER,
    "x-message": f"must be a whole number from 0 to {MAX_NUMBER}",
}
_LIST = (
    Argument(
        "is_public",
        "Only public flavors, only others, or None for both; public by default. Ignored for callers without the "
        "role admin.",
        one_of(["True", "False", "None", "true", "false", "none", "1", "0"]),
    ),
    Argument("minRam", "Only flavors with at least this memory, in MiB.", _LEAST),
    Argument("minDisk", "Only flavors with at least this disk, in GiB.", _LEAST),
    common.LIMIT,
    Argument("marker", "ID of the last flavor of the previous page."),
)


class _List(Resource):
    def _found(self, asked: Asked) -> list[FlavorRecord]:
        page = common.page(asked.query)
        public = _WHICH[asked.query.get("is_public", "true").lower()] if asked.context.is_admin else True
        with self._api.ports.db.read() as tx:
            if page.marker is not None and _visible(tx, asked.context, page.marker) is None:
                raise query.unknown_marker(page.marker)
            return flavor_rows.list_all(
                tx,
                is_public=public,
                min_ram=int(asked.query.get("minRam", 0)),
                min_disk=int(asked.query.get("minDisk", 0)),
                after=page.marker,
                limit=page.limit,
            )

    def _further(self, req: falcon.Request, found: Sequence[FlavorRecord]) -> dict[str, Any]:
        return next_link(req, self._api.conf, "flavors", [flavor.flavorid for flavor in found])


class Flavors(_List):
    """Serve ``GET`` and ``POST /compute/v2.1/flavors``."""

    @Operation("List the flavors", query=_LIST, answers={200: FLAVORS})
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        found = self._found(asked)
        flavors = [
            {
                "id": flavor.flavorid,
                "name": flavor.name,
                "description": flavor.description,
                "links": links_to(req, self._api.conf, "flavors", flavor.flavorid),
            }
            for flavor in found
        ]
        resp.media = {"flavors": flavors, **self._further(req, found)}

    @Operation(
        "Create a flavor",
        rule="os_compute_api:os-flavor-manage:create",
        body=VALIDATE_CREATE,
        answers={200: SHOWN_FLAVOR},
        fails={409: "A flavor with this name or ID exists already."},
    )
    def on_post(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        wanted = asked.body["flavor"]
        flavorid = wanted.get("id")
        values = {
            "flavorid": str(uuid4()) if flavorid in (None, "auto") else flavorid,
            "name": wanted["name"],
            "ram": wanted["ram"],
            "vcpus": wanted["vcpus"],
            "disk": wanted["disk"],
            "swap": wanted.get("swap", 0),
            "ephemeral": wanted.get("OS-FLV-EXT-DATA:ephemeral", 0),
            "rxtx_factor": wanted.get("rxtx_factor", 1.0),
            "is_public": wanted.get("os-flavor-access:is_public", True),
            "description": wanted.get("description"),
            "extra_specs": {},
        }

        def make(tx: Connection) -> FlavorRecord:
            flavor_rows.insert(tx, values)
            return find(tx, asked.context, str(values["flavorid"]))

        try:
            flavor = self._api.ports.db.transact(make)
        except db_exc.DBDuplicateEntry:
            by_id = f" or the id {flavorid}" if flavorid == values["flavorid"] else ""
            raise Conflict(f"A flavor with the name {values['name']}{by_id} exists already.") from None
        [view] = _shown(req, self._api, asked.context, [flavor])
        resp.media = {"flavor": view}


class FlavorsInDetail(_List):
    """Serve ``GET /compute/v2.1/flavors/detail``."""

    @Operation("List the flavors in detail", query=_LIST, answers={200: FLAVORS_IN_DETAIL})
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        found = self._found(asked)
        flavors = _shown(req, self._api, asked.context, found)
        resp.media = {"flavors": flavors, **self._further(req, found)}


class Flavor(Resource):
    """Serve ``GET``, ``PUT`` and ``DELETE /compute/v2.1/flavors/{flavor}``."""

    @Operation("Show a flavor", answers={200: SHOWN_FLAVOR})
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked, flavor: str) -> None:
        with self._api.ports.db.read() as tx:
            found = find(tx, asked.context, flavor)
        [view] = _shown(req, self._api, asked.context, [found])
        resp.media = {"flavor": view}

    @Operation(
        "Change the description of a flavor",
        rule="os_compute_api:os-flavor-manage:update",
        body=VALIDATE_UPDATE,
        answers={200: SHOWN_FLAVOR},
    )
    def on_put(self, req: falcon.Request, resp: falcon.Response, asked: Asked, flavor: str) -> None:
        def describe(tx: Connection) -> FlavorRecord:
            flavor_rows.update(
                tx, find(tx, asked.context, flavor), {"description": asked.body["flavor"]["description"]}
            )
            return find(tx, asked.context, flavor)

        changed = self._api.ports.db.transact(describe)
        [view] = _shown(req, self._api, asked.context, [changed])
        resp.media = {"flavor": view}

    @Operation(
        "Delete a flavor; existing instances keep its values",
        rule="os_compute_api:os-flavor-manage:delete",
        answers={202: None},
    )
    def on_delete(self, _req: falcon.Request, resp: falcon.Response, _asked: Asked, flavor: str) -> None:
        if not (flavor.isprintable() and self._api.ports.db.transact(lambda tx: flavor_rows.delete(tx, flavor))):
            raise _unknown(flavor)
        resp.status = falcon.HTTP_202


def find(tx: Connection, context: RequestContext, flavorid: str, *, lock: bool = False) -> FlavorRecord:
    """Return the flavor with the id *flavorid*.

    :raises NotFound: no such flavor is visible to the caller.
    """
    found = _visible(tx, context, flavorid, lock=lock)
    if found is None:
        raise _unknown(flavorid)
    return found


def _visible(tx: Connection, context: RequestContext, flavorid: str, *, lock: bool = False) -> FlavorRecord | None:
    # PostgreSQL refuses NUL in a text, even in a query
    found = flavor_rows.get(tx, flavorid, lock=lock) if flavorid.isprintable() else None
    return found if found is not None and (found.is_public or context.is_admin) else None


def _unknown(flavorid: str) -> NotFound:
    return NotFound(f"Flavor {flavorid} could not be found.")


def _shown(
    req: falcon.Request, api: Api, context: RequestContext, flavors: Sequence[FlavorRecord]
) -> list[dict[str, Any]]:
    sees_specs = sees_extra_specs(api, context)
    return [
        {
            "id": flavor.flavorid,
            "name": flavor.name,
            "ram": flavor.ram,
            "vcpus": flavor.vcpus,
            "disk": flavor.disk,
            "swap": flavor.swap,
            "OS-FLV-EXT-DATA:ephemeral": flavor.ephemeral,
            "OS-FLV-DISABLED:disabled": False,
            "os-flavor-access:is_public": flavor.is_public,
            "rxtx_factor": flavor.rxtx_factor,
            "description": flavor.description,
            "links": links_to(req, api.conf, "flavors", flavor.flavorid),
            **({"extra_specs": flavor.extra_specs} if sees_specs else {}),
        }
        for flavor in flavors
    ]
