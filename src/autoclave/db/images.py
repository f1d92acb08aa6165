"""Store images: the disks that guests start from, and the requests in their properties.

The data is stored in files, not in the database.
"""

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
"""The image has no data yet."""
SAVING = "saving"
"""The image's data is being uploaded."""
ACTIVE = "active"
"""The image's data is complete, and no longer changes."""

PUBLIC = "public"
"""Every project may use the image; with any other visibility, only its owner may."""


@dataclass(frozen=True)
class ImageRecord:
    """Represent an image row.

    ``min_ram`` is in MiB, ``min_disk`` in GiB, ``size`` in bytes; ``os_hash_value`` is SHA-512.
    ``properties`` are free-form, such as ``trait:CUSTOM_TRUSTED``.
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
        """Return the copy that an instance keeps (``instances.image``), independent of later changes."""
        return {"name": self.name, "properties": dict(self.properties)}


_IMAGE = columns(ImageRecord, images)


def insert(tx: Connection, values: Mapping[str, Any]) -> int:
    """Insert an image row and return its id.

    :raises DBDuplicateEntry: the uuid is in use.
    """
    return int(tx.execute(images.insert().values(**values)).inserted_primary_key[0])  # type: ignore[index]


def get(tx: Connection, uuid: str, *, lock: bool = False) -> ImageRecord | None:
    """Return the image with *uuid*, or None; with *lock*, its row stays locked until the transaction ends."""
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
    """Return images, newest first.

    :param project_id: select images that this project may use; None for all.
    :param uuids: select only these.
    :param filters: required values by column.
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
    """Return the uuids of all images."""
    return set(tx.execute(sa.select(images.c.uuid)).scalars())


def update(tx: Connection, image: ImageRecord, values: Mapping[str, Any]) -> None:
    """Write columns other than the status. Properties are replaced as a whole, so read the row with ``lock`` first."""
    tx.execute(images.update().where(images.c.id == image.id).values(updated_at=utcnow(), **values))


def swap_status(
    tx: Connection, uuid: str, source: str, target: str, values: Mapping[str, Any] | None = None
) -> ImageRecord | None:
    """Move an image from one status to another, and write *values*.

    :returns: the image as it is now; None if it is not in *source*, or is gone.
    """
    statement = images.update().where(images.c.uuid == uuid, images.c.status == source)
    moved = tx.execute(statement.values(status=target, updated_at=utcnow(), **(values or {}))).rowcount == 1
    return get(tx, uuid) if moved else None


def delete(tx: Connection, uuid: str) -> bool:
    """Remove an image's row; return False if there was none."""
    return tx.execute(images.delete().where(images.c.uuid == uuid)).rowcount > 0
