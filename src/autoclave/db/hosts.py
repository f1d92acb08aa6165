"""Store compute hosts, their maintenance and their renames."""

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.columns import utcnow
from autoclave.db.query import columns, fetch_all, fetch_one, restricted
from autoclave.db.tables import (
    agents,
    arqs,
    compute_hosts,
    deployables,
    devices,
    host_maintenances,
    host_renames,
    instances,
    provider_config_additions,
)


@dataclass(frozen=True)
class ComputeHostRecord:
    """Represent a host row. ``memory_mb`` is in MiB, ``local_gb`` in GiB; ``rp_uuid`` is the root of its provider tree.

    ``uuid`` is the id of its service and of its hypervisor in the API. ``disabled``: the host gets no new instances.
    ``forced_down``: the operator has declared it dead.
    """

    id: int
    uuid: str
    hostname: str
    rp_uuid: str
    hypervisor_type: str
    hypervisor_version: int
    vcpus: int
    memory_mb: int
    local_gb: int
    disabled: bool
    disabled_reason: str | None
    forced_down: bool
    created_at: datetime
    updated_at: datetime | None


_HOST = columns(ComputeHostRecord, compute_hosts)


def report(tx: Connection, hostname: str, values: Mapping[str, Any]) -> ComputeHostRecord:
    """Write what an agent reports about its host, which gets its uuid the first time. Unchanged values cost one read.

    :param values: ``rp_uuid``, ``hypervisor_type``, ``hypervisor_version``, ``vcpus``, ``memory_mb``, ``local_gb``.
    """
    known = find(tx, hostname)
    if known is None:
        tx.execute(compute_hosts.insert().values(uuid=str(uuid.uuid4()), hostname=hostname, **values))
    elif any(getattr(known, name) != value for name, value in values.items()):
        update(tx, known, values)
    else:
        return known
    found = find(tx, hostname)
    assert found is not None, "the row that this transaction has just written"
    return found


def get(tx: Connection, host_uuid: str) -> ComputeHostRecord | None:
    """Return the host with that uuid, or None."""
    return _one(tx, compute_hosts.c.uuid == host_uuid)


def find(tx: Connection, hostname: str) -> ComputeHostRecord | None:
    """Return the host with that name, or None."""
    return _one(tx, compute_hosts.c.hostname == hostname)


def _one(tx: Connection, where: sa.ColumnElement[bool]) -> ComputeHostRecord | None:
    return fetch_one(tx, ComputeHostRecord, sa.select(*_HOST).where(where))


def list_all(tx: Connection, hosts: Collection[str] | None = None) -> list[ComputeHostRecord]:
    """Return all hosts, ordered by name; with *hosts*, at least these."""
    query = restricted(sa.select(*_HOST), compute_hosts.c.hostname, hosts)
    return fetch_all(tx, ComputeHostRecord, query.order_by(compute_hosts.c.hostname))


def update(tx: Connection, host: ComputeHostRecord, values: Mapping[str, Any]) -> None:
    """Write columns of a host."""
    tx.execute(compute_hosts.update().where(compute_hosts.c.id == host.id).values(updated_at=utcnow(), **values))


def delete(tx: Connection, host: ComputeHostRecord) -> None:
    """Remove a host; if it reports again, it gets another uuid."""
    tx.execute(compute_hosts.delete().where(compute_hosts.c.id == host.id))


_OF_HOST = (agents.c.hostname, compute_hosts.c.hostname, host_maintenances.c.hostname)
"""Columns with host names, of tables with one row per host."""
_OF_DEVICES = (devices.c.hostname, instances.c.host)
"""Columns with host names, of things that a host has; no other host can be renamed to a host that has any."""
_OTHERS = (instances.c.requested_host, arqs.c.hostname, provider_config_additions.c.hostname)


def is_known(tx: Connection, hostname: str) -> bool:
    """Return whether a row names the host."""
    return any(_count(tx, column, hostname) for column in (*_OF_HOST, *_OF_DEVICES))


def has_devices(tx: Connection, hostname: str) -> bool:
    """Return whether the host has devices, PCI functions or instances."""
    return any(_count(tx, column, hostname) for column in _OF_DEVICES)


def rename(tx: Connection, hostname: str, new_hostname: str) -> None:
    """Rename *hostname* to *new_hostname* in every row.

    Rows of an idle host of the new name are replaced by those of the renamed host. Its maintenance stays, unless the
    renamed host is in maintenance.
    """
    for column in _OF_HOST:
        if _count(tx, column, hostname):
            tx.execute(column.table.delete().where(column == new_hostname))
    additions = provider_config_additions
    tx.execute(additions.delete().where(additions.c.hostname == new_hostname))
    _rename_deployables(tx, hostname, new_hostname)
    for column in (*_OF_HOST, *_OF_DEVICES, *_OTHERS):
        table = column.table
        # For an instance, updated_at is the last report of the service that works on it.
        same = {"updated_at": table.c.updated_at} if "updated_at" in table.c else {}
        tx.execute(table.update().where(column == hostname).values({column.key: new_hostname, **same}))


