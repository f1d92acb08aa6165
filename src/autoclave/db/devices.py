"""Store devices, their deployables and their control paths.

Devices and their deployables: one row of the first, one or more of the second.

Devices as the accelerator API shows them: the columns that it shows, in one quick query.

Control paths: how the host addresses a device.
"""

import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

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
from autoclave.rules.device_lifecycle import ACTIVE, DeviceState, Offer


@dataclass(frozen=True)
class DeviceRecord:
    """A device row: what sits, or sat, in one PCI slot of one host.

    ``serial`` and ``drive_model`` name the drive that the row is about; ``found_serial`` and
    ``found_drive_model`` one that was seen in the slot and waits to be accepted: another, or itself after it was away.
    ``layout`` is the layout of the drive on record, ``found_layout`` another one that it was found with; see
    ``rules.drive_layout``.
    ``release_pending``: a pending release (protocol page, rule 3); ``release_number`` numbers the releases.
    ``host_maintained``: its host is in maintenance.
    ``unreadable_reason``: why it was available, and could not be looked at for ``[agent] unreadable_patience``.
    ``rewritten``: another service has written its provider, and no operator has seen to that since.
    ``forgetting``: the operator has said that it be forgotten, and its provider may be half gone.
    """

    id: int
    uuid: str
    type: DeviceType
    vendor: str
    model: str
    std_board_info: str | None
    vendor_board_info: str | None
    hostname: str
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
    agent_run_id: str | None
    progress_percent: float | None
    progress_step: str | None
    progress_stalled: bool
    progress_seconds_left: float | None
    created_at: datetime
    updated_at: datetime | None

    @property
    def supports_cleaning(self) -> bool:
        """Whether the device is erased after each instance (the NVMe specification's property)."""
        return self.type is DeviceType.NVME

    @property
    def was_away(self) -> bool:
        """Whether it waits to be accepted because it left the host while it was available, and came back."""
        itself = (self.found_serial, self.found_drive_model) == (self.serial, self.drive_model)
        return self.device_state is DeviceState.ERROR and self.found_serial is not None and itself

    @property
    def was_replaced(self) -> bool:
        """Whether another drive was found in its slot, and waits to be accepted."""
        return (self.found_serial, self.found_drive_model) != (None, None) and not self.was_away

    @property
    def board_info(self) -> dict[str, Any]:
        """``std_board_info`` as a mapping."""
        return dict(json.loads(self.std_board_info)) if self.std_board_info else {}

    @property
    def cleanup_action(self) -> str | None:
        """The action locked in at discovery; the specification keeps it in std_board_info."""
        return self.board_info.get("cleanup_action")

    @property
    def slot(self) -> str:
        """Where it is, for messages."""
        return f"{self.pci_address} of host {self.hostname}"

    @property
    def offer(self) -> Offer:
        """What ``rules.device_lifecycle`` needs to know."""
        return Offer(
            device_state=self.device_state,
            maintaining=self.status is DeviceStatus.MAINTAINING or self.host_maintained,
            held=self.held or self.forgetting,
            excluded=self.excluded_reason is not None,
            missing=self.missing,
            unreadable=self.unreadable_reason is not None,
        )


