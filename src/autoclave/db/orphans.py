"""Store what is known about the servers of another service that have bound accelerator requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.query import fetch_all
from autoclave.db.tables import arqs, attach_handles, devices, instances
from autoclave.rules.device_lifecycle import ARQState


@dataclass(frozen=True)
class Bound:
    """Represent a bound request, its device, and its attach handle.

    :param address: identity of the attach handle; for a PCI function, its full address.
    :param orphan_since: when the server was first found deleted, or None.
    :param orphan_reason: why the device waits for an operator, or None.
    :param server_seen: Nova has shown the server since the request was bound.
    """

    uuid: str
    instance_uuid: str
    project_id: str | None
    device_id: int
    device_rp_uuid: str | None
    orphan_since: datetime | None
    orphan_reason: str | None
    server_seen: bool
    hostname: str
    pci_address: str
    address: str


_AT_ONCE = 1000
"""Maximum number of requests per statement: SQLite permits 32766 parameters."""

_OF_ARQ = ("uuid", "instance_uuid", "project_id", "device_id", "device_rp_uuid", "orphan_since", "orphan_reason",
           "server_seen")  # fmt: skip
_OF_DEVICE = ("hostname", "pci_address")

_BOUND = (
    sa.select(*(arqs.c[name] for name in _OF_ARQ), *(devices.c[name] for name in _OF_DEVICE), attach_handles.c.identity)
    .join(devices, devices.c.id == arqs.c.device_id)
    .join(attach_handles, attach_handles.c.id == arqs.c.attach_handle_id)
    .outerjoin(instances, instances.c.uuid == arqs.c.instance_uuid)
    .where(arqs.c.state == ARQState.BOUND, arqs.c.instance_uuid.is_not(None), instances.c.uuid.is_(None))
    .order_by(arqs.c.id)
)
assert len(fields(Bound)) == len(_BOUND.selected_columns)


def bound(tx: Connection) -> list[Bound]:
    """Return the bound requests of servers that Autoclave does not run, in one query."""
    return fetch_all(tx, Bound, _BOUND)


def note(tx: Connection, requests: Sequence[Bound], since: datetime | None, reason: str | None) -> None:
    """Record what is known about the servers of *requests*, except for requests changed since they were read."""
    for earlier in {each.orphan_since for each in requests}:
        same = [each for each in requests if each.orphan_since == earlier]
        unchanged = arqs.c.orphan_since.is_(None) if earlier is None else arqs.c.orphan_since == earlier
        _update(tx, same, {"orphan_since": since, "orphan_reason": reason}, unchanged)


def note_seen(tx: Connection, requests: Sequence[Bound]) -> None:
    """Record that Nova has shown the servers of *requests*, for requests still bound for them."""
    _update(tx, requests, {"server_seen": True})


def _update(
    tx: Connection, requests: Sequence[Bound], values: Mapping[str, Any], *conditions: sa.ColumnElement[bool]
) -> None:
    """Write *values* to those of *requests* that are still bound for the same servers."""
    for start in range(0, len(requests), _AT_ONCE):
        pairs = [(each.uuid, each.instance_uuid) for each in requests[start : start + _AT_ONCE]]
        same = (
            arqs.c.uuid.in_([uuid for uuid, _ in pairs]),  # MariaDB uses no index for pairs
            sa.tuple_(arqs.c.uuid, arqs.c.instance_uuid).in_(pairs),
            arqs.c.state == ARQState.BOUND,
        )
        # Keep updated_at, because the request itself has not changed.
        tx.execute(arqs.update().where(*same, *conditions).values({**values, "updated_at": arqs.c.updated_at}))


def is_still(tx: Connection, request: Bound) -> bool:
    """Lock a request, and return whether it is unchanged since it was read."""
    query = sa.select(arqs.c.state, arqs.c.instance_uuid, arqs.c.orphan_since).where(arqs.c.uuid == request.uuid)
    row = tx.execute(query.with_for_update()).one_or_none()
    return row is not None and tuple(row) == (ARQState.BOUND, request.instance_uuid, request.orphan_since)