def _rename_deployables(tx: Connection, hostname: str, new_hostname: str) -> None:
    own = sa.select(deployables.c.id, deployables.c.name).join(devices, deployables.c.device_id == devices.c.id)
    for row in tx.execute(own.where(devices.c.hostname == hostname)).all():
        name = renamed(row.name, hostname, new_hostname)
        tx.execute(deployables.update().where(deployables.c.id == row.id).values(name=name))


def renamed(name: str, hostname: str, new_hostname: str) -> str:
    """Return the new name of a provider of a renamed host; a name without the host's is unchanged."""
    rest = name.removeprefix(hostname)
    return new_hostname + rest if name == hostname or (rest != name and rest.startswith("_")) else name


def _count(tx: Connection, column: sa.Column[str], hostname: str) -> int:
    return int(tx.execute(sa.select(sa.func.count()).select_from(column.table).where(column == hostname)).scalar_one())


@dataclass(frozen=True)
class MaintenanceRecord:
    """Represent a host in maintenance. ``actor``: the caller that began it."""

    id: int
    hostname: str
    reason: str
    actor: str
    began_at: datetime


_MAINTENANCE = columns(MaintenanceRecord, host_maintenances)


def get_maintenance(tx: Connection, hostname: str) -> MaintenanceRecord | None:
    """Return the maintenance of a host, or None if the host is in service."""
    return fetch_one(tx, MaintenanceRecord, sa.select(*_MAINTENANCE).where(host_maintenances.c.hostname == hostname))


def by_host(tx: Connection, hosts: Collection[str] | None = None) -> Mapping[str, MaintenanceRecord]:
    """Return all hosts in maintenance, by name; with *hosts*, at least those of these."""
    query = restricted(sa.select(*_MAINTENANCE), host_maintenances.c.hostname, hosts)
    return {row.hostname: row for row in fetch_all(tx, MaintenanceRecord, query)}


def insert_maintenance(tx: Connection, hostname: str, reason: str, actor: str) -> None:
    """Record that a host is in maintenance."""
    tx.execute(host_maintenances.insert().values(hostname=hostname, reason=reason, actor=actor, began_at=utcnow()))


def delete_maintenance(tx: Connection, hostname: str) -> bool:
    """Remove the record of a host; return False if there is none."""
    return tx.execute(host_maintenances.delete().where(host_maintenances.c.hostname == hostname)).rowcount > 0


def hostnames(tx: Connection) -> list[str]:
    """Return every host that has an agent, a device, a compute service or a maintenance, by name."""
    tables = (agents, devices, compute_hosts, host_maintenances)
    return sorted(tx.scalars(sa.union(*(sa.select(table.c.hostname) for table in tables))))


def unlike_their_host(tx: Connection) -> list[str]:
    """Return the uuids of devices whose flag differs from the record of their host."""
    recorded = sa.exists().where(host_maintenances.c.hostname == devices.c.hostname)
    differs = sa.or_(
        sa.and_(devices.c.host_maintained.is_(True), ~recorded), sa.and_(devices.c.host_maintained.is_(False), recorded)
    )
    return list(tx.scalars(sa.select(devices.c.uuid).where(differs).order_by(devices.c.id)))


@dataclass(frozen=True)
class RenameRecord:
    """Represent a rename row. ``actor``: the operator that began it."""

    id: int
    hostname: str
    new_hostname: str
    actor: str
    began_at: datetime


_RENAME = columns(RenameRecord, host_renames)


def about(tx: Connection, *names: str) -> list[RenameRecord]:
    """Return the renames from or to one of *names*."""
    either = sa.or_(host_renames.c.hostname.in_(names), host_renames.c.new_hostname.in_(names))
    return fetch_all(tx, RenameRecord, sa.select(*_RENAME).where(either).order_by(host_renames.c.id))


def insert_rename(tx: Connection, hostname: str, new_hostname: str, actor: str) -> None:
    """Record that a rename has begun."""
    values = {"hostname": hostname, "new_hostname": new_hostname, "actor": actor, "began_at": utcnow()}
    tx.execute(host_renames.insert().values(**values))


def delete_rename(tx: Connection, hostname: str) -> None:
    """Remove the record of a rename that is complete, or that was given up before any change."""
    tx.execute(host_renames.delete().where(host_renames.c.hostname == hostname))
