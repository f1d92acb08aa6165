"""The ledger of dirty serial numbers: a drive stays dirty whatever slot it is moved to."""

from collections.abc import Collection
from contextlib import suppress

import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry
from sqlalchemy.engine import Connection

from autoclave.db.tables import dirty_serials


def add(tx: Connection, serial: str, drive_model: str, device_uuid: str) -> bool:
    """Note that the drive holds, or may hold, a tenant's data.

    :returns: whether *device_uuid* has noted it now; False if it was noted before, or by another at this moment.
    """
    if contains(tx, serial, drive_model):
        return False
    with suppress(DBDuplicateEntry), tx.begin_nested():
        tx.execute(dirty_serials.insert().values(serial=serial, drive_model=drive_model, device_uuid=device_uuid))
        return True
    return False


def remove(tx: Connection, serial: str, drive_model: str) -> None:
    """Note that the drive was proved clean."""
    tx.execute(_entry_of(serial, drive_model))


def take_back(tx: Connection, serial: str, drive_model: str, device_uuid: str) -> None:
    """Note that nothing became of what *device_uuid* has noted; what another device has noted of the drive stays."""
    tx.execute(_entry_of(serial, drive_model).where(dirty_serials.c.device_uuid == device_uuid))


def _entry_of(serial: str, drive_model: str) -> sa.Delete:
    return dirty_serials.delete().where(dirty_serials.c.serial == serial, dirty_serials.c.drive_model == drive_model)


def noted_by(tx: Connection, serial: str, drive_model: str) -> str | None:
    """The uuid of the device that noted the drive as dirty, or None if nobody did."""
    query = sa.select(dirty_serials.c.device_uuid).where(
        dirty_serials.c.serial == serial, dirty_serials.c.drive_model == drive_model
    )
    return tx.execute(query).scalar_one_or_none()


def contains(tx: Connection, serial: str, drive_model: str) -> bool:
    """Whether the drive is known to be dirty."""
    query = sa.select(dirty_serials.c.id).where(
        dirty_serials.c.serial == serial, dirty_serials.c.drive_model == drive_model
    )
    return tx.execute(query).first() is not None


def among(tx: Connection, serials: Collection[str] | None) -> set[tuple[str, str]]:
    """Those dirty drives, as (serial, model), whose serial number is one of *serials*; None: all of them."""
    query = sa.select(dirty_serials.c.serial, dirty_serials.c.drive_model)
    if serials is not None:
        query = query.where(dirty_serials.c.serial.in_(serials))
    return {(serial, drive_model) for serial, drive_model in tx.execute(query)}
