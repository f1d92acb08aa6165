"""Deployables with their attributes, as the accelerator API shows them: two queries, however many there are."""

from collections import defaultdict
from dataclasses import dataclass

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.devices import DeployableRecord
from autoclave.db.rows import columns, to_record
from autoclave.db.tables import attributes, deployables


@dataclass(frozen=True)
class DeployableView:
    """A deployable and its attributes, in the order in which they were written."""

    deployable: DeployableRecord
    attributes: tuple[tuple[str, str], ...]


_DEPLOYABLE = columns(DeployableRecord, deployables)


def views(
    tx: Connection, *, uuid: str | None = None, after: str | None = None, limit: int | None = None
) -> list[DeployableView]:
    """Deployables in order of their id; *after* is the uuid of the last one already seen."""
    query = sa.select(*_DEPLOYABLE).order_by(deployables.c.id)
    if uuid is not None:
        query = query.where(deployables.c.uuid == uuid)
    if after is not None:
        seen = sa.select(deployables.c.id).where(deployables.c.uuid == after).scalar_subquery()
        query = query.where(deployables.c.id > seen)
    if limit is not None:
        query = query.limit(limit)
    records = [to_record(DeployableRecord, row) for row in tx.execute(query)]
    if not records:
        return []
    # They come in order of their id: a range names them all, where a list could be longer than an engine takes.
    wanted = attributes.c.deployable_id.between(records[0].id, records[-1].id)
    pairs: dict[int, list[tuple[str, str]]] = defaultdict(list)
    selected = sa.select(attributes.c.deployable_id, attributes.c.key, attributes.c.value).where(wanted)
    for deployable_id, key, value in tx.execute(selected.order_by(attributes.c.id)):
        pairs[deployable_id].append((key, value))
    return [DeployableView(record, tuple(pairs[record.id])) for record in records]
