"""Attributes of deployables: the resource class and the traits, as Cyborg lists them."""

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.tables import attributes


def replace(tx: Connection, deployable_id: int, values: Mapping[str, str]) -> None:
    """Make *values* all the attributes of a deployable."""
    tx.execute(attributes.delete().where(attributes.c.deployable_id == deployable_id))
    rows = [
        {"uuid": str(uuid.uuid4()), "deployable_id": deployable_id, "key": key, "value": value}
        for key, value in values.items()
    ]
    if rows:
        tx.execute(attributes.insert(), rows)


def of_deployables(tx: Connection, deployable_ids: Sequence[int]) -> dict[int, dict[str, str]]:
    """The attributes of each deployable, in one query."""
    query = sa.select(attributes.c.deployable_id, attributes.c.key, attributes.c.value).where(
        attributes.c.deployable_id.in_(deployable_ids)
    )
    found: dict[int, dict[str, str]] = defaultdict(dict)
    for deployable_id, key, value in tx.execute(query.order_by(attributes.c.id)):
        found[deployable_id][key] = value
    return dict(found)
