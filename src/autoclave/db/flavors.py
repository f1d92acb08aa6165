"""Store flavors: resources of an instance, and the requests in its extra specs."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.columns import utcnow
from autoclave.db.query import columns, fetch_all, fetch_one
from autoclave.db.tables import flavors


@dataclass(frozen=True)
class FlavorRecord:
    """Represent a flavor row. ``ram`` and ``swap`` are in MiB, ``disk`` and ``ephemeral`` in GiB.

    ``flavorid`` is the public id; ``id`` is internal to the database.
    """

    id: int
    flavorid: str
    name: str
    vcpus: int
    ram: int
    disk: int
    ephemeral: int
    swap: int
    rxtx_factor: float
    is_public: bool
    description: str | None
    extra_specs: dict[str, str]
    created_at: datetime
    updated_at: datetime | None

    @property
    def snapshot(self) -> dict[str, Any]:
        """Return the copy that an instance keeps (``instances.flavor``), independent of later changes."""
        names = ("flavorid", "name", "vcpus", "ram", "disk", "ephemeral", "swap")
        return {**{name: getattr(self, name) for name in names}, "extra_specs": dict(self.extra_specs)}


_FLAVOR = columns(FlavorRecord, flavors)


def insert(tx: Connection, values: Mapping[str, Any]) -> int:
    """Insert a flavor row and return its id.

    :raises DBDuplicateEntry: the name or flavorid is in use.
    """
    return int(tx.execute(flavors.insert().values(**values)).inserted_primary_key[0])  # type: ignore[index]


def get(tx: Connection, flavorid: str, *, lock: bool = False) -> FlavorRecord | None:
    """Return the flavor with *flavorid*, or None; with *lock*, its row stays locked until the transaction ends."""
    return _one(tx, flavors.c.flavorid == flavorid, lock=lock)


def find(tx: Connection, name: str) -> FlavorRecord | None:
    """Return the flavor with that name, or None."""
    return _one(tx, flavors.c.name == name, lock=False)


def _one(tx: Connection, where: sa.ColumnElement[bool], *, lock: bool) -> FlavorRecord | None:
    query = sa.select(*_FLAVOR).where(where)
    return fetch_one(tx, FlavorRecord, query.with_for_update() if lock else query)


def list_all(
    tx: Connection,
    *,
    is_public: bool | None = None,
    min_disk: int = 0,
    min_ram: int = 0,
    after: str | None = None,
    limit: int | None = None,
) -> list[FlavorRecord]:
    """Return flavors ordered by flavorid, as Nova does.

    :param is_public: select public or private flavors; None for both.
    :param after: the flavorid of the last one already seen.
    """
    query = sa.select(*_FLAVOR).where(flavors.c.disk >= min_disk, flavors.c.ram >= min_ram)
    if is_public is not None:
        query = query.where(flavors.c.is_public.is_(is_public))
    if after is not None:
        query = query.where(flavors.c.flavorid > after)
    query = query.order_by(flavors.c.flavorid)
    return fetch_all(tx, FlavorRecord, query if limit is None else query.limit(limit))


def update(tx: Connection, flavor: FlavorRecord, values: Mapping[str, Any]) -> None:
    """Write columns. Extra specs are replaced as a whole, so read the row with ``lock`` first."""
    tx.execute(flavors.update().where(flavors.c.id == flavor.id).values(updated_at=utcnow(), **values))


def delete(tx: Connection, flavorid: str) -> bool:
    """Remove a flavor; instances keep their copy. Return False if there was none."""
    return tx.execute(flavors.delete().where(flavors.c.flavorid == flavorid)).rowcount > 0
