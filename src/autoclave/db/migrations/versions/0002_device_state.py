"""Devices get a state, a slot and a history; NVMe drives become a type.

``device_state`` starts as NULL, as the NVMe specification says: a device that is bound today must not
read ``available``. The backfill, which looks at the requests, is a data migration of its own.

What old rows get for the columns that must have a value:

* ``devices.pci_address``: the address in the device's ``controlpath_ids.cpid_info``. Where that holds no PCI
  address, or another device of the host already has it, ``unknown-<id>``: it is unique, is nobody's
  address, and so discovery finds no such slot and shows the row as missing for the operator to judge.
* ``attach_handles.identity``: the PCI address in ``attach_info``, else the handle's own uuid.
* ``extended_accelerator_requests.device_id``: the device of the deployable, of requests that hold one, so that no
  other request can win it.
* everything else: the server default, which also lets services of the older release insert rows.
"""

import json
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from autoclave.rules.device_states import DeviceState
from autoclave.rules.pci_address import PCIAddress

revision = "0002_device_state"
down_revision = "0001_base"

_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
_ARQS = "extended_accelerator_requests"


def _moment() -> sa.types.TypeEngine[Any]:
    return sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(create_constraint=False), nullable=False, server_default="0")


def _number(name: str, default: int) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False, server_default=sa.text(str(default)))


def _in(column: str, values: list[str]) -> str:
    return f"{column} IN ({', '.join(repr(value) for value in values)})"


def _address(document: str) -> str | None:
    """The PCI address in a JSON document of Cyborg's (domain, bus, device, function), or None."""
    try:
        parts = json.loads(document)
        return str(PCIAddress.parse("{domain}:{bus}:{device}.{function}".format(**parts)))
    except (ValueError, KeyError, TypeError):
        return None


def _fill_addresses() -> None:
    devices = sa.table("devices", *map(sa.column, ("id", "hostname", "pci_address")))
    paths = sa.table("controlpath_ids", *map(sa.column, ("device_id", "cpid_info")))
    query = sa.select(devices.c.id, devices.c.hostname, paths.c.cpid_info).select_from(
        devices.outerjoin(paths, paths.c.device_id == devices.c.id)
    )
    connection, taken = op.get_bind(), set()
    for device_id, hostname, cpid_info in connection.execute(query.order_by(devices.c.id)).all():
        address = _address(cpid_info) if cpid_info else None
        if address is None or (hostname, address) in taken:
            address = f"unknown-{device_id}"
        taken.add((hostname, address))
        connection.execute(devices.update().where(devices.c.id == device_id).values(pci_address=address))


def _fill_identities() -> None:
    handles = sa.table("attach_handles", *map(sa.column, ("id", "uuid", "deployable_id", "attach_info", "identity")))
    query = sa.select(handles.c.id, handles.c.uuid, handles.c.deployable_id, handles.c.attach_info)
    connection, taken = op.get_bind(), set()
    for handle_id, uuid, deployable_id, attach_info in connection.execute(query.order_by(handles.c.id)).all():
        identity = _address(attach_info) or uuid
        if (deployable_id, identity) in taken:
            identity = uuid
        taken.add((deployable_id, identity))
        connection.execute(handles.update().where(handles.c.id == handle_id).values(identity=identity))


def _link_requests() -> None:
    requests = sa.table(_ARQS, *map(sa.column, ("state", "deployable_id", "device_id")))
    deployables = sa.table("deployables", *map(sa.column, ("id", "device_id")))
    device = sa.select(deployables.c.device_id).where(deployables.c.id == requests.c.deployable_id).scalar_subquery()
    holding = requests.c.state.in_(["BindStarted", "Bound", "Deleting"])
    op.get_bind().execute(requests.update().where(holding).values(device_id=device))


