"""Create the tables of an accelerator service that does not clean its devices yet.

The columns are Cyborg's, with these differences: providers and deployable names are unique, a device has one control
path, the resource class is a separate column, and JSON is not limited to 255 characters.
"""

import sqlalchemy as sa

from autoclave.db.migrations.steps import check, create_table, moment, one_of, reference, unique

revision = "0001_base"
down_revision = None

_TYPES = ("GPU", "FPGA", "AICHIP", "QAT", "NIC", "SSD", "MDEV", "PCI")
_ARQS = "extended_accelerator_requests"
_ARQ_STATES = ("Initial", "BindStarted", "Bound", "BindFailed", "Unbound", "Deleting")


def _create(table: str, *parts: sa.schema.SchemaItem, indexes: tuple[str, ...] = ()) -> None:
    create_table(
        table,
        sa.Column("uuid", sa.String(36), nullable=False),
        *parts,
        sa.Column("created_at", moment(), nullable=False),
        sa.Column("updated_at", moment()),
        unique(table, "uuid"),
        indexes=indexes,
    )


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
        check("devices", "device_type", one_of("type", _TYPES)),
        check("devices", "device_status", one_of("status", ("enabled", "maintaining"))),
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
        reference("deployables", "parent_id", "deployables"),
        reference("deployables", "root_id", "deployables"),
        reference("deployables", "device_id", "devices"),
        unique("deployables", "name"),
        unique("deployables", "rp_uuid"),
        indexes=("device_id",),
    )
    _create(
        "attributes",
        sa.Column("deployable_id", sa.Integer, nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("value", sa.Text, nullable=False),
        reference("attributes", "deployable_id", "deployables", ondelete="CASCADE"),
        unique("attributes", "deployable_id", "key"),
    )
    _create(
        "controlpath_ids",
        sa.Column("device_id", sa.Integer, nullable=False),
        sa.Column("cpid_type", sa.String(16), nullable=False),
        sa.Column("cpid_info", sa.Text, nullable=False),
        reference("controlpath_ids", "device_id", "devices", ondelete="CASCADE"),
        unique("controlpath_ids", "device_id"),
    )
    _create(
        "attach_handles",
        sa.Column("deployable_id", sa.Integer, nullable=False),
        sa.Column("attach_type", sa.String(32), nullable=False),
        sa.Column("attach_info", sa.Text, nullable=False),
        reference("attach_handles", "deployable_id", "deployables"),
        check("attach_handles", "attach_type", one_of("attach_type", ("PCI", "MDEV", "TEST_PCI"))),
    )
    _create(
        "device_profiles",
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("profile_json", sa.Text, nullable=False),
        sa.Column("description", sa.Text),
        unique("device_profiles", "name"),
    )
    _create(
        _ARQS,
        sa.Column("project_id", sa.String(255)),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("device_profile_id", sa.Integer, nullable=False),
        sa.Column("device_profile_group_id", sa.Integer, nullable=False),
        sa.Column("hostname", sa.String(255)),
        sa.Column("device_rp_uuid", sa.String(36)),
        sa.Column("instance_uuid", sa.String(36)),
        sa.Column("deployable_id", sa.Integer),
        sa.Column("attach_handle_id", sa.Integer),
        check(_ARQS, "arq_state", one_of("state", _ARQ_STATES)),
        reference(_ARQS, "device_profile_id", "device_profiles"),
        reference(_ARQS, "deployable_id", "deployables"),
        reference(_ARQS, "attach_handle_id", "attach_handles"),
        indexes=("project_id", "device_profile_id", "instance_uuid", "attach_handle_id"),
    )
