"""Images: what guests are started from, and what their properties ask for. The data is in files beside the database."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.columns import utcnow
from autoclave.db.query import NEWEST_FIRST, columns, fetch_all, fetch_one, paged
from autoclave.db.tables import images

QUEUED = "queued"
"""It has no data yet."""
SAVING = "saving"
"""Its data is on the way."""
ACTIVE = "active"
"""Its data is there and does not change any more."""

PUBLIC = "public"
"""Everybody may use it; all other visibilities are for the project that owns it."""


@dataclass(frozen=True)
class ImageRecord:
    """An image row. ``min_ram`` is in MiB, ``min_disk`` in GiB, ``size`` in bytes; ``os_hash_value`` is SHA-512.

    ``properties`` are the free ones, such as ``trait:CUSTOM_TRUSTED``.
    """

    id: int
    uuid: str
    name: str | None
    status: str
    owner: str | None
    visibility: str
    disk_format: str | None
    container_format: str | None
    min_disk: int
    min_ram: int
    protected: bool
    size: int | None
    checksum: str | None
    os_hash_value: str | None
    properties: dict[str, str]
    created_at: datetime
    updated_at: datetime | None

    @property
    def snapshot(self) -> dict[str, Any]:
        """What an instance keeps of it (``instances.image``), whatever becomes of the image."""
        return {"name": self.name, "properties": dict(self.properties)}


_IMAGE = columns(ImageRecord, images)


def insert(tx: Connection, values: Mapping[str, Any]) -> int:
    """Insert an image row and return its id. A uuid that is taken raises DBDuplicateEntry."""
    return int(tx.execute(images.insert().values(**values)).inserted_primary_key[0])  # type: ignore[index]


def get(tx: Connection, uuid: str, *, lock: bool = False) -> ImageRecord | None:
    """The image with *uuid*; with *lock*, its row stays locked until the transaction ends."""
    query = sa.select(*_IMAGE).where(images.c.uuid == uuid)
    return fetch_one(tx, ImageRecord, query.with_for_update() if lock else query)


def list_for(
    tx: Connection,
    *,
    project_id: str | None = None,
    uuids: Collection[str] | None = None,
    filters: Mapping[str, Any] | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> list[ImageRecord]:
    """Images, the newest first.

    :param project_id: only those that it may use; None: all.
    :param uuids: only these.
    :param filters: columns and the values that they must have.
    :param after: the uuid of the last one already seen.
    """
    query = sa.select(*_IMAGE)
    if project_id is not None:
        query = query.where(sa.or_(images.c.visibility == PUBLIC, images.c.owner == project_id))
    if uuids is not None:
        query = query.where(images.c.uuid.in_(uuids))
    for name, value in (filters or {}).items():
        query = query.where(images.c[name] == value)
    return fetch_all(tx, ImageRecord, paged(query, images, NEWEST_FIRST, after=after, limit=limit))


def all_uuids(tx: Connection) -> set[str]:
    """The uuids of all images."""
    return set(tx.execute(sa.select(images.c.uuid)).scalars())


def update(tx: Connection, image: ImageRecord, values: Mapping[str, Any]) -> None:
    """Write columns other than the status; properties as a whole, so read the row with ``lock`` before."""
    tx.execute(images.update().where(images.c.id == image.id).values(updated_at=utcnow(), **values))


def swap_status(
    tx: Connection, uuid: str, source: str, target: str, values: Mapping[str, Any] | None = None
) -> ImageRecord | None:
    """Move an image from one status to another, and write what comes with it.

    :returns: the image as it is now; None if it is not in *source*, or is gone.
    """
    statement = images.update().where(images.c.uuid == uuid, images.c.status == source)
    moved = tx.execute(statement.values(status=target, updated_at=utcnow(), **(values or {}))).rowcount == 1
    return get(tx, uuid) if moved else None


def delete(tx: Connection, uuid: str) -> bool:
    """Remove an image's row. False if there was none."""
    return tx.execute(images.delete().where(images.c.uuid == uuid)).rowcount > 0
