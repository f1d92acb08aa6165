"""Find and complete rows of the release before: devices without a state, requests without a link or a lease."""

from collections.abc import Sequence
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.columns import utcnow
from autoclave.db.tables import arqs, attach_handles, deployables, devices
from autoclave.rules.device_lifecycle import ACTIVE, ARQState

_UNLINKED = sa.and_(arqs.c.device_id.is_(None), arqs.c.deployable_id.is_not(None), arqs.c.state.in_(list(ACTIVE)))
_HALF_WAY = sa.and_(arqs.c.state.in_([ARQState.BIND_STARTED, ARQState.DELETING]), arqs.c.lease_expires_at.is_(None))


def devices_without_state(tx: Connection, hostname: str | None = None) -> list[int]:
    """Return the ids of devices whose ``device_state`` is NULL, of a host or of all."""
    return _of_host(tx, sa.select(devices.c.id).where(devices.c.device_state.is_(None)), hostname)


def devices_with_unlinked_requests(tx: Connection, hostname: str | None = None) -> list[int]:
    """Return the ids of devices held by a request that names only their deployable, as the release before writes it."""
    held = sa.select(deployables.c.device_id).join(arqs, arqs.c.deployable_id == deployables.c.id).where(_UNLINKED)
    return _of_host(tx, sa.select(devices.c.id).where(devices.c.id.in_(held)), hostname)


def _of_host(tx: Connection, query: sa.Select[tuple[int]], hostname: str | None) -> list[int]:
    if hostname is not None:
        query = query.where(devices.c.hostname == hostname)
    return list(tx.scalars(query.order_by(devices.c.id)))


def device_of_deployable(tx: Connection, deployable_id: int) -> int | None:
    """Return the id of the device that a deployable belongs to."""
    return tx.execute(sa.select(deployables.c.device_id).where(deployables.c.id == deployable_id)).scalar_one_or_none()


def link_requests(tx: Connection, device_id: int) -> None:
    """Set the device of active requests for its deployables. The caller has locked the device's row."""
    own = sa.select(deployables.c.id).where(deployables.c.device_id == device_id).scalar_subquery()
    linked = arqs.update().where(_UNLINKED, arqs.c.deployable_id.in_(own))
    tx.execute(linked.values(device_id=device_id, updated_at=utcnow()))


def holders(tx: Connection, device_id: int) -> int:
    """Return the number of active requests that name a device."""
    query = sa.select(sa.func.count()).select_from(arqs)
    return tx.execute(query.where(arqs.c.device_id == device_id, arqs.c.state.in_(list(ACTIVE)))).scalar_one()


def handles(tx: Connection, device_id: int) -> int:
    """Return the number of attach handles of a device, in use or not."""
    query = sa.select(sa.func.count()).select_from(attach_handles.join(deployables))
    return tx.execute(query.where(deployables.c.device_id == device_id)).scalar_one()


def requests_left_halfway(tx: Connection, hostname: str | None = None) -> list[int]:
    """Return the ids of requests in a bind or unbind without a lease, which no sweep would finish."""
    query = sa.select(arqs.c.id).where(_HALF_WAY)
    if hostname is not None:
        query = query.where(arqs.c.hostname == hostname)
    return list(tx.scalars(query.order_by(arqs.c.id)))


def give_lease(tx: Connection, ids: Sequence[int], expires_at: datetime) -> None:
    """Give *ids* a lease until *expires_at*; after that, any conductor finishes them."""
    leased = arqs.update().where(arqs.c.id.in_(ids), _HALF_WAY).values(lease_expires_at=expires_at, updated_at=utcnow())
    tx.execute(leased)
