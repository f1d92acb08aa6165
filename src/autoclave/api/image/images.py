"""Serve ``/image/v2/images``, and apply JSON patches to images.

A caller sees its project's images and public ones, and changes those of its project only. Attributes are
distinguished from free properties: some attributes are read-only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import falcon
from oslo_db import exception as db_exc
from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.api import body, query
from autoclave.api.body import storable
from autoclave.api.context import Api
from autoclave.api.image.schemas import (
    ATTRIBUTES,
    CONTAINER_FORMATS,
    DISK_FORMATS,
    IMAGE,
    IMAGES,
    PATCH_TYPE,
    READ_ONLY,
    STATUSES,
    VALIDATE_ATTRIBUTES,
    VALIDATE_CREATE,
    VALIDATE_PATCH,
    VISIBILITIES,
)
from autoclave.api.image.store import ImageStore
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument, next_page
from autoclave.api.schema import TEXT, one_of
from autoclave.db import images as image_rows
from autoclave.db.images import ImageRecord
from autoclave.exceptions import BadRequest, Conflict, Forbidden, NotFound, StorageError
from autoclave.objects.base import RequestContext

LOG = logging.getLogger(__name__)


def require_settable(context: RequestContext, name: str, value: Any) -> None:
    """Check that the caller may set these attributes.

    :raises Forbidden: an attribute is read-only, or for administrators.
    """
    if name in READ_ONLY:
        raise Forbidden(f"Attribute '{name}' is read-only.")
    if context.is_admin:
        return
    if name == "owner" and value != context.project_id:
        raise Forbidden("Only an administrator may give an image to another project.")
    if name == "visibility" and value == image_rows.PUBLIC:
        raise Forbidden("Only an administrator may make an image public.")


def row_of(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Return the columns of an image with the attributes and properties *wanted*.

    :raises BadRequest: the properties are too large.
    """
    properties = {name: value for name, value in wanted.items() if name not in ATTRIBUTES}
    return {
        "name": wanted.get("name"),
        "disk_format": wanted.get("disk_format"),
        "container_format": wanted.get("container_format"),
        "min_disk": wanted.get("min_disk", 0),
        "min_ram": wanted.get("min_ram", 0),
        "visibility": wanted.get("visibility", "shared"),
        "protected": wanted.get("protected", False),
        "owner": wanted.get("owner"),
        "properties": storable(properties, "The image's properties"),
    }


_BEFORE_DATA = ("disk_format", "container_format")


@dataclass(frozen=True)
class Change:
    """Hold one operation of a patch."""

    op: str
    name: str
    value: Any


def parse(context: RequestContext, patch: Sequence[Mapping[str, Any]]) -> list[Change]:
    """Parse the operations of *patch*, and check that the caller may request them.

    :raises BadRequest: a value is missing, or not valid for the attribute.
    :raises Forbidden: an attribute may not be set, or not removed.
    """
    return [_parsed(context, operation) for operation in patch]


def _parsed(context: RequestContext, operation: Mapping[str, Any]) -> Change:
    op, path = operation["op"], operation["path"]
    name = path[1:].replace("~1", "/").replace("~0", "~")
    if op == "remove":
        if name in ATTRIBUTES or name in READ_ONLY:
            raise Forbidden(f"Attribute '{name}' may not be removed.")
        return Change(op, name, None)
    if "value" not in operation:
        raise BadRequest(f"The operation on {path} needs a value.")
    require_settable(context, name, operation["value"])
    try:
        body.check({name: operation["value"]}, VALIDATE_ATTRIBUTES)
    except BadRequest as error:
        raise BadRequest(f"The value for {path} cannot be set. {error}") from None
    return Change(op, name, operation["value"])


def patched(image: ImageRecord, changes: Sequence[Change]) -> dict[str, Any]:
    """Return the attributes and properties of *image* after *changes*.

    :raises Forbidden: an attribute can no longer be set.
    :raises Conflict: a value to replace or remove does not exist.
    """
    wanted = {**image.properties, **{name: getattr(image, name) for name in ATTRIBUTES}}
    for change in changes:
        if change.op != "add" and change.name not in wanted:
            raise Conflict(f"Image {image.uuid} has no property {change.name}.")
        if change.op == "remove":
            del wanted[change.name]
            continue
        if change.name in _BEFORE_DATA and image.status != image_rows.QUEUED and change.value != wanted[change.name]:
            raise Forbidden(f"Attribute '{change.name}' cannot be changed once the image has data.")
        wanted[change.name] = change.value
    return wanted


_ROOT = "/v2/images"
"""Begin links as Glance does: at the root of its versions."""


def shown(image: ImageRecord) -> dict[str, Any]:
    """Render an image as Glance does: free properties stand next to the attributes."""
    return {
        **image.properties,
        "id": image.uuid,
        "name": image.name,
        "status": image.status,
        "visibility": image.visibility,
        "owner": image.owner,
        "disk_format": image.disk_format,
        "container_format": image.container_format,
        "min_disk": image.min_disk,
        "min_ram": image.min_ram,
        "protected": image.protected,
        "size": image.size,
        "virtual_size": None,
        "checksum": image.checksum,
        "os_hash_algo": "sha512" if image.os_hash_value else None,
        "os_hash_value": image.os_hash_value,
        "os_hidden": False,
        "tags": [],
        "created_at": image.created_at,
        "updated_at": image.updated_at or image.created_at,
        "self": f"{_ROOT}/{image.uuid}",
        "file": f"{_ROOT}/{image.uuid}/file",
        "schema": "/v2/schemas/image",
    }


