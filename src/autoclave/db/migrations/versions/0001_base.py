"""The tables of an accelerator service that does not clean its devices yet.

The columns are Cyborg's. What differs: providers and deployable names are unique, a device has one
control path, the resource class is a column of its own, and JSON is not limited to 255 characters.
"""

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

revision = "0001_base"
down_revision = None

# Values and names are compared letter by letter, as the two other engines do.
_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def _one_of(table: str, name: str, column: str, *values: str) -> sa.CheckConstraint:
    allowed = ", ".join(f"'{value}'" for value in values)
    return sa.CheckConstraint(f"{column} IN ({allowed})", name=op.f(f"ck_{table}_{name}"))


def _moment() -> sa.types.TypeEngine[Any]:
    return sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def _create(table: str, *parts: sa.schema.SchemaItem, unique: tuple[str, ...] = ("uuid",)) -> None:
    op.create_table(
        table,
        sa.Column("id", sa.Integer, nullable=False),
        sa.Column("uuid", sa.String(36), nullable=False),
        *parts,
        sa.Column("created_at", _moment(), nullable=False),
        sa.Column("updated_at", _moment()),
        sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}")),
        *(sa.UniqueConstraint(column, name=op.f(f"uq_{table}_{column}")) for column in unique),
        **_MYSQL,
    )


def _reference(table: str, column: str, target: str, *, ondelete: str | None = None) -> sa.ForeignKeyConstraint:
    return sa.ForeignKeyConstraint([column], [f"{target}.id"], name=op.f(f"fk_{table}_{column}"), ondelete=ondelete)


def upgrade() -> None:
    _create(
        "devices",
        sa.Column("type", sa.String(32), nullable=False),
        sa.Column("vendor", sa.String(255), nullable=False),
        sa.Column("model", sa.String(255), nullable=False),
        sa.Column("std_board_info", sa.Text),
        sa.Column("vendor_board_info", sa.Text),
        sa.Column("hostname", sa.String(255), nullable=False),
        sa.Column("status", sa.String(32), nullable=False),
        _one_of("devices", "device_type", "type", "GPU", "FPGA", "AICHIP", "QAT", "NIC", "SSD", "MDEV", "PCI"),
        _one_of("devices", "device_status", "status", "enabled", "maintaining"),
    )
    _create(
        "deployables",
        sa.Column("parent_id", sa.Integer),
        sa.Column("root_id", sa.Integer),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("num_accelerators", sa.Integer, nullable=False),
        sa.Column("device_id", sa.Integer, nullable=False),
        sa.Column("rp_uuid", sa.String(36), nullable=False),
        sa.Column("resource_class", sa.String(255), nullable=False),
        sa.Column("driver_name", sa.String(100), nullable=False),
        sa.Column("bitstream_id", sa.String(36)),
        _reference("deployables", "parent_id", "deployables"),
        _reference("deployables", "root_id", "deployables"),
        _reference("deployables", "device_id", "devices"),
        unique=("uuid", "name", "rp_uuid"),
    )
    op.create_index(op.f("ix_deployables_device_id"), "deployables", ["device_id"])
    _create(
        "attributes",
        sa.Column("deployable_id", sa.Integer, nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        _reference("attributes", "deployable_id", "deployables", ondelete="CASCADE"),
        sa.UniqueConstraint("deployable_id", "key", name=op.f("uq_attributes_deployable_id_key")),
    )
    _create(
        "controlpath_ids",
        sa.Column("device_id", sa.Integer, nullable=False),
        sa.Column("cpid_type", sa.String(16), nullable=False),
        sa.Column("cpid_info", sa.Text, nullable=False),
        _reference("controlpath_ids", "device_id", "devices", ondelete="CASCADE"),
        unique=("uuid", "device_id"),
    )
    _create(
        "attach_handles",
        sa.Column("deployable_id", sa.Integer, nullable=False),
        sa.Column("attach_type", sa.String(32), nullable=False),
        sa.Column("attach_info", sa.Text, nullable=False),
        _reference("attach_handles", "deployable_id", "deployables"),
        _one_of("attach_handles", "attach_type", "attach_type", "PCI", "MDEV", "TEST_PCI"),
    )
    _create(
        "device_profiles",
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("profile_json", sa.Text, nullable=False),
        sa.Column("description", sa.Text),
        unique=("uuid", "name"),
    )
    arqs = "extended_accelerator_requests"
    _create(
        arqs,
        sa.Column("project_id", sa.String(255)),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("device_profile_id", sa.Integer, nullable=False),
        sa.Column("device_profile_group_id", sa.Integer, nullable=False),
        sa.Column("hostname", sa.String(255)),
        sa.Column("device_rp_uuid", sa.String(36)),
        sa.Column("instance_uuid", sa.String(36)),
        sa.Column("deployable_id", sa.Integer),
        sa.Column("attach_handle_id", sa.Integer),
        _one_of(arqs, "arq_state", "state", "Initial", "BindStarted", "Bound", "BindFailed", "Unbound", "Deleting"),
        _reference(arqs, "device_profile_id", "device_profiles"),
        _reference(arqs, "deployable_id", "deployables"),
        _reference(arqs, "attach_handle_id", "attach_handles"),
    )
    for column in ("project_id", "device_profile_id", "instance_uuid", "attach_handle_id"):
        op.create_index(op.f(f"ix_{arqs}_{column}"), arqs, [column])
