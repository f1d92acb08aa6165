"""Store attributes of deployables: resource class and traits, as in Cyborg, and those added by operators."""

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.query import columns, fetch_all, fetch_one, paged
from autoclave.db.tables import attributes, deployables, devices
from autoclave.rules.reclaim import RequestedBy
from autoclave.rules.resource_names import is_discovered, traits_in


@dataclass(frozen=True)
class AttributeRecord:
    """Represent an attribute row."""

    id: int
    uuid: str
    deployable_id: int
    key: str
    value: str
    created_at: datetime
    updated_at: datetime | None


_ATTRIBUTE = columns(AttributeRecord, attributes)
_OF_PROFILES = attributes.c.deployable_id.in_(
    sa.select(deployables.c.id)
    .join(devices, devices.c.id == deployables.c.device_id)
    .where(devices.c.requested_by == RequestedBy.PROFILE)
)


def insert(tx: Connection, deployable_id: int, key: str, value: str) -> str:
    """Insert an attribute and return its uuid.

    :raises DBDuplicateEntry: the deployable has the key already.
    :raises DBReferenceError: there is no such deployable.
    """
    made = str(uuid.uuid4())
    tx.execute(attributes.insert().values(uuid=made, deployable_id=deployable_id, key=key, value=value))
    return made


def get(tx: Connection, attribute_uuid: str) -> AttributeRecord | None:
    """Return the attribute with *attribute_uuid* of a device that device profiles ask for, or None."""
    query = sa.select(*_ATTRIBUTE).where(attributes.c.uuid == attribute_uuid, _OF_PROFILES)
    return fetch_one(tx, AttributeRecord, query)


def list_all(
    tx: Connection,
    *,
    deployable_id: int | None = None,
    key: str | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> list[AttributeRecord]:
    """Return the attributes of the devices that device profiles ask for, ordered by id, filtered.

    :param after: the uuid of the last one already seen.
    """
    query = sa.select(*_ATTRIBUTE).where(_OF_PROFILES)
    if deployable_id is not None:
        query = query.where(attributes.c.deployable_id == deployable_id)
    if key is not None:
        query = query.where(attributes.c.key == key)
    return fetch_all(tx, AttributeRecord, paged(query, attributes, after=after, limit=limit))


def delete(tx: Connection, attribute: AttributeRecord) -> None:
    """Remove an attribute."""
    tx.execute(attributes.delete().where(attributes.c.id == attribute.id))


def replace(tx: Connection, deployable_id: int, values: Mapping[str, str]) -> None:
    """Replace the attributes written by discovery by *values*; those added by an operator stay."""
    own = sa.select(*_ATTRIBUTE).where(attributes.c.deployable_id == deployable_id).order_by(attributes.c.id)
    known = {row.key: row for row in fetch_all(tx, AttributeRecord, own) if is_discovered(row.key)}
    for key, row in known.items():
        if key not in values:
            delete(tx, row)
        elif row.value != values[key]:
            tx.execute(attributes.update().where(attributes.c.id == row.id).values(value=values[key]))
    for key, value in values.items():
        if key not in known:
            insert(tx, deployable_id, key, value)


def discovered(tx: Connection, deployable_ids: Sequence[int] | None) -> dict[int, dict[str, str]]:
    """Return the attributes that discovery wrote, by deployable id, in one query; None selects all deployables."""
    query = sa.select(attributes.c.deployable_id, attributes.c.key, attributes.c.value)
    if deployable_ids is not None:
        query = query.where(attributes.c.deployable_id.in_(deployable_ids))
    found: dict[int, dict[str, str]] = defaultdict(dict)
    for deployable_id, key, value in tx.execute(query.order_by(attributes.c.id)):
        if is_discovered(key):
            found[deployable_id][key] = value
    return dict(found)


def traits_of(tx: Connection, deployable_id: int) -> frozenset[str]:
    """Return the traits of a deployable, as discovery wrote them."""
    return traits_in(discovered(tx, [deployable_id]).get(deployable_id, {}))


def traits_of_all(tx: Connection, deployable_ids: Sequence[int]) -> dict[int, frozenset[str]]:
    """Return the traits of deployables by id, as discovery wrote them, in one query."""
    return {deployable_id: traits_in(own) for deployable_id, own in discovered(tx, deployable_ids).items()}
