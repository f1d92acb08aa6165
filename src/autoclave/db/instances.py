"""Store instances, and read which PCI functions they have.

A row exists from the request until everything that the instance holds has been given back.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import attrgetter
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.columns import utcnow
from autoclave.db.query import NEWEST_FIRST, columns, fetch_all, fetch_one, paged
from autoclave.db.tables import (
    AttachType,
    arqs,
    attach_handles,
    deployables,
    devices,
    instances,
)
from autoclave.rules.device_lifecycle import ARQState
from autoclave.rules.instance_states import PowerState, TaskState, VMState
from autoclave.rules.reclaim import Reclaim
from autoclave.rules.resource_names import read


@dataclass(frozen=True)
class InstanceRecord:
    """Represent an instance row.

    :param flavor: :attr:`FlavorRecord.snapshot <autoclave.db.flavors.FlavorRecord.snapshot>` as of the request.
    :param image: :attr:`ImageRecord.snapshot <autoclave.db.images.ImageRecord.snapshot>` as of the request.
    :param rebuild: during a rebuild, ``{"image_uuid": …, "image": snapshot}`` of the requested image. A conductor adds
        ``"checked": true`` when the image is permitted. An agent adds ``"touched"`` when it begins: whether the old
        disk may have been changed.
    :param requested_host: the only permitted host.
    :param agent_run_id: the agent run that works on it.
    :param state_version: incremented by every :func:`swap`.
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
        """Return ``power_state`` as an enum."""
        return PowerState(self.power_state)


_INSTANCE = columns(InstanceRecord, instances)


def insert(tx: Connection, values: Mapping[str, Any]) -> int:
    """Insert an instance row and return its id.

    :raises DBDuplicateEntry: the uuid is in use.
    """
    return int(tx.execute(instances.insert().values(**values)).inserted_primary_key[0])  # type: ignore[index]


def get(tx: Connection, uuid: str, *, lock: bool = False) -> InstanceRecord | None:
    """Return the instance with *uuid*, or None; with *lock*, its row stays locked until the transaction ends."""
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
    """Return instances, newest first.

    :param project_id: select instances of this project; None for all.
    :param filters: required values by column; None requires NULL.
    :param conditions: additional conditions.
    :param after: the uuid of the last one already seen.
    """
    query = sa.select(*_INSTANCE).where(*conditions)
    if project_id is not None:
        query = query.where(instances.c.project_id == project_id)
    for name, value in (filters or {}).items():
        query = query.where(instances.c[name].is_(None) if value is None else instances.c[name] == value)
    return fetch_all(tx, InstanceRecord, paged(query, instances, NEWEST_FIRST, after=after, limit=limit))


def on_host(tx: Connection, host: str) -> list[InstanceRecord]:
    """Return the instances on *host*, or on their way to it or from it, oldest first."""
    query = sa.select(*_INSTANCE).where(instances.c.host == host).order_by(instances.c.id)
    return fetch_all(tx, InstanceRecord, query)


def named_on(tx: Connection, hosts: Collection[str]) -> dict[str, list[tuple[str, str]]]:
    """Return uuid and name of the instances on each of *hosts*, newest first; hosts without instances are absent."""
    wanted = instances.c.host, instances.c.uuid, instances.c.name
    query = sa.select(*wanted).where(instances.c.host.in_(hosts)).order_by(instances.c.id.desc())
    found: dict[str, list[tuple[str, str]]] = {}
    for host, uuid, name in tx.execute(query):
        found.setdefault(host, []).append((uuid, name))
    return found


def swap(
    tx: Connection, record: InstanceRecord, *, expect_task: TaskState | None, **values: Any
) -> InstanceRecord | None:
    """Write *values* if the row is unchanged and has the expected task.

    :param expect_task: the required ``task_state``.
    :returns: the instance as it is now; None if it was changed concurrently, and nothing was written.
    """
    task = instances.c.task_state
    statement = instances.update().where(
        instances.c.uuid == record.uuid,
        instances.c.state_version == record.state_version,
        task.is_(None) if expect_task is None else task == expect_task,
    )
    # Set updated_at explicitly, because MySQL counts changed rows, and a matched row must count.
    values = {"updated_at": utcnow(), **values, "state_version": record.state_version + 1}
    return get(tx, record.uuid) if tx.execute(statement.values(**values)).rowcount == 1 else None


