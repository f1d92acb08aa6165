"""Add a state, a slot and a history to devices, and the type NVMe.

``device_state`` starts as NULL, as the NVMe specification demands: a device that is bound during the upgrade must not
read ``available``. The backfill, which reads the requests, is a separate data migration.

Old rows get these values in columns that must not be NULL:

- ``devices.pci_address``: the address in the device's ``controlpath_ids.cpid_info``. If that is no PCI address, or
  another device of the host has it already, ``unknown-<id>``. This is unique and no real slot, so discovery reports the
  row as missing, and an operator decides.
- ``attach_handles.identity``: the PCI address in ``attach_info``, or else the handle's uuid.
- ``extended_accelerator_requests.device_id``: the device of the deployable, for requests that hold one, so that no
  other request can bind it.
- all others: the server default, which also lets services of the older release insert rows.
"""

import json

import sqlalchemy as sa
from alembic import op

from autoclave.db.migrations.steps import add_column, alter_table, create_table, moment, one_of, unique
from autoclave.rules.device_lifecycle import DeviceState
from autoclave.rules.pci_address import PCIAddress

revision = "0002_device_state"
down_revision = "0001_base"

_TYPES = ("GPU", "FPGA", "AICHIP", "QAT", "NIC", "SSD", "MDEV", "PCI", "NVME")
_ARQS = "extended_accelerator_requests"


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(create_constraint=False), nullable=False, server_default="0")


def _number(name: str, default: int) -> sa.Column[int]:
    return sa.Column(name, sa.Integer, nullable=False, server_default=sa.text(str(default)))


def _address(document: str) -> str | None:
    """Return the PCI address (domain, bus, device, function) in a JSON document of Cyborg, or None."""
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
    add_column("devices", sa.Column("pci_address", sa.String(16)))
    _fill_addresses()
    with alter_table("devices") as table:
        table.check("device_type", one_of("type", _TYPES))
        table.add(sa.Column("device_state", sa.String(32)))
        table.check("device_state", one_of("device_state", tuple(DeviceState)))
        table.forbid_null("pci_address", sa.String(16))
        table.unique("hostname", "pci_address")
        table.add(
            *(sa.Column(n, sa.String(64)) for n in ("serial", "drive_model", "found_serial", "found_drive_model"))
        )
        table.add(_number("state_version", 1), sa.Column("state_reason", sa.Text))
        table.add(_flag("release_pending"), _number("release_number", 0))
        table.index("release_pending")
        table.add(_flag("held"), sa.Column("hold_reason", sa.Text), _flag("missing"))
        table.add(sa.Column("excluded_reason", sa.Text), sa.Column("agent_run_id", sa.String(36)))
        table.add(sa.Column("progress_percent", sa.Float), sa.Column("progress_step", sa.Text))
        table.add(_flag("progress_stalled"))


def _upgrade_handles() -> None:
    add_column("attach_handles", sa.Column("identity", sa.String(255)))
    _fill_identities()
    with alter_table("attach_handles") as table:
        table.forbid_null("identity", sa.String(255))
        table.unique("deployable_id", "identity")


def _upgrade_requests() -> None:
    with alter_table(_ARQS) as table:
        table.add(sa.Column("device_id", sa.Integer), sa.Column("state_reason", sa.Text))
        table.add(sa.Column("lease_owner", sa.String(64)), sa.Column("lease_expires_at", moment()))
        table.add(_flag("delete_when_unbound"))
        table.index("device_id")
        table.index("lease_expires_at")
        table.reference("device_id", "devices")
    _link_requests()


def upgrade() -> None:
    create_table(
        "device_events",
        sa.Column("device_uuid", sa.String(36), nullable=False),
        sa.Column("serial", sa.String(64)),
        sa.Column("from_state", sa.String(32)),
        sa.Column("to_state", sa.String(32)),
        sa.Column("event", sa.String(32), nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("request_id", sa.String(64)),
        sa.Column("reason", sa.Text),
        sa.Column("evidence", sa.Text),
        sa.Column("created_at", moment(), nullable=False),
        indexes=("device_uuid",),
    )
    create_table(
        "dirty_serials",
        sa.Column("serial", sa.String(64), nullable=False),
        sa.Column("drive_model", sa.String(64), nullable=False),
        sa.Column("device_uuid", sa.String(36), nullable=False),
        sa.Column("created_at", moment(), nullable=False),
        unique("dirty_serials", "serial", "drive_model"),
    )
    create_table(
        "agents",
        sa.Column("hostname", sa.String(255), nullable=False),
        sa.Column("run_id", sa.String(36), nullable=False),
        sa.Column("rpc_version", sa.String(8), nullable=False),
        sa.Column("started_at", moment(), nullable=False),
        sa.Column("last_seen", moment(), nullable=False),
        unique("agents", "hostname"),
    )
    _upgrade_devices()
    _upgrade_handles()
    _upgrade_requests()
