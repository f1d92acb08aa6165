"""Store devices, their deployables and their control paths."""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.columns import utcnow
from autoclave.db.query import (
    BY_ID,
    SHOWN_BESIDE_STATUS,
    Order,
    columns,
    device_matches,
    fetch_all,
    fetch_one,
    is_shown,
    paged,
)
from autoclave.db.tables import (
    DeviceStatus,
    DeviceType,
    arqs,
    attach_handles,
    attributes,
    controlpath_ids,
    deployables,
    devices,
)
from autoclave.rules.device_lifecycle import ACTIVE, DeviceState, Offer, Reserving
from autoclave.rules.reclaim import BurnState, Reclaim, RequestedBy


@dataclass(frozen=True)
class DeviceRecord:
    """Represent a device row: the device that is, or was, in one PCI slot of one host.

    :param serial: with ``drive_model``, identifies the drive on record.
    :param found_serial: with ``found_drive_model``, identifies a drive found in the slot that waits to be accepted:
        another one, or the same one after it was away.
    :param layout: layout of the drive on record, see ``rules.drive_layout``.
    :param found_layout: a different layout found on that drive.
    :param release_pending: Autoclave must lower ``reserved``.
    :param release_number: distinguishes one pending release from the next.
    :param host_maintained: its host is in maintenance.
    :param unreadable_reason: why it could not be read for ``[agent] unreadable_patience`` while available.
    :param outdated: the host or its configuration has changed, and the device follows when it is free.
    :param waiting_for: that change, and what it waits for; None if there is none.
    :param withheld: Autoclave has reserved it because it is unreadable or outdated, and must lower ``reserved`` later.
    :param burned_at: when an instance got the one-time-use device; None if it is offered again since.
    :param burned_for: that instance; None if it is unknown.
    :param burn_confirmed: the spent device was seen idle, with ``reserved=total`` in Placement.
    :param rewritten: another service has written its provider, and no operator has resolved that since.
    :param forgetting: an operator has asked to forget it, and its provider may be partly deleted.
    """

    id: int
    uuid: str
    type: DeviceType
    vendor: str
    model: str
    std_board_info: str | None
    vendor_board_info: str | None
    hostname: str
    requested_by: RequestedBy
    reclaim: Reclaim
    status: DeviceStatus
    device_state: DeviceState | None
    pci_address: str
    serial: str | None
    drive_model: str | None
    found_serial: str | None
    found_drive_model: str | None
    layout: str | None
    found_layout: str | None
    state_version: int
    state_reason: str | None
    release_pending: bool
    release_number: int
    held: bool
    hold_reason: str | None
    forgetting: bool
    host_maintained: bool
    rewritten: bool
    missing: bool
    excluded_reason: str | None
    unreadable_reason: str | None
    outdated: bool
    waiting_for: str | None
    withheld: bool
    burned_at: datetime | None
    burned_for: str | None
    burn_confirmed: bool
    agent_run_id: str | None
    progress_percent: float | None
    progress_step: str | None
    progress_stalled: bool
    progress_seconds_left: float | None
    created_at: datetime
    updated_at: datetime | None

    @property
    def supports_cleaning(self) -> bool:
        """Return whether the device is cleaned after each instance (the NVMe specification's property)."""
        return self.reclaim is Reclaim.ERASE

    @property
    def is_drive(self) -> bool:
        """Return whether it is a drive, which its serial number identifies in every slot."""
        return self.type is DeviceType.NVME

    @property
    def is_function(self) -> bool:
        """Return whether ``[pci] device_spec`` selects it, and no device driver discovers it."""
        return self.requested_by is RequestedBy.FLAVOR and not self.is_drive

    @property
    def is_held_back(self) -> bool:
        """Return whether it becomes ``spent`` after its instance. A burn does not end with the policy."""
        return self.reclaim is Reclaim.HOLD or self.burned_at is not None

    def keeps_erase(self, wanted: Reclaim) -> bool:
        """Return whether the device is still erased once although its entry became *wanted*.

        Until it is available, the data of an instance that was promised an erase may be on it.
        """
        return self.supports_cleaning and wanted is Reclaim.NONE and self.device_state is not DeviceState.AVAILABLE

    @property
    def burn_state(self) -> BurnState:
        """Return the state in which ``burned`` shows it."""
        if self.burned_at is None:
            return BurnState.NOT_BURNED
        if self.device_state is DeviceState.AVAILABLE:
            return BurnState.RELEASED
        return BurnState.CONFIRMED if self.burn_confirmed else BurnState.BURNED

    @property
    def was_away(self) -> bool:
        """Return whether it waits to be accepted because it left the host while available, and came back."""
        itself = (self.found_serial, self.found_drive_model) == (self.serial, self.drive_model)
        return self.device_state is DeviceState.ERROR and self.found_serial is not None and itself

    @property
    def was_replaced(self) -> bool:
        """Return whether another drive was found in its slot, and waits to be accepted."""
        return (self.found_serial, self.found_drive_model) != (None, None) and not self.was_away

    @property
    def board_info(self) -> dict[str, Any]:
        """Return ``std_board_info`` as a mapping."""
        return dict(json.loads(self.std_board_info)) if self.std_board_info else {}

    @property
    def cleanup_action(self) -> str | None:
        """Return the cleanup action locked in at discovery, which the specification keeps in ``std_board_info``."""
        return self.board_info.get("cleanup_action")

    @property
    def slot(self) -> str:
        """Return host and PCI address, for messages."""
        return f"{self.pci_address} of host {self.hostname}"

    @property
    def offer(self) -> Offer:
        """Return what ``rules.device_lifecycle`` decides by."""
        return Offer(
            device_state=self.device_state,
            maintaining=self.status is DeviceStatus.MAINTAINING or self.host_maintained,
            held=self.held or self.forgetting,
            excluded=self.excluded_reason is not None,
            missing=self.missing,
            unreadable=self.unreadable_reason is not None,
            outdated=self.outdated,
            lent=self.requested_by is RequestedBy.FLAVOR and self.reclaim is Reclaim.NONE and self.burned_at is None,
        )

    @property
    def reserving(self) -> Reserving:
        """Return what decides its ``reserved`` in Placement."""
        return Reserving(self.offer, self.burn_confirmed, self.release_pending, self.withheld)


