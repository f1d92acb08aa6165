"""Rows as a service of the first revision writes them."""

import json
from typing import Any

import sqlalchemy as sa

from autoclave.db.engine import Database
from autoclave.rules.device_lifecycle import ARQState
from dbfixtures import Slot, make_arq

NOW = "2026-01-02 03:04:05"


def insert(tx: sa.Connection, table: str, **values: Any) -> None:
    """Insert as a service of an older release would: by the names of columns, without our metadata."""
    columns = {"created_at": NOW, **values}
    statement = sa.table(table, *map(sa.column, columns)).insert()
    tx.execute(statement.values(**columns))


def old_device(tx: sa.Connection, number: int, cpid_info: str | None, hostname: str = "host-1") -> None:
    insert(
        tx,
        "devices",
        id=number,
        uuid=f"device-{number}",
        type="SSD",
        vendor="144d",
        model="a808",
        hostname=hostname,
        status="enabled",
    )
    insert(
        tx,
        "deployables",
        id=number,
        uuid=f"deployable-{number}",
        name=f"name-{number}",
        num_accelerators=1,
        device_id=number,
        rp_uuid=f"provider-{number}",
        resource_class="CUSTOM_SSD",
        driver_name="ssd",
    )
    insert(tx, "attributes", uuid=f"attribute-{number}", deployable_id=number, key="rc", value="CUSTOM_SSD")
    if cpid_info is not None:
        insert(tx, "controlpath_ids", uuid=f"path-{number}", device_id=number, cpid_type="PCI", cpid_info=cpid_info)


def address(bus: str) -> str:
    return json.dumps({"domain": "0000", "bus": bus, "device": "00", "function": "0"})


def column(database: Database, table: str, name: str) -> list[Any]:
    with database.read() as tx:
        return list(tx.scalars(sa.select(sa.column(name)).select_from(sa.table(table)).order_by(sa.column("id"))))


def bound_by_the_release_before(tx: sa.Connection, slot: Slot, state: ARQState = ARQState.BOUND) -> str:
    """A request as a conductor writes it that knows nothing of devices' states: no link to the device, no lease."""
    held = {"deployable_id": slot.deployable.id, "attach_handle_id": slot.handle_id}
    return make_arq(tx, state=state, hostname=slot.device.hostname, **held).uuid
