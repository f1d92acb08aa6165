"""Devices with all that an operator wants to see beside them, in a constant number of queries."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db import agents as agent_rows
from autoclave.db import devices as device_rows
from autoclave.db import hosts as host_rows
from autoclave.db.devices import DeployableRecord, DeviceRecord
from autoclave.db.query import MOST_NAMED
from autoclave.db.tables import DeviceStatus, arqs, devices
from autoclave.rules.device_lifecycle import ACTIVE, ARQState, Offer, shown_state


@dataclass(frozen=True)
class Holder:
    """An active ARQ that holds a device.

    ``orphan_reason``: its server looks deleted, and the device is not given back by itself for this reason.
    """

    uuid: str
    state: str
    instance_uuid: str | None
    orphan_reason: str | None = None


@dataclass(frozen=True)
class DeviceView:
    """A device, its providers, the ARQs that hold it, and when its host's agent was last seen.

    ``host_disabled``: the compute service of the host is disabled, with this reason, which may be empty.
    """

    device: DeviceRecord
    deployables: tuple[DeployableRecord, ...]
    holders: tuple[Holder, ...]
    agent_last_seen: datetime | None
    host_disabled: str | None = None


def of(tx: Connection, records: Sequence[DeviceRecord]) -> list[DeviceView]:
    """The views of *records*: four queries, or none for none."""
    if not records:
        return []
    # Beyond a page, all rows cost less than a list of ids, which an engine may not even take.
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
        # An unbind that has begun goes on by itself.
        waits = reason if state is ARQState.BOUND else None
        found[device_id].append(Holder(uuid, state.value, instance_uuid, waits))
    return dict(found)


@dataclass(frozen=True)
class Census:
    """How many devices are alike.

    :param state: the state that they are shown with; None for rows that no data migration has given a state yet.
    """

    hostname: str
    device_type: str
    state: str | None
    held: bool
    missing: bool
    excluded: bool
    unreadable: bool
    maintaining: bool
    stalled: bool
    rewritten: bool
    count: int


def census(tx: Connection) -> list[Census]:
    """The devices counted by what matters of them, in one query."""
    excluded = devices.c.excluded_reason.is_not(None)
    unreadable = devices.c.unreadable_reason.is_not(None)
    keys = (
        devices.c.hostname,
        devices.c.type,
        devices.c.device_state,
        devices.c.held,
        devices.c.forgetting,
        devices.c.missing,
        excluded,
        unreadable,
        devices.c.status,
        devices.c.host_maintained,
        devices.c.progress_stalled,
        devices.c.rewritten,
    )
    counted = []
    for (
        host,
        kind,
        state,
        held,
        forgetting,
        missing,
        out,
        unread,
        status,
        in_host,
        stalled,
        rewritten,
        count,
    ) in tx.execute(sa.select(*keys, sa.func.count()).group_by(*keys)):
        maintaining = status is DeviceStatus.MAINTAINING or in_host
        shown = shown_state(Offer(state, maintaining, held or forgetting, bool(out), missing, bool(unread)))
        counted.append(
            Census(
                host, kind.value, shown, held, missing, bool(out), bool(unread), maintaining, stalled, rewritten, count
            )
        )
    return counted