NOT_BURNED: Mapping[str, Any] = {"burned_at": None, "burned_for": None, "burn_confirmed": False}
"""Columns of a device whose burn has ended."""


def burned_for(instance_uuid: str | None, now: datetime) -> dict[str, Any]:
    """Return the columns of a device that *instance_uuid* burns.

    :param instance_uuid: None if no instance is on record.
    """
    return {"burned_at": now, "burned_for": instance_uuid, "burn_confirmed": False}


@dataclass(frozen=True)
class DeployableRecord:
    """Represent a deployable row: the resource provider of a device.

    ``published_total``: the total that Autoclave last wrote to its inventory; None if it wrote none.
    """

    id: int
    uuid: str
    parent_id: int | None
    root_id: int | None
    name: str
    num_accelerators: int
    published_total: int | None
    device_id: int
    rp_uuid: str
    resource_class: str
    driver_name: str
    bitstream_id: str | None
    created_at: datetime
    updated_at: datetime | None


DEVICE = columns(DeviceRecord, devices)
"""Columns to select for a :class:`DeviceRecord`."""
_DEPLOYABLE = columns(DeployableRecord, deployables)

# Built once: building a statement takes as long as executing it.
_BY_UUID = sa.select(*DEVICE).where(devices.c.uuid == sa.bindparam("key"))
_BY_ID = sa.select(*DEVICE).where(devices.c.id == sa.bindparam("key"))
_BY_UUID_LOCKED = _BY_UUID.with_for_update()
_BY_ID_LOCKED = _BY_ID.with_for_update()
_BY_PROVIDER = (
    sa.select(*_DEPLOYABLE, *DEVICE)
    .join_from(deployables, devices, devices.c.id == deployables.c.device_id)
    .where(deployables.c.rp_uuid == sa.bindparam("key"))
)
_PROVIDERS = (
    sa.select(deployables.c.rp_uuid)
    .select_from(devices.outerjoin(deployables, deployables.c.device_id == devices.c.id))
    .where(devices.c.uuid == sa.bindparam("key"))
    .order_by(deployables.c.id)
)
_HANDLES = sa.select(sa.func.sum(deployables.c.num_accelerators)).where(deployables.c.device_id == sa.bindparam("key"))


