"""``/image/v2/images/{image}/tags/{tag}``: one tag of an image; all of them are an attribute of it."""

from collections.abc import Callable

import falcon
from sqlalchemy.engine import Connection

from autoclave.api.body import storable
from autoclave.api.context import Api
from autoclave.api.image.visible import find_own
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.schemas.images import MAX_TAGS, VALIDATE_TAG
from autoclave.api.tags import with_tag, without_tag
from autoclave.db import images as image_rows

_NOT_YOURS = {403: "It is another project's."}


class ImageTag(Resource):
    """``PUT`` and ``DELETE /image/v2/images/{image}/tags/{tag}``."""

    @Operation("Give an image a tag", rule="modify_image", answers={204: None}, fails=_NOT_YOURS)
    def on_put(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, image: str, tag: str) -> None:
        _change(self._api, asked, image, lambda tags: with_tag(tags, tag, VALIDATE_TAG, MAX_TAGS))
        resp.status = falcon.HTTP_204

    @Operation("Take a tag from an image", rule="modify_image", answers={204: None}, fails=_NOT_YOURS)
    def on_delete(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, image: str, tag: str) -> None:
        _change(self._api, asked, image, lambda tags: without_tag(tags, tag))
        resp.status = falcon.HTTP_204


def _change(api: Api, asked: Asked, image: str, change: Callable[[list[str]], list[str]]) -> None:
    def work(tx: Connection) -> None:
        found = find_own(tx, asked.context, image)
        image_rows.update(tx, found, {"tags": storable(change(found.tags), "The image's tags")})

    api.ports.db.transact(work)
