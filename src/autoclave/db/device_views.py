"""Read devices and deployables with everything that is shown next to them.

The number of queries is constant.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db import agents as agent_rows
from autoclave.db import devices as device_rows
from autoclave.db import hosts as host_rows
from autoclave.db.devices import DeployableRecord, DeviceRecord
from autoclave.db.query import BY_ID, MOST_NAMED, Order, deployable_matches, paged
from autoclave.db.tables import DeviceStatus, arqs, attach_handles, attributes, deployables, devices
from autoclave.rules.device_lifecycle import ACTIVE, ARQState, Offer, shown_state
from autoclave.rules.reclaim import Reclaim, RequestedBy


@dataclass(frozen=True)
class Holder:
    """Represent what holds a device: an active ARQ, or an instance that has claimed a function by its flavor.

    ``uuid``, ``state``: of the ARQ; None for a claim. ``address``: the claimed function; None for an ARQ.

    ``orphan_reason``: why the device is not reclaimed automatically although its server seems deleted.
    """

    uuid: str | None
    state: str | None
    instance_uuid: str | None
    orphan_reason: str | None = None
    address: str | None = None


@dataclass(frozen=True)
class DeviceView:
    """Represent a device, its providers, the ARQs that hold it, and when its host's agent was last seen.

    ``host_disabled``: why the compute service of the host is disabled, possibly empty; None if it is enabled.
    """

    device: DeviceRecord
    deployables: tuple[DeployableRecord, ...]
    holders: tuple[Holder, ...]
    agent_last_seen: datetime | None
    host_disabled: str | None = None


def of(tx: Connection, records: Sequence[DeviceRecord]) -> list[DeviceView]:
    """Return the views of *records*, with five queries, or none if it is empty."""
    if not records:
        return []
    # For more than a page, reading all rows is cheaper than a list of ids, which an engine may also refuse.
    only = [record.id for record in records] if len(records) <= MOST_NAMED else None
    hosts = {record.hostname for record in records}
    deployables: dict[int, list[DeployableRecord]] = defaultdict(list)
    for deployable in device_rows.deployables_of(tx, only):
        deployables[deployable.device_id].append(deployable)
    holders = _holders(tx, only)
    disabled = {host.hostname: host.disabled_reason or "" for host in host_rows.list_all(tx, hosts) if host.disabled}
    seen = {agent.hostname: agent.last_seen for agent in agent_rows.list_all(tx, hosts)}
    return [
        DeviceView(
            record,
            tuple(deployables[record.id]),
            tuple(holders.get(record.id, ())),
            seen.get(record.hostname),
            disabled.get(record.hostname),
        )
        for record in records
    ]


def _holders(tx: Connection, device_ids: Sequence[int] | None) -> dict[int, list[Holder]]:
    query = sa.select(arqs.c.device_id, arqs.c.uuid, arqs.c.state, arqs.c.instance_uuid, arqs.c.orphan_reason).where(
        arqs.c.state.in_(list(ACTIVE)), arqs.c.device_id.is_not(None)
    )
    if device_ids is not None:
        query = query.where(arqs.c.device_id.in_(device_ids))
    found: dict[int, list[Holder]] = defaultdict(list)
    for device_id, uuid, state, instance_uuid, reason in tx.execute(query.order_by(arqs.c.id)):
        # An unbind that has begun continues without an operator.
        waits = reason if state is ARQState.BOUND else None
        found[device_id].append(Holder(uuid, state.value, instance_uuid, waits))
    claimed = (
        sa.select(deployables.c.device_id, attach_handles.c.instance_uuid, attach_handles.c.identity)
        .join(deployables, deployables.c.id == attach_handles.c.deployable_id)
        .where(attach_handles.c.instance_uuid.is_not(None))
    )
    if device_ids is not None:
        claimed = claimed.where(deployables.c.device_id.in_(device_ids))
    for device_id, instance_uuid, address in tx.execute(claimed.order_by(attach_handles.c.identity)):
        found[device_id].append(Holder(None, None, instance_uuid, address=address))
    return dict(found)


@dataclass(frozen=True)
class Census:
    """Count devices with the same properties.

    :param state: their shown state; None for rows without a state, before the data migration.
    """

    hostname: str
    device_type: str
    requested_by: RequestedBy
    reclaim: Reclaim
    state: str | None
    held: bool
    missing: bool
    excluded: bool
    unreadable: bool
    outdated: bool
    maintaining: bool
    stalled: bool
    rewritten: bool
    count: int


def census(tx: Connection) -> list[Census]:
    """Return the counts of devices by their properties, in one query."""
    excluded = devices.c.excluded_reason.is_not(None)
    unreadable = devices.c.unreadable_reason.is_not(None)
    keys = (
        devices.c.hostname,
        devices.c.type,
        devices.c.requested_by,
        devices.c.reclaim,
        devices.c.device_state,
        devices.c.held,
        devices.c.forgetting,
        devices.c.missing,
        excluded,
        unreadable,
        devices.c.outdated,
        devices.c.status,
        devices.c.host_maintained,
        devices.c.progress_stalled,
        devices.c.rewritten,
    )
    counted = []
    for (
        host,
        kind,
        requested_by,
        reclaim,
        state,
        held,
        forgetting,
        missing,
        out,
        unread,
        outdated,
        status,
        in_host,
        stalled,
        rewritten,
        count,
    ) in tx.execute(sa.select(*keys, sa.func.count()).group_by(*keys)):
        maintaining = status is DeviceStatus.MAINTAINING or in_host
        offer = Offer(state, maintaining, held or forgetting, bool(out), missing, bool(unread), outdated)
        counted.append(
            Census(
                hostname=host,
                device_type=kind.value,
                requested_by=requested_by,
                reclaim=reclaim,
                state=shown_state(offer),
                held=held,
                missing=missing,
                excluded=bool(out),
                unreadable=bool(unread),
                outdated=outdated,
                maintaining=maintaining,
                stalled=stalled,
                rewritten=rewritten,
                count=count,
            )
        )
    return counted


class DeployableRow(NamedTuple):
    """Represent the columns of a deployable that the API shows."""

    id: int
    uuid: str
    parent_id: int | None
    root_id: int | None
    name: str
    num_accelerators: int
    device_id: int
    rp_uuid: str
    driver_name: str
    bitstream_id: str | None
    created_at: datetime
    updated_at: datetime | None


Attributes = Mapping[int, Sequence[tuple[str, str]]]
"""Key and value of each attribute in insertion order, by the deployable's id."""