@dataclass(frozen=True)
class DeployableRecord:
    """A deployable row: the resource provider of a device.

    ``published_total``: the total that Autoclave has written last to its inventory; None: none yet.
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
"""What is selected to make a :class:`DeviceRecord`."""
_DEPLOYABLE = columns(DeployableRecord, deployables)

# Built once: to build a statement takes as long as to execute it.
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
    """The device with *uuid*; with *lock*, its row stays locked until the transaction ends."""
    return _one(tx, _BY_UUID_LOCKED if lock else _BY_UUID, uuid)


def get_by_id(tx: Connection, device_id: int, *, lock: bool = False) -> DeviceRecord | None:
    """The device with *device_id*; see :func:`get`."""
    return _one(tx, _BY_ID_LOCKED if lock else _BY_ID, device_id)


def _one(tx: Connection, query: sa.Select[Any], key: str | int) -> DeviceRecord | None:
    return fetch_one(tx, DeviceRecord, query, {"key": key})


def list_all(
    tx: Connection,
    *,
    device_type: str | None = None,
    hostname: str | None = None,
    states: Iterable[DeviceState] | None = None,
    shown_state: str | None = None,
    release_pending: bool | None = None,
    forgetting: bool | None = None,
    rewritten: bool | None = None,
    after: str | None = None,
    limit: int | None = None,
) -> list[DeviceRecord]:
    """Devices in order of their id, filtered; *after* is the uuid of the last one already seen.

    :param states: of the rows.
    :param shown_state: the state that a device is shown with, see ``rules.device_lifecycle``.
    """
    query = sa.select(*DEVICE)
    if device_type is not None:
        # as text, so that a type that does not exist is no error; no CAST, whose result MariaDB compares without case
        query = query.where(sa.type_coerce(devices.c.type, sa.String) == device_type)
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
    """Devices that are not offered because of an operator, of what was found of them, or of an error.

    Not those without a state: they are not judged yet, and what reads ``reserved`` then is an operator's word.
    """
    query = sa.select(*DEVICE).where(
        devices.c.device_state.is_not(None),
        sa.or_(
            devices.c.device_state == DeviceState.ERROR,
            devices.c.status == DeviceStatus.MAINTAINING,
            devices.c.host_maintained.is_(True),
            devices.c.held.is_(True),
            devices.c.forgetting.is_(True),
            devices.c.missing.is_(True),
            devices.c.excluded_reason.is_not(None),
            devices.c.unreadable_reason.is_not(None),
        ),
    )
    return fetch_all(tx, DeviceRecord, query.order_by(devices.c.id))


def held_in_part(tx: Connection, hostname: str) -> list[DeviceRecord]:
    """Devices of a host that are allocated although active ARQs hold none, or not all, of their handles."""
    holders = (
        sa.select(sa.func.count())
        .where(arqs.c.device_id == devices.c.id, arqs.c.state.in_(list(ACTIVE)))
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
    """The rows of all hosts that are about one drive, in order of their id. It can be in one slot only."""
    query = sa.select(*DEVICE).where(
        devices.c.serial == serial, sa.func.coalesce(devices.c.drive_model, "") == drive_model
    )
    return fetch_all(tx, DeviceRecord, query.order_by(devices.c.id))


def update(tx: Connection, device: DeviceRecord, values: Mapping[str, Any]) -> None:
    """Write columns that are neither the state nor its version: those only ``lifecycle.transitions`` writes."""
    tx.execute(devices.update().where(devices.c.id == device.id).values(**values))


def set_progress(tx: Connection, uuid: str, run_id: str, **progress: float | str | bool | None) -> None:
    """Show how far the erase is, if *run_id* is still the agent run that does it.

    :param progress: percent, step, stalled, seconds_left.
    """
    tx.execute(
        devices.update()
        .where(devices.c.uuid == uuid, devices.c.agent_run_id == run_id, devices.c.device_state == DeviceState.CLEANING)
        .values({f"progress_{name}": value for name, value in progress.items()})
    )


def delete(tx: Connection, device: DeviceRecord) -> None:
    """Remove a device with all that hangs on it. The caller has made sure that nothing uses it."""
    owned = sa.select(deployables.c.id).where(deployables.c.device_id == device.id).scalar_subquery()
    tx.execute(attach_handles.delete().where(attach_handles.c.deployable_id.in_(owned)))
    tx.execute(attributes.delete().where(attributes.c.deployable_id.in_(owned)))
    tx.execute(controlpath_ids.delete().where(controlpath_ids.c.device_id == device.id))
    mine = deployables.c.device_id == device.id
    # MariaDB looks at references row by row, so a parent could not go before its child.
    tx.execute(deployables.update().where(mine).values(parent_id=None, root_id=None))
    tx.execute(deployables.delete().where(mine))
    tx.execute(devices.delete().where(devices.c.id == device.id))


def insert_deployable(tx: Connection, values: Mapping[str, Any]) -> int:
    """Insert a deployable row and return its id."""
    return int(tx.execute(deployables.insert().values(**values)).inserted_primary_key[0])  # type: ignore[index]


def set_resource_class(tx: Connection, deployable: DeployableRecord, resource_class: str) -> None:
    """Note the class of the drive that is in the slot now; only while the device is idle."""
    tx.execute(deployables.update().where(deployables.c.id == deployable.id).values(resource_class=resource_class))


def set_accelerators(tx: Connection, deployable: DeployableRecord, number: int) -> None:
    """Note how many handles the deployable has, which is the total of its inventory."""
    tx.execute(deployables.update().where(deployables.c.id == deployable.id).values(num_accelerators=number))


def set_published_total(tx: Connection, deployable: DeployableRecord, total: int) -> None:
    """Note which total Placement has by Autoclave's own writing."""
    # The deployable itself is not changed by it, so its updated_at stays.
    values = {"published_total": total, "updated_at": deployables.c.updated_at}
    tx.execute(deployables.update().where(deployables.c.id == deployable.id).values(values))


