"""Deployables with their attributes, as the accelerator API shows them: two queries, however many there are."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.filters import deployable_matches
from autoclave.db.paging import BY_ID, Order, paged
from autoclave.db.tables import attributes, deployables


class DeployableRow(NamedTuple):
    """The columns of a deployable that the API shows."""

    id: int
    uuid: str
    parent_id: int | None
    root_id: int | None
    name: str
    num_accelerators: int
    device_id: int
    rp_uuid: str
    driver_name: str
    bitstream_id: str | None
    created_at: datetime
    updated_at: datetime | None


Attributes = Mapping[int, Sequence[tuple[str, str]]]
"""Key and value of each attribute, in the order in which they were written, by the deployable's id."""

_COLUMNS = [deployables.c[name] for name in DeployableRow._fields]


def views(
    tx: Connection,
    *,
    uuid: str | None = None,
    related: Mapping[str, str] | None = None,
    order: Order = BY_ID,
    after: str | None = None,
    limit: int | None = None,
) -> tuple[list[DeployableRow], Attributes]:
    """Deployables in *order*, filtered, and their attributes.

    :param related: values by field, see :data:`autoclave.db.filters.FIELDS`.
    :param after: the uuid of the last one already seen.
    """
    query = sa.select(*_COLUMNS).where(*(deployable_matches(*pair) for pair in (related or {}).items()))
    if uuid is not None:
        query = query.where(deployables.c.uuid == uuid)
    query = paged(query, deployables, order, after=after, limit=limit)
    rows = list(map(DeployableRow._make, tx.execute(query).all()))
    pairs: dict[int, list[tuple[str, str]]] = defaultdict(list)
    if rows:
        # A range names them all, where a list could be longer than an engine takes.
        wanted = attributes.c.deployable_id.between(min(row.id for row in rows), max(row.id for row in rows))
        selected = sa.select(attributes.c.deployable_id, attributes.c.key, attributes.c.value).where(wanted)
        for deployable_id, key, value in tx.execute(selected.order_by(attributes.c.id)).all():
            pairs[deployable_id].append((key, value))
    return rows, pairs
