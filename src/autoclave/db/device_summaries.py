"""Devices as the accelerator API shows them: the columns that it shows, in one quick query."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.filters import device_matches
from autoclave.db.paging import BY_ID, Order, paged
from autoclave.db.shown_states import SHOWN_BESIDE_STATUS
from autoclave.db.tables import DeviceStatus, devices


class DeviceSummary(NamedTuple):
    """What every client of the API may see of a device; the enums as their values.

    ``device_state`` is the state that the device is shown with, next to ``status``; see ``db.shown_states``.
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

    :param related: values by field, see :data:`autoclave.db.filters.FIELDS`.
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