def update(tx: Connection, record: InstanceRecord, values: Mapping[str, Any]) -> None:
    """Write columns that do not describe its state, such as its name or metadata.

    During a task, ``updated_at`` is the last report of the service that works on it, and is kept.
    """
    idle = instances.c.task_state.is_(None)
    when = sa.case((idle, sa.bindparam("now", utcnow(), instances.c.updated_at.type)), else_=instances.c.updated_at)
    tx.execute(instances.update().where(instances.c.id == record.id).values(updated_at=when, **values))


def delete(tx: Connection, uuid: str) -> bool:
    """Remove the row of an instance in ``deleting``; return False if there is none, or it is in another state."""
    gone = instances.delete().where(instances.c.uuid == uuid, instances.c.task_state == TaskState.DELETING)
    return tx.execute(gone).rowcount > 0


@dataclass(frozen=True)
class Hostdev:
    """Represent a PCI function that an instance has.

    ``arq_uuid``: its accelerator request; None if the flavor's alias claimed it. ``burned``: no other instance may get
    it before the operator releases it. ``managed``: libvirt manages it; None if that cannot be read.
    """

    instance_uuid: str
    address: str
    rp_uuid: str
    resource_class: str
    managed: bool | None
    one_time_use: bool
    burned: bool
    arq_uuid: str | None


def of_instances(tx: Connection, instance_uuids: Collection[str]) -> dict[str, list[Hostdev]]:
    """Return the functions of each of *instance_uuids*, ordered by address; instances without functions are absent."""
    found = [*_claimed(tx, instance_uuids), *_bound(tx, instance_uuids)]
    found.sort(key=attrgetter("instance_uuid", "address"))
    return {uuid: list(devices_of) for uuid, devices_of in groupby(found, attrgetter("instance_uuid"))}


def _claimed(tx: Connection, instance_uuids: Collection[str]) -> list[Hostdev]:
    query = (
        sa.select(
            attach_handles.c.instance_uuid,
            attach_handles.c.identity,
            deployables.c.rp_uuid,
            deployables.c.resource_class,
            attach_handles.c.attach_info,
            devices.c.reclaim,
            devices.c.burned_at,
        )
        .join(deployables, deployables.c.id == attach_handles.c.deployable_id)
        .join(devices, devices.c.id == deployables.c.device_id)
        .where(attach_handles.c.instance_uuid.in_(instance_uuids))
    )
    return [
        Hostdev(
            instance_uuid,
            address,
            rp_uuid,
            resource_class,
            managed=read(stored).managed,
            one_time_use=reclaim is Reclaim.HOLD,
            burned=burned_at is not None,
            arq_uuid=None,
        )
        for instance_uuid, address, rp_uuid, resource_class, stored, reclaim, burned_at in tx.execute(query)
    ]


def _bound(tx: Connection, instance_uuids: Collection[str]) -> list[Hostdev]:
    query = (
        sa.select(
            arqs.c.instance_uuid,
            devices.c.pci_address,
            deployables.c.rp_uuid,
            deployables.c.resource_class,
            attach_handles.c.attach_info,
            arqs.c.uuid,
            devices.c.reclaim,
            devices.c.burned_at,
        )
        .join(devices, devices.c.id == arqs.c.device_id)
        .join(attach_handles, attach_handles.c.id == arqs.c.attach_handle_id)
        .join(deployables, deployables.c.id == attach_handles.c.deployable_id)
        .where(
            arqs.c.instance_uuid.in_(instance_uuids),
            arqs.c.state.in_([ARQState.BOUND, ARQState.DELETING]),
            attach_handles.c.attach_type == AttachType.PCI,
        )
    )
    found = []
    for instance_uuid, address, rp_uuid, resource_class, stored, arq_uuid, reclaim, burned_at in tx.execute(query):
        attaching = read(stored)
        found.append(
            Hostdev(
                instance_uuid,
                _address(attaching.where, address),
                rp_uuid,
                resource_class,
                managed=attaching.managed,
                one_time_use=reclaim is Reclaim.HOLD,
                burned=burned_at is not None,
                arq_uuid=arq_uuid,
            )
        )
    return found


def _address(info: Mapping[str, str], slot: str) -> str:
    """Return the handle's own address, which for a virtual function differs from that of the device."""
    parts = [info.get(name) for name in ("domain", "bus", "device", "function")]
    return slot if None in parts else "{}:{}:{}.{}".format(*parts)
