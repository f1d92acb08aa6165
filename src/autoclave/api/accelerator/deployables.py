"""``/v2/deployables``: the resource provider of each device, with its class and traits."""

import json
from typing import Any

import falcon

from autoclave.api import query, uuids
from autoclave.api.context import Api
from autoclave.api.links import public_url, self_link, timestamp
from autoclave.db import deployable_views
from autoclave.db.deployable_views import DeployableView
from autoclave.exceptions import NotFound


class Deployables:
    """``GET /v2/deployables``."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def on_get(self, req: falcon.Request, resp: falcon.Response) -> None:
        self._api.authorize(req, "cyborg:deployable:get_all")
        page = query.page(query.arguments(req, *query.PAGING))
        with self._api.ports.db.read() as tx:
            if page.marker is not None and not deployable_views.views(tx, uuid=page.marker):
                raise query.unknown_marker(page.marker)
            found = deployable_views.views(tx, after=page.marker, limit=page.limit)
        base = public_url(req, self._api.conf)
        resp.media = {"deployables": [_shown(view, base) for view in found]}


class Deployable:
    """``GET /v2/deployables/{uuid}``."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def on_get(self, req: falcon.Request, resp: falcon.Response, uuid: str) -> None:
        self._api.authorize(req, "cyborg:deployable:get_one")
        query.arguments(req)
        with self._api.ports.db.read() as tx:
            found = deployable_views.views(tx, uuid=uuids.require(uuid, "the deployable"))
        if not found:
            raise NotFound(f"Deployable not found with uuid={uuid}")
        resp.media = _shown(found[0], public_url(req, self._api.conf))


def _shown(view: DeployableView, base: str) -> dict[str, Any]:
    record = view.deployable
    return {
        "uuid": record.uuid,
        "parent_id": record.parent_id,
        "root_id": record.root_id,
        "name": record.name,
        "num_accelerators": record.num_accelerators,
        "device_id": record.device_id,
        "attributes_list": json.dumps([{key: value} for key, value in view.attributes]),
        "rp_uuid": record.rp_uuid,
        "driver_name": record.driver_name,
        "bitstream_id": record.bitstream_id,
        "links": [
            self_link(base, "deployables", record.uuid),
            {"href": f"{base}/accelerator/deployables/{record.uuid}", "rel": "bookmark"},
        ],
        "created_at": timestamp(record.created_at),
        "updated_at": timestamp(record.updated_at),
    }
