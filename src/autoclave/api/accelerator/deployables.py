"""Serve ``/v2/deployables``: the resource provider of each device, with its class and traits."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import falcon

from autoclave.api import query
from autoclave.api.accelerator import devices
from autoclave.api.body import compiled
from autoclave.api.context import Api
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import public_url, resource_link
from autoclave.api.schema import INTEGER, LINKS, STRING, TIMESTAMP, UUID, listed, nullable, shape
from autoclave.db import device_views
from autoclave.db.device_views import Attributes, DeployableRow
from autoclave.exceptions import BadRequest, NotFound

PROGRAM: dict[str, Any] = {
    "type": "array",
    "minItems": 1,
    "maxItems": 1,
    "x-message": "must be a list of exactly one operation",
    "items": {
        "type": "object",
        "required": ["path", "op", "value"],
        "additionalProperties": False,
        "properties": {
            # openstackclient sends the second one.
            "path": {"enum": ["/bitstream_id", "/program"]},
            "op": {"enum": ["replace"]},
            "value": {
                "type": "array",
                "minItems": 1,
                "maxItems": 1,
                "x-message": "must be a list of exactly one image, as [{'image_uuid': uuid}]",
                "items": {
                    "type": "object",
                    "required": ["image_uuid"],
                    "additionalProperties": False,
                    "properties": {"image_uuid": UUID},
                },
            },
        },
    },
}
VALIDATE_PROGRAM = compiled(PROGRAM)

DEPLOYABLE = shape(
    "Deployable",
    {
        "uuid": UUID,
        "parent_id": nullable(INTEGER),
        "root_id": nullable(INTEGER),
        "name": STRING,
        "num_accelerators": INTEGER,
        "device_id": INTEGER,
        "attributes_list": {**STRING, "description": "A list of objects with one key each, written as JSON."},
        "rp_uuid": UUID,
        "driver_name": STRING,
        "bitstream_id": nullable(STRING),
        "links": LINKS,
        "created_at": nullable(TIMESTAMP),
        "updated_at": nullable(TIMESTAMP),
    },
)
DEPLOYABLES = listed("Deployables", "deployables", DEPLOYABLE)

_SORT_KEYS = ("created_at", "updated_at", "uuid", "name", "num_accelerators", "device_id", "driver_name")


class Deployables(Resource):
    """Serve ``GET /v2/deployables``."""

    @Operation(
        "List the deployables", rule="cyborg:deployable:get_all", query=devices.ARGUMENTS, answers={200: DEPLOYABLES}
    )
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        wanted = devices.listing_of(req, asked.query, sort_keys=_SORT_KEYS)
        page = wanted.page
        with self._api.ports.db.read() as tx:
            if page.marker is not None and not device_views.views(tx, uuid=page.marker)[0]:
                raise query.unknown_marker(page.marker)
            found, attributes = device_views.views(
                tx, related=wanted.related, order=wanted.order, after=page.marker, limit=page.limit
            )
        resp.media = {"deployables": _shown(found, attributes, public_url(req, self._api.conf))}


class Deployable(Resource):
    """Serve ``GET /v2/deployables/{uuid}``."""

    @Operation("Show a deployable", rule="cyborg:deployable:get_one", answers={200: DEPLOYABLE})
    def on_get(self, req: falcon.Request, resp: falcon.Response, _asked: Asked, uuid: str) -> None:
        found, attributes = _find(self._api, uuid)
        [resp.media] = _shown([found], attributes, public_url(req, self._api.conf))


class DeployableProgram(Resource):
    """Check ``PATCH /v2/deployables/{uuid}/program``, and refuse it.

    It requests another bitstream for an FPGA; no driver can write one.
    """

    @Operation("Program another bitstream", rule="cyborg:deployable:program", body=VALIDATE_PROGRAM)
    def on_patch(self, _req: falcon.Request, _resp: falcon.Response, _asked: Asked, uuid: str) -> None:
        found, _ = _find(self._api, uuid)
        raise BadRequest(
            f"Deployable {found.uuid} cannot be programmed: its driver {found.driver_name} does not support "
            "programming."
        )


def _find(api: Api, uuid: str) -> tuple[DeployableRow, Attributes]:
    with api.ports.db.read() as tx:
        found, attributes = device_views.views(tx, uuid=query.require(uuid, "the deployable"))
    if not found:
        raise NotFound(f"Deployable not found with uuid={uuid}")
    return found[0], attributes


def _shown(found: Sequence[DeployableRow], attributes: Attributes, base: str) -> list[dict[str, Any]]:
    link, bookmark = resource_link(base, "deployables"), f"{base}/accelerator/deployables/"
    return [
        {
            "uuid": row.uuid,
            "parent_id": row.parent_id,
            "root_id": row.root_id,
            "name": row.name,
            "num_accelerators": row.num_accelerators,
            "device_id": row.device_id,
            "attributes_list": _attributes_list(attributes.get(row.id, ())),
            "rp_uuid": row.rp_uuid,
            "driver_name": row.driver_name,
            "bitstream_id": row.bitstream_id,
            "links": [{"href": link + row.uuid, "rel": "self"}, {"href": bookmark + row.uuid, "rel": "bookmark"}],
            "created_at": row.created_at,
            "updated_at": row.updated_at,
        }
        for row in found
    ]


@lru_cache(maxsize=1024)
def _written(attributes: tuple[tuple[str, str], ...]) -> str:
    return json.dumps([{key: value} for key, value in attributes])


def _attributes_list(attributes: Sequence[tuple[str, str]]) -> str:
    """Return JSON text, which Cyborg's clients parse themselves.

    Devices of one kind share the text, so it is rarely rendered anew.
    """
    return _written(tuple(attributes))
