"""``/compute/v2.1/servers/{server}/metadata``: what users note of their servers; nothing here reads it."""

from collections.abc import Callable

import falcon
from sqlalchemy.engine import Connection

from autoclave.api.body import storable
from autoclave.api.compute.visible import find
from autoclave.api.context import Api
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.schemas.servers import (
    MAX_METADATA,
    SHOWN_META,
    SHOWN_METADATA,
    VALIDATE_META,
    VALIDATE_METADATA,
)
from autoclave.db import instances as instance_rows
from autoclave.exceptions import BadRequest, NotFound

Items = dict[str, str]


class Metadata(Resource):
    """``GET``, ``POST`` and ``PUT /compute/v2.1/servers/{server}/metadata``."""

    @Operation(
        "List the metadata of a server", rule="os_compute_api:server-metadata:index", answers={200: SHOWN_METADATA}
    )
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str) -> None:
        resp.media = {"metadata": _of(self._api, asked, server)}

    @Operation(
        "Set metadata of a server, and leave what else there is",
        rule="os_compute_api:server-metadata:create",
        body=VALIDATE_METADATA,
        answers={200: SHOWN_METADATA},
    )
    def on_post(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str) -> None:
        given: Items = asked.body["metadata"]
        resp.media = {"metadata": _change(self._api, asked, server, lambda items: items | given)}

    @Operation(
        "Replace the metadata of a server",
        rule="os_compute_api:server-metadata:update_all",
        body=VALIDATE_METADATA,
        answers={200: SHOWN_METADATA},
    )
    def on_put(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str) -> None:
        given: Items = asked.body["metadata"]
        resp.media = {"metadata": _change(self._api, asked, server, lambda _items: given)}


class Item(Resource):
    """``GET``, ``PUT`` and ``DELETE /compute/v2.1/servers/{server}/metadata/{item}``."""

    @Operation(
        "Show one item of a server's metadata", rule="os_compute_api:server-metadata:show", answers={200: SHOWN_META}
    )
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str, item: str) -> None:
        items = _of(self._api, asked, server)
        _require(items, item)
        resp.media = {"meta": {item: items[item]}}

    @Operation(
        "Set one item of a server's metadata",
        rule="os_compute_api:server-metadata:update",
        body=VALIDATE_META,
        answers={200: SHOWN_META},
    )
    def on_put(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str, item: str) -> None:
        given: Items = asked.body["meta"]
        if set(given) != {item}:
            raise BadRequest(f"The body must set {item}, as the path does, and nothing else.")
        _change(self._api, asked, server, lambda items: items | given)
        resp.media = {"meta": given}

    @Operation(
        "Delete one item of a server's metadata", rule="os_compute_api:server-metadata:delete", answers={204: None}
    )
    def on_delete(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str, item: str) -> None:
        def without(items: Items) -> Items:
            _require(items, item)
            return {key: value for key, value in items.items() if key != item}

        _change(self._api, asked, server, without)
        resp.status = falcon.HTTP_204


def _of(api: Api, asked: Asked, server: str) -> Items:
    with api.ports.db.read() as tx:
        return find(tx, asked.context, server).metadata


def _change(api: Api, asked: Asked, server: str, change: Callable[[Items], Items]) -> Items:
    def work(tx: Connection) -> Items:
        instance = find(tx, asked.context, server, lock=True)
        items = change(instance.metadata)
        if len(items) > MAX_METADATA:
            raise BadRequest(f"The server would have {len(items)} items of metadata; {MAX_METADATA} is the most.")
        instance_rows.update(tx, instance, {"metadata": storable(items, "The metadata")})
        return items

    return api.ports.db.transact(work)


def _require(items: Items, item: str) -> None:
    if item not in items:
        raise NotFound(f"The server has no metadata item {item}.")
