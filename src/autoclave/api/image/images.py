"""``/image/v2/images``: what guests are started from."""

from pathlib import Path
from typing import Any
from uuid import uuid4

import falcon
from oslo_db import exception as db_exc
from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.api import query, uuids
from autoclave.api.context import Api
from autoclave.api.image.attributes import require_settable, row_of
from autoclave.api.image.patches import parse, patched
from autoclave.api.image.schemas import (
    CONTAINER_FORMATS,
    DISK_FORMATS,
    IMAGE,
    IMAGES,
    PATCH_TYPE,
    STATUSES,
    VALIDATE_CREATE,
    VALIDATE_PATCH,
    VISIBILITIES,
)
from autoclave.api.image.store import ImageStore
from autoclave.api.image.views import shown, shown_list
from autoclave.api.image.visible import find, find_own
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument
from autoclave.api.schema import TEXT, one_of
from autoclave.db import images as image_rows
from autoclave.db.images import ImageRecord
from autoclave.exceptions import Conflict, Forbidden, NotFound, StorageError
from autoclave.objects.base import RequestContext

LOG = logging.getLogger(__name__)

_ALL = "all"
_FILTERS = (
    Argument("name", "Only those with this name."),
    Argument("status", "Only those in this status.", one_of(STATUSES)),
    Argument(
        "visibility",
        "Only those with this visibility; all, as without it, for every one. None is a community's.",
        one_of([*VISIBILITIES, "community", _ALL]),
    ),
    Argument("owner", "Only those of this project."),
    Argument("disk_format", "Only those in this format.", one_of(DISK_FORMATS)),
    Argument("container_format", "Only those in this container.", one_of(CONTAINER_FORMATS)),
)
_PROTECTED = Argument(
    "protected", "Only those that are protected, or are not.", one_of(["true", "false", "True", "False"])
)
_HIDDEN = Argument(
    "os_hidden", "Only those that are hidden: none; false for all others.", one_of(["true", "false", "True", "False"])
)
_MEMBER_STATUS = Argument(
    "member_status",
    "Heeded as far as can be: there are no members.",
    one_of(["accepted", "pending", "rejected", "all"]),
)
_ID = Argument(
    "id", "Only the one with this uuid, or with 'in:' in front, those with these, separated by commas.", TEXT
)
_LIMIT = query.limit(0, "Rows at most, so none with 0; without it, all of them.")
_NOT_YOURS = "It is another project's, or it may not be set, or it is protected."


class Images(Resource):
    """``GET`` and ``POST /image/v2/images``."""

    @Operation(
        "List the images that the caller may use, the newest first",
        rule="get_images",
        query=(_ID, *_FILTERS, _PROTECTED, _HIDDEN, _MEMBER_STATUS, _LIMIT, query.MARKER),
        answers={200: IMAGES},
    )
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        context, page = asked.context, query.page(asked.query)
        filters: dict[str, Any] = {one.name: asked.query[one.name] for one in _FILTERS if one.name in asked.query}
        if filters.get("visibility") == _ALL:
            del filters["visibility"]
        if "protected" in asked.query:
            filters["protected"] = asked.query["protected"].lower() == "true"
        wanted = _uuids(asked.query["id"]) if "id" in asked.query else None
        if asked.query.get("os_hidden", "").lower() == "true":
            wanted = []
        with self._api.ports.db.read() as tx:
            if page.marker is not None:
                _require_marker(tx, context, page.marker)
            found = image_rows.list_for(
                tx,
                # "no project" must not turn into "no filter"
                project_id=None if context.is_admin else context.project_id or "",
                uuids=wanted,
                filters=filters,
                after=page.marker,
                limit=page.limit,
            )
        resp.media = shown_list(req, found)

    @Operation(
        "Make an image; its data follows",
        rule="add_image",
        body=VALIDATE_CREATE,
        answers={201: IMAGE},
        fails={403: "Its visibility, its owner or a read-only attribute may not be set.", 409: "The id is taken."},
    )
    def on_post(self, _req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        context, wanted = asked.context, dict(asked.body)
        uuid = str(wanted.pop("id", uuid4())).lower()
        wanted.pop("tags", None)
        for name, value in wanted.items():
            require_settable(context, name, value)
        row = {"uuid": uuid, "status": image_rows.QUEUED, **row_of({"owner": context.project_id, **wanted})}

        def make(tx: Connection) -> ImageRecord:
            image_rows.insert(tx, row)
            return find(tx, context, uuid)

        try:
            image = self._api.ports.db.transact(make)
        except db_exc.DBDuplicateEntry:
            raise Conflict(f"Image ID {uuid} already exists!") from None
        resp.status = falcon.HTTP_201
        resp.location = f"/image/v2/images/{uuid}"
        resp.media = shown(image)


class Image(Resource):
    """``GET``, ``PATCH`` and ``DELETE /image/v2/images/{image}``."""

    @Operation("Show an image", rule="get_image", answers={200: IMAGE})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, image: str) -> None:
        with self._api.ports.db.read() as tx:
            resp.media = shown(find(tx, asked.context, image))

    @Operation(
        "Change attributes and properties of an image: all that are named, or none",
        rule="modify_image",
        body=VALIDATE_PATCH,
        body_type=PATCH_TYPE,
        answers={200: IMAGE},
        fails={403: _NOT_YOURS, 409: "What is to be replaced or removed is not there."},
    )
    def on_patch(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, image: str) -> None:
        changes = parse(asked.context, asked.body)

        def change(tx: Connection) -> ImageRecord:
            found = find_own(tx, asked.context, image)
            image_rows.update(tx, found, row_of(patched(found, changes)))
            return find(tx, asked.context, image)

        resp.media = shown(self._api.ports.db.transact(change))

    @Operation(
        "Delete an image with its data; instances keep what they have of it",
        rule="delete_image",
        answers={204: None},
        fails={403: _NOT_YOURS},
    )
    def on_delete(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, image: str) -> None:
        def delete(tx: Connection) -> None:
            found = find_own(tx, asked.context, image)
            if found.protected:
                raise Forbidden(f"Image {image} is protected and cannot be deleted.")
            image_rows.delete(tx, found.uuid)

        self._api.ports.db.transact(delete)
        try:
            store_of(self._api).remove_strangers(self._all)
        except StorageError as error:  # the image is gone all the same
            LOG.error("The data of image %s is removed with that of the next image: %s", image, error)
        resp.status = falcon.HTTP_204

    def _all(self) -> set[str]:
        with self._api.ports.db.read() as tx:
            return image_rows.all_uuids(tx)


def store_of(api: Api) -> ImageStore:
    """The files of this deployment's images."""
    return ImageStore(Path(api.conf.agent.data_dir) / "images")


def _uuids(text: str) -> list[str]:
    found = text.removeprefix("in:").split(",") if text.startswith("in:") else [text]
    return [uuid for uuid in map(uuids.canonical, found) if uuid is not None]


def _require_marker(tx: Connection, context: RequestContext, marker: str) -> None:
    try:
        find(tx, context, marker)
    except NotFound:
        raise query.unknown_marker(marker) from None