def insert(tx: Connection, values: Mapping[str, Any]) -> int:
    """Insert a device row and return its id."""
    return int(tx.execute(devices.insert().values(**values)).inserted_primary_key[0])  # type: ignore[index]


def get(tx: Connection, uuid: str, *, lock: bool = False) -> DeviceRecord | None:
    """Return the device with *uuid*, or None; with *lock*, its row stays locked until the transaction ends."""
    return _one(tx, _BY_UUID_LOCKED if lock else _BY_UUID, uuid)


def get_by_id(tx: Connection, device_id: int, *, lock: bool = False) -> DeviceRecord | None:
    """Return the device with *device_id*; see :func:`get`."""
    return _one(tx, _BY_ID_LOCKED if lock else _BY_ID, device_id)


def _one(tx: Connection, query: sa.Select[Any], key: str | int) -> DeviceRecord | None:
    return fetch_one(tx, DeviceRecord, query, {"key": key})


def list_all(
    tx: Connection,
    *,
    device_type: str | None = None,
    requested_by: str | None = None,
    reclaim: str | None = None,
    hostname: str | None = None,
    states: Iterable[DeviceState] | None = None,
    shown_state: str | None = None,
    release_pending: bool | None = None,
    forgetting: bool | None = None,
    rewritten: bool | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> list[DeviceRecord]:
    """Return devices ordered by id, filtered; *after* is the uuid of the last one already seen.

    :param states: values of ``device_state``.
    :param shown_state: the shown state, see ``rules.device_lifecycle``.
    """
    query = sa.select(*DEVICE)
    if device_type is not None:
        # As text, so that an unknown type is no error. No CAST: MariaDB would compare its result without case.
        query = query.where(sa.type_coerce(devices.c.type, sa.String) == device_type)
    if requested_by is not None:
        query = query.where(devices.c.requested_by == RequestedBy(requested_by))
    if reclaim is not None:
        query = query.where(devices.c.reclaim == Reclaim(reclaim))
    if hostname is not None:
        query = query.where(devices.c.hostname == hostname)
    if states is not None:
        query = query.where(devices.c.device_state.in_(list(states)))
    if shown_state is not None:
        query = query.where(is_shown(shown_state))
    if release_pending is not None:
        query = query.where(devices.c.release_pending.is_(release_pending))
    if forgetting is not None:
        query = query.where(devices.c.forgetting.is_(forgetting))
    if rewritten is not None:
        query = query.where(devices.c.rewritten.is_(rewritten))
    return fetch_all(tx, DeviceRecord, paged(query, devices, after=after, limit=limit))


def withdrawn(tx: Connection) -> list[DeviceRecord]:
    """Return devices not offered because of an operator, of a discovery, or of an error.

    Devices without a state are excluded: until the backfill, ``reserved`` counts as an operator's hold.
    """
    query = sa.select(*DEVICE).where(
        devices.c.device_state.is_not(None),
        sa.or_(
            devices.c.device_state.in_([DeviceState.ERROR, DeviceState.SPENT]),
            devices.c.status == DeviceStatus.MAINTAINING,
            devices.c.host_maintained.is_(True),
            devices.c.held.is_(True),
            devices.c.forgetting.is_(True),
            devices.c.missing.is_(True),
            devices.c.excluded_reason.is_not(None),
            devices.c.unreadable_reason.is_not(None),
            devices.c.outdated.is_(True),
        ),
    )
    return fetch_all(tx, DeviceRecord, query.order_by(devices.c.id))


def held_in_part(tx: Connection, hostname: str) -> list[DeviceRecord]:
    """Return allocated devices of a host with handles that no active ARQ and no instance holds."""
    holders = (
        sa.select(sa.func.count())
        .where(arqs.c.device_id == devices.c.id, arqs.c.state.in_(list(ACTIVE)))
        .correlate(devices)
        .scalar_subquery()
    ) + (
        sa.select(sa.func.count())
        .join_from(attach_handles, deployables, deployables.c.id == attach_handles.c.deployable_id)
        .where(deployables.c.device_id == devices.c.id, attach_handles.c.instance_uuid.is_not(None))
        .correlate(devices)
        .scalar_subquery()
    )
    total = (
        sa.select(sa.func.sum(deployables.c.num_accelerators))
        .where(deployables.c.device_id == devices.c.id)
        .correlate(devices)
        .scalar_subquery()
    )
    query = sa.select(*DEVICE).where(
        devices.c.hostname == hostname,
        devices.c.device_state == DeviceState.ALLOCATED,
        sa.or_(holders == 0, holders < total),
    )
    return fetch_all(tx, DeviceRecord, query.order_by(devices.c.id))


def with_drive(tx: Connection, serial: str, drive_model: str) -> list[DeviceRecord]:
    """Return the rows of all hosts with one drive on record, ordered by id. The drive is in one slot only."""
    query = sa.select(*DEVICE).where(
        devices.c.serial == serial, sa.func.coalesce(devices.c.drive_model, "") == drive_model
    )
    return fetch_all(tx, DeviceRecord, query.order_by(devices.c.id))


def update(tx: Connection, device: DeviceRecord, values: Mapping[str, Any]) -> None:
    """Write columns other than the state and its version, which only ``lifecycle.transitions`` writes."""
    tx.execute(devices.update().where(devices.c.id == device.id).values(**values))


def note_withheld(tx: Connection, device: DeviceRecord, *, withheld: bool) -> bool:
    """Record whether Autoclave has reserved a doubted device, if its row is unchanged.

    The version is kept, because the state has not changed.

    :returns: whether the row was written.
    """
    statement = devices.update().where(
        devices.c.id == device.id,
        devices.c.state_version == device.state_version,
        devices.c.outdated.is_(device.outdated),
        devices.c.withheld.is_(device.withheld),
    )
    return tx.execute(statement.values(withheld=withheld, updated_at=utcnow())).rowcount == 1


def set_progress(tx: Connection, uuid: str, run_id: str, **progress: float | str | bool | None) -> None:
    """Write the progress of an erase, if *run_id* is still the agent run that performs it.

    :param progress: percent, step, stalled, seconds_left.
    """
    tx.execute(
        devices.update()
        .where(devices.c.uuid == uuid, devices.c.agent_run_id == run_id, devices.c.device_state == DeviceState.CLEANING)
        .values({f"progress_{name}": value for name, value in progress.items()})
    )


def delete(tx: Connection, device: DeviceRecord) -> None:
    """Remove a device with its dependent rows. The caller has verified that it is unused."""
    owned = sa.select(deployables.c.id).where(deployables.c.device_id == device.id).scalar_subquery()
    tx.execute(attach_handles.delete().where(attach_handles.c.deployable_id.in_(owned)))
    tx.execute(attributes.delete().where(attributes.c.deployable_id.in_(owned)))
    tx.execute(controlpath_ids.delete().where(controlpath_ids.c.device_id == device.id))
    mine = deployables.c.device_id == device.id
    # MariaDB checks references row by row, so a parent cannot be deleted before its child.
    tx.execute(deployables.update().where(mine).values(parent_id=None, root_id=None))
    tx.execute(deployables.delete().where(mine))
    tx.execute(devices.delete().where(devices.c.id == device.id))


def insert_deployable(tx: Connection, values: Mapping[str, Any]) -> int:
    """Insert a deployable row and return its id."""
    return int(tx.execute(deployables.insert().values(**values)).inserted_primary_key[0])  # type: ignore[index]


def set_resource_class(tx: Connection, deployable: DeployableRecord, resource_class: str) -> None:
    """Write the resource class of the drive now in the slot; only while the device is idle."""
    tx.execute(deployables.update().where(deployables.c.id == deployable.id).values(resource_class=resource_class))


def set_accelerators(tx: Connection, deployable: DeployableRecord, number: int) -> None:
    """Write the number of handles of the deployable, which is the total of its inventory."""
    tx.execute(deployables.update().where(deployables.c.id == deployable.id).values(num_accelerators=number))


def set_published_total(tx: Connection, deployable: DeployableRecord, total: int) -> None:
    """Write the total that Autoclave has written to Placement."""
    # Keep updated_at, because the deployable itself has not changed.
    values = {"published_total": total, "updated_at": deployables.c.updated_at}
    tx.execute(deployables.update().where(deployables.c.id == deployable.id).values(values))


def set_driver(tx: Connection, deployable: DeployableRecord, driver_name: str) -> None:
    """Write the name of the driver that serves the device."""
    tx.execute(deployables.update().where(deployables.c.id == deployable.id).values(driver_name=driver_name))


def by_provider(tx: Connection, rp_uuid: str) -> tuple[DeployableRecord, DeviceRecord] | None:
    """Return the deployable with the resource provider *rp_uuid* and its device, or None."""
    row = tx.execute(_BY_PROVIDER, {"key": rp_uuid}).one_or_none()
    width = len(_DEPLOYABLE)
    return (DeployableRecord(*row[:width]), DeviceRecord(*row[width:])) if row else None


def providers_of(tx: Connection, uuid: str) -> list[str] | None:
    """Return the resource providers of the device with *uuid*; None if there is no such device."""
    found = list(tx.scalars(_PROVIDERS, {"key": uuid}))
    return [rp_uuid for rp_uuid in found if rp_uuid is not None] if found else None


def handles_of(tx: Connection, device: DeviceRecord) -> int:
    """Return the number of attach handles of a device, in use or not."""
    return int(tx.scalar(_HANDLES, {"key": device.id}) or 0)


def deployables_of(tx: Connection, device_ids: Sequence[int] | None = None) -> list[DeployableRecord]:
    """Return all deployables, or those of *device_ids*, ordered by id."""
    query = sa.select(*_DEPLOYABLE).order_by(deployables.c.id)
    if device_ids is not None:
        query = query.where(deployables.c.device_id.in_(device_ids))
    return fetch_all(tx, DeployableRecord, query)


class DeviceSummary(NamedTuple):
    """Represent the columns of a device that every API client may see, with enums as their values.

    ``device_state`` is the state shown next to ``status``; see ``db.query``.
    """

    uuid: str
    type: str
    vendor: str
    model: str
    std_board_info: str | None
    vendor_board_info: str | None
    hostname: str
    status: str
    device_state: str | None
    created_at: datetime
    updated_at: datetime | None


# Enums as text, so that an unknown type is no error. No CAST: MariaDB would compare its result without case.
_STATUS = sa.case(
    (devices.c.host_maintained.is_(True), DeviceStatus.MAINTAINING.value),
    else_=sa.type_coerce(devices.c.status, sa.String),
).label("status")
"""Status as shown: a device of a host in maintenance is in maintenance as well."""
_MADE = {"status": _STATUS, "device_state": SHOWN_BESIDE_STATUS.label("device_state")}
_COLUMNS: list[sa.ColumnElement[Any]] = [
    _MADE[column.name]
    if column.name in _MADE
    else sa.type_coerce(column, sa.String).label(column.name)
    if isinstance(column.type, sa.Enum)
    else column
    for column in (devices.c[name] for name in DeviceSummary._fields)
]


_OF_PROFILES = devices.c.requested_by == RequestedBy.PROFILE


def find(tx: Connection, uuid: str) -> DeviceSummary | None:
    """Return the device with *uuid* that device profiles ask for, or None."""
    row = tx.execute(sa.select(*_COLUMNS).where(devices.c.uuid == uuid, _OF_PROFILES)).one_or_none()
    return DeviceSummary._make(row) if row else None


def summaries(
    tx: Connection,
    *,
    device_type: str | None = None,
    vendor: str | None = None,
    hostname: str | None = None,
    related: Mapping[str, str] | None = None,
    order: Order = BY_ID,
    after: str | None = None,
    limit: int | None = None,
) -> list[DeviceSummary]:
    """Return the devices that device profiles ask for, in *order*, filtered.

    :param related: values by field, see :data:`autoclave.db.query.FIELDS`.
    :param after: the uuid of the last one already seen.
    """
    query = sa.select(*_COLUMNS).where(_OF_PROFILES, *(device_matches(*pair) for pair in (related or {}).items()))
    if device_type is not None:
        query = query.where(sa.type_coerce(devices.c.type, sa.String) == device_type)
    if vendor is not None:
        query = query.where(devices.c.vendor == vendor)
    if hostname is not None:
        query = query.where(devices.c.hostname == hostname)
    query = paged(query, devices, order, after=after, limit=limit)
    return list(map(DeviceSummary._make, tx.execute(query).all()))


def insert_controlpath(tx: Connection, device_id: int, values: Mapping[str, Any]) -> None:
    """Insert the control path of a device."""
    tx.execute(controlpath_ids.insert().values(uuid=str(uuid.uuid4()), device_id=device_id, **values))
