"""Devices as the accelerator API shows them: the columns that it shows, in one quick query."""

from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.tables import devices


class DeviceSummary(NamedTuple):
    """What every client of the API may see of a device; the enums as their values."""

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
_COLUMNS = [
    sa.type_coerce(column, sa.String).label(column.name) if isinstance(column.type, sa.Enum) else column
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
    after: str | None = None,
    limit: int | None = None,
) -> list[DeviceSummary]:
    """Devices in order of their id, filtered; *after* is the uuid of the last one already seen."""
    query = sa.select(*_COLUMNS).order_by(devices.c.id)
    if device_type is not None:
        query = query.where(sa.type_coerce(devices.c.type, sa.String) == device_type)
    if vendor is not None:
        query = query.where(devices.c.vendor == vendor)
    if hostname is not None:
        query = query.where(devices.c.hostname == hostname)
    if after is not None:
        query = query.where(devices.c.id > sa.select(devices.c.id).where(devices.c.uuid == after).scalar_subquery())
    if limit is not None:
        query = query.limit(limit)
    return list(map(DeviceSummary._make, tx.execute(query).all()))
