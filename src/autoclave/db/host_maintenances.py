"""Hosts that the operator has put into maintenance, and the devices that do not follow their host yet."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.columns import utcnow
from autoclave.db.compute_tables import compute_hosts
from autoclave.db.query import columns, fetch_all, fetch_one, restricted
from autoclave.db.tables import agents, devices, host_maintenances


@dataclass(frozen=True)
class MaintenanceRecord:
    """A host in maintenance. ``actor``: the caller that has put it there."""

    id: int
    hostname: str
    reason: str
    actor: str
    began_at: datetime


_ROW = columns(MaintenanceRecord, host_maintenances)


def get(tx: Connection, hostname: str) -> MaintenanceRecord | None:
    """Return the maintenance of a host, or None if the host is in service."""
    return fetch_one(tx, MaintenanceRecord, sa.select(*_ROW).where(host_maintenances.c.hostname == hostname))


def by_host(tx: Connection, hosts: Collection[str] | None = None) -> Mapping[str, MaintenanceRecord]:
    """Return all hosts in maintenance, by name; with *hosts*, at least those of these."""
    query = restricted(sa.select(*_ROW), host_maintenances.c.hostname, hosts)
    return {row.hostname: row for row in fetch_all(tx, MaintenanceRecord, query)}


def insert(tx: Connection, hostname: str, reason: str, actor: str) -> None:
    """Record that a host is in maintenance."""
    tx.execute(host_maintenances.insert().values(hostname=hostname, reason=reason, actor=actor, began_at=utcnow()))


def delete(tx: Connection, hostname: str) -> bool:
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