def set_driver(tx: Connection, deployable: DeployableRecord, driver_name: str) -> None:
    """Note which driver serves the device."""
    tx.execute(deployables.update().where(deployables.c.id == deployable.id).values(driver_name=driver_name))


def by_provider(tx: Connection, rp_uuid: str) -> tuple[DeployableRecord, DeviceRecord] | None:
    """The deployable whose resource provider is *rp_uuid*, and its device."""
    row = tx.execute(_BY_PROVIDER, {"key": rp_uuid}).one_or_none()
    width = len(_DEPLOYABLE)
    return (DeployableRecord(*row[:width]), DeviceRecord(*row[width:])) if row else None


def providers_of(tx: Connection, uuid: str) -> list[str] | None:
    """The resource providers of the device with *uuid*; None if there is no such device."""
    found = list(tx.scalars(_PROVIDERS, {"key": uuid}))
    return [rp_uuid for rp_uuid in found if rp_uuid is not None] if found else None


def handles_of(tx: Connection, device: DeviceRecord) -> int:
    """How many attach handles a device is on record with, whoever uses them."""
    return int(tx.scalar(_HANDLES, {"key": device.id}) or 0)


def deployables_of(tx: Connection, device_ids: Sequence[int] | None = None) -> list[DeployableRecord]:
    """All deployables, or those of *device_ids*, in order of their id."""
    query = sa.select(*_DEPLOYABLE).order_by(deployables.c.id)
    if device_ids is not None:
        query = query.where(deployables.c.device_id.in_(device_ids))
    return fetch_all(tx, DeployableRecord, query)


class DeviceSummary(NamedTuple):
    """What every client of the API may see of a device; the enums as their values.

    ``device_state`` is the state that the device is shown with, next to ``status``; see ``db.query``.
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


# The enums as text: what they are is decided elsewhere, and a type that does not exist is then no error. No CAST, whose
# result MariaDB compares without case.
_STATUS = sa.case(
    (devices.c.host_maintained.is_(True), DeviceStatus.MAINTAINING.value),
    else_=sa.type_coerce(devices.c.status, sa.String),
).label("status")
"""A device in a host in maintenance is in maintenance, too."""
_MADE = {"status": _STATUS, "device_state": SHOWN_BESIDE_STATUS.label("device_state")}
_COLUMNS: list[sa.ColumnElement[Any]] = [
    _MADE[column.name]
    if column.name in _MADE
    else sa.type_coerce(column, sa.String).label(column.name)
    if isinstance(column.type, sa.Enum)
    else column
    for column in (devices.c[name] for name in DeviceSummary._fields)
]


def find(tx: Connection, uuid: str) -> DeviceSummary | None:
    """The device with *uuid*."""
    row = tx.execute(sa.select(*_COLUMNS).where(devices.c.uuid == uuid)).one_or_none()
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
    """Devices in *order*, filtered.

    :param related: values by field, see :data:`autoclave.db.query.FIELDS`.
    :param after: the uuid of the last one already seen.
    """
    query = sa.select(*_COLUMNS).where(*(device_matches(*pair) for pair in (related or {}).items()))
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
