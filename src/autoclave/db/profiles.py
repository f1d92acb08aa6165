"""Store device profiles."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.query import columns, fetch_all, fetch_one, paged
from autoclave.db.tables import arqs, device_profiles


@dataclass(frozen=True)
class ProfileRecord:
    """Represent a device profile row; ``profile_json`` is ``{"groups": [...]}``, as Cyborg stores it."""

    id: int
    uuid: str
    name: str
    profile_json: str
    description: str | None
    created_at: datetime
    updated_at: datetime | None

    @property
    def groups(self) -> list[dict[str, str]]:
        """Return the request groups."""
        return list(json.loads(self.profile_json)["groups"])


_PROFILE = columns(ProfileRecord, device_profiles)
_BY_UUID = sa.select(*_PROFILE).where(device_profiles.c.uuid == sa.bindparam("key"))
_BY_NAME = sa.select(*_PROFILE).where(device_profiles.c.name == sa.bindparam("key"))


def insert(tx: Connection, values: Mapping[str, Any]) -> int:
    """Insert a profile row and return its id.

    :raises DBDuplicateEntry: the name or uuid is in use.
    """
    return int(tx.execute(device_profiles.insert().values(**values)).inserted_primary_key[0])  # type: ignore[index]


def find(tx: Connection, *, uuid: str | None = None, name: str | None = None) -> ProfileRecord | None:
    """Return the profile with that uuid or that name, or None."""
    query, key = (_BY_UUID, uuid) if uuid is not None else (_BY_NAME, name)
    return fetch_one(tx, ProfileRecord, query, {"key": key})


def list_all(
    tx: Connection, *, names: Sequence[str] | None = None, after: str | None = None, limit: int | None = None
) -> list[ProfileRecord]:
    """Return profiles ordered by id."""
    query = sa.select(*_PROFILE)
    if names is not None:
        query = query.where(device_profiles.c.name.in_(names))
    return fetch_all(tx, ProfileRecord, paged(query, device_profiles, after=after, limit=limit))


def in_use(tx: Connection, profile: ProfileRecord) -> bool:
    """Return whether an ARQ refers to the profile."""
    return tx.execute(sa.select(arqs.c.id).where(arqs.c.device_profile_id == profile.id).limit(1)).first() is not None


def delete(tx: Connection, profile: ProfileRecord) -> None:
    """Remove a profile without references."""
    tx.execute(device_profiles.delete().where(device_profiles.c.id == profile.id))
