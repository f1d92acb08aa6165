"""Serve the metadata of servers, and change texts by key.

Extra specs of flavors use the same functions. Metadata has no effect on a server.
"""

from collections.abc import Callable

import falcon
from sqlalchemy.engine import Connection

from autoclave.api.body import storable
from autoclave.api.compute.common import find
from autoclave.api.compute.server_schemas import (
    MAX_METADATA,
    SHOWN_META,
    SHOWN_METADATA,
    VALIDATE_META,
    VALIDATE_METADATA,
)
from autoclave.api.context import Api
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.db import instances as instance_rows
from autoclave.exceptions import BadRequest, NotFound

Items = dict[str, str]


def bounded(items: Items, most: int, what: str) -> Items:
    """Check *items* before they are stored.

    :param what: their name in the plural.
    :raises BadRequest: there are more than *most*, or they are too large.
    """
    if len(items) > most:
        raise BadRequest(f"There would be {len(items)} {what}; the maximum is {most}.")
    storable(items, f"The {what}")
    return items


def picked(items: Items, key: str, whose: str) -> Items:
    """Return the item with that *key*, as a mapping.

    :param whose: begins the error: "Flavor 1 has no extra spec".
    :raises NotFound: there is none.
    """
    if key not in items:
        raise NotFound(f"{whose} {key}.")
    return {key: items[key]}


def without(items: Items, key: str, whose: str) -> Items:
    """Return the other items; raise as :func:`picked`."""
    gone = picked(items, key, whose)
    return {other: value for other, value in items.items() if other not in gone}


def require_only(given: Items, key: str) -> Items:
    """Return *given*, the one item of a body.

    :raises BadRequest: its key differs from the path's.
    """
    if set(given) != {key}:
        raise BadRequest(f"The body must set {key}, as the path does, and nothing else.")
    return given


_HAS_NO = "The server has no metadata item"


class Metadata(Resource):
    """Serve ``GET``, ``POST`` and ``PUT /compute/v2.1/servers/{server}/metadata``."""

    @Operation(
        "List the metadata of a server", rule="os_compute_api:server-metadata:index", answers={200: SHOWN_METADATA}
    )
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str) -> None:
        resp.media = {"metadata": _of(self._api, asked, server)}

    @Operation(
        "Set metadata items of a server, and keep its others",
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
    """Serve ``GET``, ``PUT`` and ``DELETE /compute/v2.1/servers/{server}/metadata/{item}``."""

    @Operation(
        "Show one item of a server's metadata", rule="os_compute_api:server-metadata:show", answers={200: SHOWN_META}
    )
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str, item: str) -> None:
        resp.media = {"meta": picked(_of(self._api, asked, server), item, _HAS_NO)}

    @Operation(
        "Set one item of a server's metadata",
        rule="os_compute_api:server-metadata:update",
        body=VALIDATE_META,
        answers={200: SHOWN_META},
    )
    def on_put(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str, item: str) -> None:
        given = require_only(asked.body["meta"], item)
        _change(self._api, asked, server, lambda items: items | given)
        resp.media = {"meta": given}

    @Operation(
        "Delete one item of a server's metadata", rule="os_compute_api:server-metadata:delete", answers={204: None}
    )
    def on_delete(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str, item: str) -> None:
        _change(self._api, asked, server, lambda items: without(items, item, _HAS_NO))
        resp.status = falcon.HTTP_204


def _of(api: Api, asked: Asked, server: str) -> Items:
    with api.ports.db.read() as tx:
        return find(tx, asked.context, server).metadata


def _change(api: Api, asked: Asked, server: str, change: Callable[[Items], Items]) -> Items:
    def work(tx: Connection) -> Items:
        instance = find(tx, asked.context, server, lock=True)
        items = bounded(change(instance.metadata), MAX_METADATA, "items of metadata")
        instance_rows.update(tx, instance, {"metadata": items})
        return items

    return api.ports.db.transact(work)
