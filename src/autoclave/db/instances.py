"""Store instances, and read which PCI functions they have.

Instances: one row each, from the request to the moment when everything of it is given back.

What PCI functions instances have, whichever way they got them, for those who show it.
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
    pci_functions,
    pci_providers,
)
from autoclave.rules.device_lifecycle import ARQState
from autoclave.rules.instance_states import PowerState, TaskState, VMState
from autoclave.rules.resource_names import read


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


@dataclass(frozen=True)
class Hostdev:
    """A PCI function of a host that an instance has.

    ``arq_uuid`` is the accelerator request that it came by; None: a claim of the flavor's. ``burned``: it is
    given to nobody else before the operator says so. ``managed``: whether libvirt manages it; None: that cannot
    be read.
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
    """What each of *instance_uuids* has, in order of the addresses; nothing is said of one that has nothing."""
    found = [*_claimed(tx, instance_uuids), *_bound(tx, instance_uuids)]
    found.sort(key=attrgetter("instance_uuid", "address"))
    return {uuid: list(devices_of) for uuid, devices_of in groupby(found, attrgetter("instance_uuid"))}


def _claimed(tx: Connection, instance_uuids: Collection[str]) -> list[Hostdev]:
    query = (
        sa.select(
            pci_functions.c.instance_uuid,
            pci_functions.c.address,
            pci_providers.c.uuid,
            pci_providers.c.resource_class,
            pci_functions.c.managed,
            pci_providers.c.one_time_use,
            pci_providers.c.burned,
        )
        .join(pci_providers, pci_providers.c.id == pci_functions.c.provider_id)
        .where(pci_functions.c.instance_uuid.in_(instance_uuids))
    )
    return [Hostdev(*row, arq_uuid=None) for row in tx.execute(query)]


def _bound(tx: Connection, instance_uuids: Collection[str]) -> list[Hostdev]:
    query = (
        sa.select(
            arqs.c.instance_uuid,
            devices.c.pci_address,
            deployables.c.rp_uuid,
            deployables.c.resource_class,
            attach_handles.c.attach_info,
            arqs.c.uuid,
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
    for instance_uuid, address, rp_uuid, resource_class, stored, arq_uuid in tx.execute(query):
        attaching = read(stored)
        found.append(
            Hostdev(
                instance_uuid,
                _address(attaching.where, address),
                rp_uuid,
                resource_class,
                managed=attaching.managed,
                one_time_use=False,
                burned=False,
                arq_uuid=arq_uuid,
            )
        )
    return found


def _address(info: Mapping[str, str], slot: str) -> str:
    """The handle's own address: a virtual function is not where its device is."""
    parts = [info.get(name) for name in ("domain", "bus", "device", "function")]
    return slot if None in parts else "{}:{}:{}.{}".format(*parts)