_COLUMNS = [deployables.c[name] for name in DeployableRow._fields]


def views(
    tx: Connection,
    *,
    uuid: str | None = None,
    related: Mapping[str, str] | None = None,
    order: Order = BY_ID,
    after: str | None = None,
    limit: int | None = None,
) -> tuple[list[DeployableRow], Attributes]:
    """Return the deployables that device profiles ask for, in *order*, filtered, and their attributes, with two
    queries.

    :param related: values by field, see :data:`autoclave.db.query.FIELDS`.
    :param after: the uuid of the last one already seen.
    """
    of_profiles = sa.select(devices.c.id).where(devices.c.requested_by == RequestedBy.PROFILE)
    query = sa.select(*_COLUMNS).where(
        deployables.c.device_id.in_(of_profiles), *(deployable_matches(*pair) for pair in (related or {}).items())
    )
    if uuid is not None:
        query = query.where(deployables.c.uuid == uuid)
    query = paged(query, deployables, order, after=after, limit=limit)
    rows = list(map(DeployableRow._make, tx.execute(query).all()))
    pairs: dict[int, list[tuple[str, str]]] = defaultdict(list)
    if rows:
        # A range includes them all; a list could exceed the engine's limit.
        wanted = attributes.c.deployable_id.between(min(row.id for row in rows), max(row.id for row in rows))
        selected = sa.select(attributes.c.deployable_id, attributes.c.key, attributes.c.value).where(wanted)
        for deployable_id, key, value in tx.execute(selected.order_by(attributes.c.id)).all():
            pairs[deployable_id].append((key, value))
    return rows, pairs
