"""Instances: one row each, from the request to the moment when everything of it is given back."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.columns import utcnow
from autoclave.db.compute_tables import instances
from autoclave.db.paging import NEWEST_FIRST, paged
from autoclave.db.query import columns, fetch_all, fetch_one
from autoclave.rules.instance_states import PowerState, TaskState, VMState


@dataclass(frozen=True)
class InstanceRecord:
    """An instance row.

    ``flavor`` is :attr:`FlavorRecord.snapshot <autoclave.db.flavors.FlavorRecord.snapshot>` and ``image`` is
    :attr:`ImageRecord.snapshot <autoclave.db.images.ImageRecord.snapshot>`, as they were when they were asked for.
    While it is rebuilt, ``rebuild`` is ``{"image_uuid": …, "image": snapshot}`` of the image that it shall have, with
    ``"checked": true`` from the moment that a conductor has found that it may, and with ``"touched"`` from the moment
    that an agent has begun: whether the disk that it had may have been touched.
    ``requested_host`` is the only host that will do. ``agent_run_id`` is the agent run that works on it.
    ``state_version`` grows with every :func:`swap`.
    """

    id: int
    uuid: str
    name: str
    description: str | None
    project_id: str
    user_id: str
    flavor: dict[str, Any]
    image_uuid: str
    image: dict[str, Any]
    metadata: dict[str, str]
    tags: list[str]
    availability_zone: str | None
    requested_host: str | None
    host: str | None
    vm_state: VMState
    task_state: TaskState | None
    power_state: int
    state_version: int
    agent_run_id: str | None
    rebuild: dict[str, Any] | None
    fault_code: int | None
    fault_message: str | None
    fault_details: str | None
    fault_at: datetime | None
    launched_at: datetime | None
    created_at: datetime
    updated_at: datetime | None

    @property
    def power(self) -> PowerState:
        """``power_state`` by its name."""
        return PowerState(self.power_state)


_INSTANCE = columns(InstanceRecord, instances)


def insert(tx: Connection, values: Mapping[str, Any]) -> int:
    """Insert an instance row and return its id. A uuid that is taken raises DBDuplicateEntry."""
    return int(tx.execute(instances.insert().values(**values)).inserted_primary_key[0])  # type: ignore[index]


def get(tx: Connection, uuid: str, *, lock: bool = False) -> InstanceRecord | None:
    """The instance with *uuid*; with *lock*, its row stays locked until the transaction ends."""
    query = sa.select(*_INSTANCE).where(instances.c.uuid == uuid)
    return fetch_one(tx, InstanceRecord, query.with_for_update() if lock else query)


def list_for(
    tx: Connection,
    *,
    project_id: str | None = None,
    filters: Mapping[str, Any] | None = None,
    conditions: Collection[sa.ColumnElement[bool]] = (),
    after: str | None = None,
    limit: int | None = None,
) -> list[InstanceRecord]:
    """Instances, the newest first.

    :param project_id: only those of this project; None: of all.
    :param filters: columns and the values that they must have; a None is a column without a value.
    :param conditions: what else must be true of their columns.
    :param after: the uuid of the last one already seen.
    """
    query = sa.select(*_INSTANCE).where(*conditions)
    if project_id is not None:
        query = query.where(instances.c.project_id == project_id)
    for name, value in (filters or {}).items():
        query = query.where(instances.c[name].is_(None) if value is None else instances.c[name] == value)
    return fetch_all(tx, InstanceRecord, paged(query, instances, NEWEST_FIRST, after=after, limit=limit))


def on_host(tx: Connection, host: str) -> list[InstanceRecord]:
    """The instances that are on *host* or on their way to it or from it, the oldest first."""
    query = sa.select(*_INSTANCE).where(instances.c.host == host).order_by(instances.c.id)
    return fetch_all(tx, InstanceRecord, query)


def named_on(tx: Connection, hosts: Collection[str]) -> dict[str, list[tuple[str, str]]]:
    """Uuid and name of every instance on each of *hosts*, the newest first; nothing is said of one that has none."""
    wanted = instances.c.host, instances.c.uuid, instances.c.name
    query = sa.select(*wanted).where(instances.c.host.in_(hosts)).order_by(instances.c.id.desc())
    found: dict[str, list[tuple[str, str]]] = {}
    for host, uuid, name in tx.execute(query):
        found.setdefault(host, []).append((uuid, name))
    return found


def swap(
    tx: Connection, record: InstanceRecord, *, expect_task: TaskState | None, **values: Any
) -> InstanceRecord | None:
    """Write *values* if the row still is what the caller read, and does what the caller takes it to do.

    :param expect_task: the ``task_state`` that the row must have.
    :returns: the instance as it is now; None: somebody else was there first, and nothing was written.
    """
    task = instances.c.task_state
    statement = instances.update().where(
        instances.c.uuid == record.uuid,
        instances.c.state_version == record.state_version,
        task.is_(None) if expect_task is None else task == expect_task,
    )
    # updated_at is named so that MySQL's "rows changed" is never zero for a row that matched
    values = {"updated_at": utcnow(), **values, "state_version": record.state_version + 1}
    return get(tx, record.uuid) if tx.execute(statement.values(**values)).rowcount == 1 else None


def update(tx: Connection, record: InstanceRecord, values: Mapping[str, Any]) -> None:
    """Write columns that say nothing of its state, such as its name or metadata.

    While something is done with it, ``updated_at`` is the last sign of life of whoever does it, and stays.
    """
    idle = instances.c.task_state.is_(None)
    when = sa.case((idle, sa.bindparam("now", utcnow(), instances.c.updated_at.type)), else_=instances.c.updated_at)
    tx.execute(instances.update().where(instances.c.id == record.id).values(updated_at=when, **values))


def delete(tx: Connection, uuid: str) -> bool:
    """Remove the row of an instance that is being deleted. False if there is none, or it is not being deleted."""
    gone = instances.delete().where(instances.c.uuid == uuid, instances.c.task_state == TaskState.DELETING)
    return tx.execute(gone).rowcount > 0
