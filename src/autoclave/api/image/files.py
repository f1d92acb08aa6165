"""Serve the data of images, and the versions of the image API.

Data is uploaded once and never changes. Glance serves its version document at the root only. Clients whose endpoint
ends in ``/v2`` request it there, and follow its link.
"""

import falcon
from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.api.body import declared_type
from autoclave.api.image.images import find, find_own, store_of
from autoclave.api.image.schemas import DATA, VERSIONS
from autoclave.api.image.store import TooLarge
from autoclave.api.operation import OCTETS, Asked, Operation, Resource
from autoclave.api.query import public_url
from autoclave.db import images as image_rows
from autoclave.exceptions import BadRequest, Conflict, NotFound
from autoclave.request_body import RequestBody

LOG = logging.getLogger(__name__)

_MIB = 1 << 20


class ImageFile(Resource):
    """Serve ``GET`` and ``PUT /image/v2/images/{image}/file``."""

    @Operation(
        "Download the data of an image",
        rule="download_image",
        answers={200: DATA, 204: None},
        media_type=OCTETS,
    )
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, image: str) -> None:
        with self._api.ports.db.read() as tx:
            found = find(tx, asked.context, image)
        if found.status != image_rows.ACTIVE:
            resp.status = falcon.HTTP_204
            return
        file, size = store_of(self._api).open(found.uuid)
        resp.content_type = OCTETS
        resp.set_stream(file, size)

    @Operation(
        "Upload the data of an image, once",
        rule="upload_image",
        takes_data=True,
        answers={204: None},
        fails={
            403: "The image belongs to another project.",
            409: "The image has data already, or an upload is in progress.",
        },
    )
    def on_put(self, req: falcon.Request, resp: falcon.Response, asked: Asked, image: str) -> None:
        if declared_type(req) != OCTETS:
            raise falcon.HTTPUnsupportedMediaType(description=f"Send the data as Content-Type: {OCTETS}.")
        limit = self._api.conf.compute.max_image_size_mb * _MIB
        body = RequestBody(req.env)
        store = store_of(self._api)
        uuid = self._api.ports.db.transact(lambda tx: self._waiting(tx, asked, image))
        if body.announced is not None and body.announced > limit:
            raise self._too_large()
        with store.part(uuid) as file:
            self._api.ports.db.transact(lambda tx: self._begin(tx, uuid))
            try:
                received = store.receive(body, file, limit)
                store.keep(uuid)
            except TooLarge:
                self._wait_again(uuid)
                raise self._too_large() from None
            except Exception:
                self._wait_again(uuid)
                raise
            there = self._api.ports.db.transact(
                lambda tx: image_rows.swap_status(
                    tx,
                    uuid,
                    image_rows.SAVING,
                    image_rows.ACTIVE,
                    {"size": received.size, "checksum": received.md5, "os_hash_value": received.sha512},
                )
            )
            if there is None:
                store.path(uuid).unlink(missing_ok=True)
                raise NotFound(f"Image {image} was deleted during the upload of its data.")
        LOG.info("Upload of image %s is complete, %s bytes", uuid, received.size)
        resp.status = falcon.HTTP_204

    def _waiting(self, tx: Connection, asked: Asked, image: str) -> str:
        found = find_own(tx, asked.context, image)
        if found.status == image_rows.ACTIVE:
            raise Conflict(f"Image {image} has data already, which cannot be changed.")
        missing = [name for name in ("disk_format", "container_format") if getattr(found, name) is None]
        if missing:
            raise BadRequest(f"Image {image} must have a {' and a '.join(missing)} before you upload its data.")
        return found.uuid

    def _begin(self, tx: Connection, uuid: str) -> None:
        # A service that left it in saving has died: this upload holds the lock on the file.
        for status in (image_rows.QUEUED, image_rows.SAVING):
            if image_rows.swap_status(tx, uuid, status, image_rows.SAVING) is not None:
                return
        raise Conflict(f"Image {uuid} was uploaded or deleted concurrently.")

    def _wait_again(self, uuid: str) -> None:
        self._api.ports.db.transact(lambda tx: image_rows.swap_status(tx, uuid, image_rows.SAVING, image_rows.QUEUED))

    def _too_large(self) -> falcon.HTTPContentTooLarge:
        most = self._api.conf.compute.max_image_size_mb
        return falcon.HTTPContentTooLarge(description=f"The maximum size of an image is {most} MiB.")


class Versions(Resource):
    """Serve ``GET /image`` and ``GET /image/v2``."""

    @Operation("Show the versions of the image API", answers={200: VERSIONS})
    def on_get(self, req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        link = {"rel": "self", "href": f"{public_url(req, self._api.conf)}/image/v2/"}
        resp.media = {"versions": [{"id": "v2.17", "status": "CURRENT", "links": [link]}]}