def shown_list(req: falcon.Request, images: Sequence[ImageRecord]) -> dict[str, Any]:
    """Return the requested images, and the link to the next page."""
    answer: dict[str, Any] = {"images": [shown(image) for image in images]}
    following = next_page(req, [image.uuid for image in images])
    return answer if following is None else {**answer, "next": f"{_ROOT}?{following}"}


def find(tx: Connection, context: RequestContext, image: str, *, lock: bool = False) -> ImageRecord:
    """Return the image with the uuid *image*.

    :raises NotFound: no such image is visible to the caller. A name is not accepted.
    """
    uuid = query.canonical(image)
    found = None if uuid is None else image_rows.get(tx, uuid, lock=lock)
    if found is None or not (context.is_admin or found.visibility == image_rows.PUBLIC or _owns(context, found)):
        raise NotFound(f"No image found with ID {image}")
    return found


def find_own(tx: Connection, context: RequestContext, image: str) -> ImageRecord:
    """Return the image as :func:`find`, with its row locked.

    :raises Forbidden: it belongs to another project.
    """
    found = find(tx, context, image, lock=True)
    if not (context.is_admin or _owns(context, found)):
        raise Forbidden(f"Image {image} belongs to another project.")
    return found


def _owns(context: RequestContext, image: ImageRecord) -> bool:
    # "no project" must not turn into "an image of no project"
    return context.project_id is not None and image.owner == context.project_id


_ALL = "all"
_FILTERS = (
    Argument("name", "Only images with this name."),
    Argument("status", "Only images in this status.", one_of(STATUSES)),
    Argument(
        "visibility",
        "Only images with this visibility; all, the default, for every visibility. No image has visibility community.",
        one_of([*VISIBILITIES, "community", _ALL]),
    ),
    Argument("owner", "Only images of this project."),
    Argument("disk_format", "Only images in this disk format.", one_of(DISK_FORMATS)),
    Argument("container_format", "Only images in this container format.", one_of(CONTAINER_FORMATS)),
)
_PROTECTED = Argument(
    "protected", "Only images that are protected, or that are not.", one_of(["true", "false", "True", "False"])
)
_HIDDEN = Argument(
    "os_hidden",
    "true: only hidden images, of which there are none; false: all others.",
    one_of(["true", "false", "True", "False"]),
)
_MEMBER_STATUS = Argument(
    "member_status",
    "Accepted without effect: images have no members.",
    one_of(["accepted", "pending", "rejected", "all"]),
)
_ID = Argument(
    "id",
    "Only the image with this UUID or, with 'in:' before them, the images with these UUIDs, separated by commas.",
    TEXT,
)
_LIMIT = query.limit(0, "Maximum number of rows, none with 0; all by default.")
_NOT_YOURS = "The image belongs to another project or is protected, or the attribute cannot be set."


class Images(Resource):
    """Serve ``GET`` and ``POST /image/v2/images``."""

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
        "Create an image, before its data is uploaded",
        rule="add_image",
        body=VALIDATE_CREATE,
        answers={201: IMAGE},
        fails={
            403: "The caller may not set this visibility, this owner or a read-only attribute.",
            409: "An image with this ID exists already.",
        },
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
    """Serve ``GET``, ``PATCH`` and ``DELETE /image/v2/images/{image}``."""

    @Operation("Show an image", rule="get_image", answers={200: IMAGE})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, image: str) -> None:
        with self._api.ports.db.read() as tx:
            resp.media = shown(find(tx, asked.context, image))

    @Operation(
        "Change attributes and properties of an image, all of them or none",
        rule="modify_image",
        body=VALIDATE_PATCH,
        body_type=PATCH_TYPE,
        answers={200: IMAGE},
        fails={403: _NOT_YOURS, 409: "A property to replace or remove does not exist."},
    )
    def on_patch(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, image: str) -> None:
        changes = parse(asked.context, asked.body)

        def change(tx: Connection) -> ImageRecord:
            found = find_own(tx, asked.context, image)
            image_rows.update(tx, found, row_of(patched(found, changes)))
            return find(tx, asked.context, image)

        resp.media = shown(self._api.ports.db.transact(change))

    @Operation(
        "Delete an image with its data; existing instances keep their disks",
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
        except StorageError as error:  # the image is deleted all the same
            LOG.error(
                "Data of image %s could not be removed; the next deletion of an image retries it: %s", image, error
            )
        resp.status = falcon.HTTP_204

    def _all(self) -> set[str]:
        with self._api.ports.db.read() as tx:
            return image_rows.all_uuids(tx)


def store_of(api: Api) -> ImageStore:
    """Return the store of this deployment's images."""
    return ImageStore(Path(api.conf.agent.data_dir) / "images")


def _uuids(text: str) -> list[str]:
    found = text.removeprefix("in:").split(",") if text.startswith("in:") else [text]
    return [uuid for uuid in map(query.canonical, found) if uuid is not None]


def _require_marker(tx: Connection, context: RequestContext, marker: str) -> None:
    try:
        find(tx, context, marker)
    except NotFound:
        raise query.unknown_marker(marker) from None
