"""``/compute/v2.1/servers/{server}/tags``: words by which users find their servers again; nothing else reads them."""

from collections.abc import Callable

import falcon
from sqlalchemy.engine import Connection

from autoclave.api.compute.links import links_to
from autoclave.api.compute.visible import find
from autoclave.api.context import Api
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.schemas.servers import MAX_TAGS, SHOWN_TAGS, VALIDATE_TAG, VALIDATE_TAGS
from autoclave.api.tags import require_tag, with_tag, without_tag
from autoclave.db import instances as instance_rows

_RULE = "os_compute_api:os-server-tags"


class Tags(Resource):
    """``GET``, ``PUT`` and ``DELETE /compute/v2.1/servers/{server}/tags``."""

    @Operation("List the tags of a server", rule=f"{_RULE}:index", answers={200: SHOWN_TAGS})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str) -> None:
        resp.media = {"tags": _of(self._api, asked, server)}

    @Operation(
        "Replace the tags of a server", rule=f"{_RULE}:update_all", body=VALIDATE_TAGS, answers={200: SHOWN_TAGS}
    )
    def on_put(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str) -> None:
        _change(self._api, asked, server, lambda _tags: asked.body["tags"])
        resp.media = {"tags": asked.body["tags"]}

    @Operation("Delete the tags of a server", rule=f"{_RULE}:delete_all", answers={204: None})
    def on_delete(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str) -> None:
        _change(self._api, asked, server, lambda _tags: [])
        resp.status = falcon.HTTP_204


class Tag(Resource):
    """``GET``, ``PUT`` and ``DELETE /compute/v2.1/servers/{server}/tags/{tag}``."""

    @Operation("Say whether a server has a tag: 404 if not", rule=f"{_RULE}:show", answers={204: None})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str, tag: str) -> None:
        require_tag(_of(self._api, asked, server), tag)
        resp.status = falcon.HTTP_204

    @Operation("Give a server a tag", rule=f"{_RULE}:update", answers={201: None, 204: None})
    def on_put(self, req: falcon.Request, resp: falcon.Response, asked: Asked, server: str, tag: str) -> None:
        if _change(self._api, asked, server, lambda tags: with_tag(tags, tag, VALIDATE_TAG, MAX_TAGS)):
            resp.status = falcon.HTTP_201
            resp.location = f"{links_to(req, self._api.conf, 'servers', server)[0]['href']}/tags/{tag}"
        else:
            resp.status = falcon.HTTP_204

    @Operation("Take a tag from a server", rule=f"{_RULE}:delete", answers={204: None})
    def on_delete(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, server: str, tag: str) -> None:
        _change(self._api, asked, server, lambda tags: without_tag(tags, tag))
        resp.status = falcon.HTTP_204


def _of(api: Api, asked: Asked, server: str) -> list[str]:
    with api.ports.db.read() as tx:
        return find(tx, asked.context, server).tags


def _change(api: Api, asked: Asked, server: str, change: Callable[[list[str]], list[str]]) -> bool:
    def work(tx: Connection) -> bool:
        instance = find(tx, asked.context, server, lock=True)
        tags = change(instance.tags)
        if tags == instance.tags:
            return False
        instance_rows.update(tx, instance, {"tags": tags})
        return True

    return api.ports.db.transact(work)
