"""Store attach handles.

A handle of a device profile is in use if and only if an active ARQ names it; this is never stored. A handle that an
instance gets by its flavor names the instance.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.query import columns, fetch_all
from autoclave.db.tables import AttachType, arqs, attach_handles, deployables, devices
from autoclave.rules.device_lifecycle import ACTIVE


@dataclass(frozen=True)
class HandleRecord:
    """Represent an attach handle row. ``attach_info`` is JSON; ``identity`` is constant when it changes.

    ``instance_uuid``: the instance that has claimed it by its flavor. ``missing``: it is no longer on the host, or in
    the configuration there.
    """

    id: int
    uuid: str
    deployable_id: int
    attach_type: AttachType
    attach_info: str
    identity: str
    instance_uuid: str | None
    missing: bool


@dataclass(frozen=True)
class HandleUse:
    """Represent a handle, and whether an active ARQ names it or an instance has claimed it."""

    handle: HandleRecord
    in_use: bool


_HANDLE = columns(HandleRecord, attach_handles)
_IN_USE = sa.or_(
    attach_handles.c.instance_uuid.is_not(None),
    sa.exists()
    .where(arqs.c.attach_handle_id == attach_handles.c.id, arqs.c.state.in_(list(ACTIVE)))
    .correlate(attach_handles),
)
_FREE = (
    sa.select(*_HANDLE)
    .where(attach_handles.c.deployable_id == sa.bindparam("key"), ~_IN_USE)
    .order_by(attach_handles.c.id)
)


def insert(tx: Connection, values: Mapping[str, Any]) -> int:
    """Insert a handle row and return its id."""
    return int(tx.execute(attach_handles.insert().values(**values)).inserted_primary_key[0])  # type: ignore[index]


def free(tx: Connection, deployable_id: int) -> list[HandleRecord]:
    """Return the free handles of a deployable, ordered by id."""
    return fetch_all(tx, HandleRecord, _FREE, {"key": deployable_id})


def of_deployables(tx: Connection, deployable_ids: Sequence[int]) -> dict[int, list[HandleUse]]:
    """Return the handles of each deployable, ordered by id, in one query."""
    query = sa.select(*_HANDLE, _IN_USE.label("in_use")).where(attach_handles.c.deployable_id.in_(deployable_ids))
    found: dict[int, list[HandleUse]] = defaultdict(list)
    for *columns_, in_use in tx.execute(query.order_by(attach_handles.c.id)):
        handle = HandleRecord(*columns_)
        found[handle.deployable_id].append(HandleUse(handle, bool(in_use)))
    return dict(found)


def identities(tx: Connection, ids: Collection[int]) -> list[str]:
    """Return the ``identity`` of each handle; for a PCI function, its full address."""
    query = sa.select(attach_handles.c.identity).where(attach_handles.c.id.in_(ids))
    return list(tx.execute(query.order_by(attach_handles.c.id)).scalars())


def stored(tx: Connection) -> list[tuple[str, str]]:
    """Return pairs of device slot (``HOST/PCI-ADDRESS``) and ``attach_info``, for every PCI handle."""
    query = (
        sa.select(devices.c.hostname, devices.c.pci_address, attach_handles.c.attach_info)
        .join(deployables, deployables.c.id == attach_handles.c.deployable_id)
        .join(devices, devices.c.id == deployables.c.device_id)
        .where(attach_handles.c.attach_type == AttachType.PCI)
        .order_by(devices.c.hostname, devices.c.pci_address, attach_handles.c.id)
    )
    return [(f"{host}/{address}", text) for host, address, text in tx.execute(query)]


def set_attach_info(tx: Connection, handle: HandleRecord, attach_info: str) -> None:
    """Write how a guest gets the handle from now on."""
    tx.execute(attach_handles.update().where(attach_handles.c.id == handle.id).values(attach_info=attach_info))


def delete(tx: Connection, handle: HandleRecord) -> None:
    """Remove a handle. The caller has verified that no ARQ names it."""
    tx.execute(attach_handles.delete().where(attach_handles.c.id == handle.id))
