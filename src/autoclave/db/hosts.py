"""Hosts that run instances: what their agents say of them, and what the operator wants of them."""

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.columns import utcnow
from autoclave.db.compute_tables import compute_hosts
from autoclave.db.query import columns, fetch_all, fetch_one, restricted


@dataclass(frozen=True)
class ComputeHostRecord:
    """A host row. ``memory_mb`` is in MiB, ``local_gb`` in GiB; ``rp_uuid`` is the root of its provider tree.

    ``uuid`` is what the API shows as the id of its service and of its hypervisor. ``disabled``: gets no new
    instances. ``forced_down``: the operator knows that it is dead.
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
    """Note what an agent says of its host; the first time, the host gets its uuid. What is known already costs a read.

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
    """The host with that uuid."""
    return _one(tx, compute_hosts.c.uuid == host_uuid)


def find(tx: Connection, hostname: str) -> ComputeHostRecord | None:
    """The host with that name."""
    return _one(tx, compute_hosts.c.hostname == hostname)


def _one(tx: Connection, where: sa.ColumnElement[bool]) -> ComputeHostRecord | None:
    return fetch_one(tx, ComputeHostRecord, sa.select(*_HOST).where(where))


def list_all(tx: Connection, hosts: Collection[str] | None = None) -> list[ComputeHostRecord]:
    """All hosts, by name; with *hosts*, at least these."""
    query = restricted(sa.select(*_HOST), compute_hosts.c.hostname, hosts)
    return fetch_all(tx, ComputeHostRecord, query.order_by(compute_hosts.c.hostname))


def update(tx: Connection, host: ComputeHostRecord, values: Mapping[str, Any]) -> None:
    """Write columns."""
    tx.execute(compute_hosts.update().where(compute_hosts.c.id == host.id).values(updated_at=utcnow(), **values))


def delete(tx: Connection, host: ComputeHostRecord) -> None:
    """Remove a host; one that reports again gets another uuid."""
    tx.execute(compute_hosts.delete().where(compute_hosts.c.id == host.id))