def _upgrade_devices() -> None:
    op.add_column("devices", sa.Column("pci_address", sa.String(16)))
    _fill_addresses()
    types = ["GPU", "FPGA", "AICHIP", "QAT", "NIC", "SSD", "MDEV", "PCI", "NVME"]
    with op.batch_alter_table("devices") as batch:
        batch.add_column(sa.Column("device_state", sa.String(32)))
        batch.create_check_constraint(
            op.f("ck_devices_device_state"), sa.text(_in("device_state", [state.value for state in DeviceState]))
        )
        batch.drop_constraint(op.f("ck_devices_device_type"), type_="check")
        batch.create_check_constraint(op.f("ck_devices_device_type"), sa.text(_in("type", types)))
        batch.alter_column("pci_address", existing_type=sa.String(16), nullable=False)
        batch.create_unique_constraint(op.f("uq_devices_hostname_pci_address"), ["hostname", "pci_address"])
        for name in ("serial", "drive_model", "found_serial", "found_drive_model"):
            batch.add_column(sa.Column(name, sa.String(64)))
        batch.add_column(_number("state_version", 1))
        batch.add_column(sa.Column("state_reason", sa.Text))
        batch.add_column(_flag("release_pending"))
        batch.add_column(_number("release_number", 0))
        batch.add_column(_flag("held"))
        batch.add_column(sa.Column("hold_reason", sa.Text))
        batch.add_column(_flag("missing"))
        batch.add_column(sa.Column("excluded_reason", sa.Text))
        batch.add_column(sa.Column("agent_run_id", sa.String(36)))
        batch.add_column(sa.Column("progress_percent", sa.Float))
        batch.add_column(sa.Column("progress_step", sa.Text))
        batch.add_column(_flag("progress_stalled"))
        batch.create_index(op.f("ix_devices_release_pending"), ["release_pending"])


def _upgrade_handles() -> None:
    op.add_column("attach_handles", sa.Column("identity", sa.String(255)))
    _fill_identities()
    with op.batch_alter_table("attach_handles") as batch:
        batch.alter_column("identity", existing_type=sa.String(255), nullable=False)
        batch.create_unique_constraint(op.f("uq_attach_handles_deployable_id_identity"), ["deployable_id", "identity"])


def _upgrade_requests() -> None:
    with op.batch_alter_table(_ARQS) as batch:
        batch.add_column(sa.Column("device_id", sa.Integer))
        batch.add_column(sa.Column("state_reason", sa.Text))
        batch.add_column(sa.Column("lease_owner", sa.String(64)))
        batch.add_column(sa.Column("lease_expires_at", _moment()))
        batch.add_column(_flag("delete_when_unbound"))
        batch.create_index(op.f(f"ix_{_ARQS}_device_id"), ["device_id"])
        batch.create_index(op.f(f"ix_{_ARQS}_lease_expires_at"), ["lease_expires_at"])
        batch.create_foreign_key(op.f(f"fk_{_ARQS}_device_id"), "devices", ["device_id"], ["id"])
    _link_requests()


def _create_tables() -> None:
    op.create_table(
        "device_events",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("device_uuid", sa.String(36), nullable=False),
        sa.Column("serial", sa.String(64)),
        sa.Column("from_state", sa.String(32)),
        sa.Column("to_state", sa.String(32)),
        sa.Column("event", sa.String(32), nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("request_id", sa.String(64)),
        sa.Column("reason", sa.Text),
        sa.Column("evidence", sa.Text),
        sa.Column("created_at", _moment(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device_events")),
        **_MYSQL,
    )
    op.create_index(op.f("ix_device_events_device_uuid"), "device_events", ["device_uuid"])
    op.create_table(
        "dirty_serials",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("serial", sa.String(64), nullable=False),
        sa.Column("drive_model", sa.String(64), nullable=False),
        sa.Column("device_uuid", sa.String(36), nullable=False),
        sa.Column("created_at", _moment(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dirty_serials")),
        sa.UniqueConstraint("serial", "drive_model", name=op.f("uq_dirty_serials_serial_drive_model")),
        **_MYSQL,
    )
    op.create_table(
        "agents",
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("hostname", sa.String(255), nullable=False),
        sa.Column("run_id", sa.String(36), nullable=False),
        sa.Column("rpc_version", sa.String(8), nullable=False),
        sa.Column("started_at", _moment(), nullable=False),
        sa.Column("last_seen", _moment(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_agents")),
        sa.UniqueConstraint("hostname", name=op.f("uq_agents_hostname")),
        **_MYSQL,
    )


def upgrade() -> None:
    _create_tables()
    _upgrade_devices()
    _upgrade_handles()
    _upgrade_requests()
