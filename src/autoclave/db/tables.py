"""Define the tables, as SQLAlchemy Core.

Columns have Cyborg's names where Cyborg has them. Enums are made from the tables in ``rules`` and stored with CHECK
constraints, so that one schema works on all three engines.

Tables of the compute half refer to each other by uuid and host name, as the services do. They have no references to the
accelerator half; an accelerator request names its instance by ``instance_uuid``.
"""

from enum import StrEnum
from typing import Any

import sqlalchemy as sa

from autoclave.db.columns import JSONText, counter, enum_column, flag, metadata, moment, timestamps, utcnow
from autoclave.rules.device_lifecycle import ARQState, DeviceState
from autoclave.rules.instance_states import TaskState, VMState
from autoclave.rules.reclaim import Reclaim, RequestedBy, policy_of


class DeviceType(StrEnum):
    """List Cyborg's device types."""

    GPU = "GPU"
    FPGA = "FPGA"
    AICHIP = "AICHIP"
    QAT = "QAT"
    NIC = "NIC"
    SSD = "SSD"
    MDEV = "MDEV"
    PCI = "PCI"
    NVME = "NVME"


class DeviceStatus(StrEnum):
    """List the operator's scheduling states, orthogonal to ``device_state``."""

    ENABLED = "enabled"
    MAINTAINING = "maintaining"


class AttachType(StrEnum):
    """List the ways in which a guest gets a handle."""

    PCI = "PCI"
    MDEV = "MDEV"
    TEST_PCI = "TEST_PCI"


def _policy_of_type(context: Any) -> Reclaim:
    return policy_of(context.get_current_parameters()["type"])


devices = sa.Table(
    "devices",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False, unique=True),
    sa.Column("type", enum_column(DeviceType, "device_type"), nullable=False),
    sa.Column("vendor", sa.String(255), nullable=False),
    sa.Column("model", sa.String(255), nullable=False),
    sa.Column("std_board_info", sa.Text),
    sa.Column("vendor_board_info", sa.Text),
    sa.Column("hostname", sa.String(255), nullable=False),
    sa.Column(
        "requested_by",
        enum_column(RequestedBy, "requested_by"),
        nullable=False,
        default=RequestedBy.PROFILE,
        server_default=RequestedBy.PROFILE.value,
    ),
    sa.Column("reclaim", enum_column(Reclaim, "reclaim"), nullable=False, default=_policy_of_type),
    sa.Column("status", enum_column(DeviceStatus, "device_status"), nullable=False, default=DeviceStatus.ENABLED),
    sa.Column("device_state", enum_column(DeviceState, "device_state")),
    sa.Column("pci_address", sa.String(16), nullable=False),
    sa.Column("serial", sa.String(64)),
    sa.Column("drive_model", sa.String(64)),
    sa.Column("found_serial", sa.String(64)),
    sa.Column("found_drive_model", sa.String(64)),
    sa.Column("layout", sa.Text),
    sa.Column("found_layout", sa.Text),
    counter("state_version", 1),
    sa.Column("state_reason", sa.Text),
    flag("release_pending"),
    counter("release_number", 0),
    flag("held"),
    sa.Column("hold_reason", sa.Text),
    flag("forgetting"),
    flag("host_maintained"),
    flag("rewritten"),
    flag("missing"),
    sa.Column("excluded_reason", sa.Text),
    sa.Column("unreadable_reason", sa.Text),
    flag("outdated"),
    sa.Column("waiting_for", sa.Text),
    flag("withheld"),
    sa.Column("burned_at", moment()),
    sa.Column("burned_for", sa.String(36), index=True),
    flag("burn_confirmed"),
    sa.Column("agent_run_id", sa.String(36)),
    sa.Column("progress_percent", sa.Float),
    sa.Column("progress_step", sa.Text),
    flag("progress_stalled"),
    sa.Column("progress_seconds_left", sa.Float),
    *timestamps(),
    sa.UniqueConstraint("hostname", "pci_address"),
    sa.Index("ix_devices_release_pending", "release_pending"),
    sa.Index("ix_devices_forgetting", "forgetting"),
)

deployables = sa.Table(
    "deployables",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False, unique=True),
    sa.Column("parent_id", sa.Integer, sa.ForeignKey("deployables.id")),
    sa.Column("root_id", sa.Integer, sa.ForeignKey("deployables.id")),
    sa.Column("name", sa.String(255), nullable=False, unique=True),
    sa.Column("num_accelerators", sa.Integer, nullable=False),
    sa.Column("published_total", sa.Integer),
    sa.Column("device_id", sa.Integer, sa.ForeignKey("devices.id"), nullable=False, index=True),
    sa.Column("rp_uuid", sa.String(36), nullable=False, unique=True),
    sa.Column("resource_class", sa.String(255), nullable=False),
    sa.Column("driver_name", sa.String(100), nullable=False),
    sa.Column("bitstream_id", sa.String(36)),
    *timestamps(),
)

attributes = sa.Table(
    "attributes",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False, unique=True),
    sa.Column("deployable_id", sa.Integer, sa.ForeignKey("deployables.id", ondelete="CASCADE"), nullable=False),
    sa.Column("key", sa.String(255), nullable=False),
    sa.Column("value", sa.Text, nullable=False),
    *timestamps(),
    sa.UniqueConstraint("deployable_id", "key"),
)

controlpath_ids = sa.Table(
    "controlpath_ids",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False, unique=True),
    sa.Column("device_id", sa.Integer, sa.ForeignKey("devices.id", ondelete="CASCADE"), nullable=False, unique=True),
    sa.Column("cpid_type", sa.String(16), nullable=False),
    sa.Column("cpid_info", sa.Text, nullable=False),
    *timestamps(),
)

attach_handles = sa.Table(
    "attach_handles",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False, unique=True),
    sa.Column("deployable_id", sa.Integer, sa.ForeignKey("deployables.id"), nullable=False),
    sa.Column("attach_type", enum_column(AttachType, "attach_type"), nullable=False),
    sa.Column("attach_info", sa.Text, nullable=False),
    sa.Column("identity", sa.String(255), nullable=False),
    sa.Column("instance_uuid", sa.String(36), index=True),
    flag("missing"),
    *timestamps(),
    sa.UniqueConstraint("deployable_id", "identity"),
)

device_profiles = sa.Table(
    "device_profiles",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False, unique=True),
    sa.Column("name", sa.String(255), nullable=False, unique=True),
    sa.Column("profile_json", sa.Text, nullable=False),
    sa.Column("description", sa.Text),
    *timestamps(),
)

arqs = sa.Table(
    "extended_accelerator_requests",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False, unique=True),
    sa.Column("project_id", sa.String(255), index=True),
    sa.Column("state", enum_column(ARQState, "arq_state"), nullable=False, default=ARQState.INITIAL),
    sa.Column("state_reason", sa.Text),
    sa.Column("device_profile_id", sa.Integer, sa.ForeignKey("device_profiles.id"), nullable=False, index=True),
    sa.Column("device_profile_group_id", sa.Integer, nullable=False),
    sa.Column("hostname", sa.String(255)),
    sa.Column("device_rp_uuid", sa.String(36)),
    sa.Column("instance_uuid", sa.String(36), index=True),
    sa.Column("device_id", sa.Integer, sa.ForeignKey("devices.id"), index=True),
    sa.Column("deployable_id", sa.Integer, sa.ForeignKey("deployables.id")),
    sa.Column("attach_handle_id", sa.Integer, sa.ForeignKey("attach_handles.id"), index=True),
    sa.Column("lease_owner", sa.String(64)),
    sa.Column("lease_expires_at", moment(), index=True),
    flag("delete_when_unbound"),
    sa.Column("event_owed_at", moment()),
    sa.Column("event_due_at", moment(), index=True),
    sa.Column("orphan_since", moment()),
    sa.Column("orphan_reason", sa.Text),
    flag("server_seen"),
    *timestamps(),
)

device_events = sa.Table(
    "device_events",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("device_uuid", sa.String(36), nullable=False, index=True),
    sa.Column("serial", sa.String(64)),
    sa.Column("from_state", sa.String(32)),
    sa.Column("to_state", sa.String(32)),
    sa.Column("event", sa.String(32), nullable=False),
    sa.Column("actor", sa.String(255), nullable=False),
    sa.Column("request_id", sa.String(64)),
    sa.Column("reason", sa.Text),
    sa.Column("evidence", sa.Text),
    sa.Column("created_at", moment(), nullable=False, default=utcnow),
)

dirty_serials = sa.Table(
    "dirty_serials",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("serial", sa.String(64), nullable=False),
    sa.Column("drive_model", sa.String(64), nullable=False),
    sa.Column("device_uuid", sa.String(36), nullable=False),
    sa.Column("created_at", moment(), nullable=False, default=utcnow),
    sa.UniqueConstraint("serial", "drive_model"),
)

host_maintenances = sa.Table(
    "host_maintenances",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("hostname", sa.String(255), nullable=False, unique=True),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("actor", sa.String(255), nullable=False),
    sa.Column("began_at", moment(), nullable=False),
)

host_renames = sa.Table(
    "host_renames",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("hostname", sa.String(255), nullable=False, unique=True),
    sa.Column("new_hostname", sa.String(255), nullable=False, unique=True),
    sa.Column("actor", sa.String(255), nullable=False),
    sa.Column("began_at", moment(), nullable=False),
)

agents = sa.Table(
    "agents",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("hostname", sa.String(255), nullable=False, unique=True),
    sa.Column("run_id", sa.String(36), nullable=False),
    sa.Column("rpc_version", sa.String(8), nullable=False),
    sa.Column("started_at", moment(), nullable=False),
    sa.Column("last_seen", moment(), nullable=False),
    sa.Column("machine_id", sa.String(32)),
    sa.Column("product_uuid", sa.String(32)),
)

flavors = sa.Table(
    "flavors",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("flavorid", sa.String(255), nullable=False, unique=True),
    sa.Column("name", sa.String(255), nullable=False, unique=True),
    sa.Column("vcpus", sa.Integer, nullable=False),
    sa.Column("ram", sa.Integer, nullable=False),
    sa.Column("disk", sa.Integer, nullable=False),
    sa.Column("ephemeral", sa.Integer, nullable=False),
    sa.Column("swap", sa.Integer, nullable=False),
    sa.Column("rxtx_factor", sa.Float, nullable=False),
    sa.Column("is_public", sa.Boolean(create_constraint=False), nullable=False),
    sa.Column("description", sa.Text),
    sa.Column("extra_specs", JSONText, nullable=False),
    *timestamps(),
)

images = sa.Table(
    "images",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False, unique=True),
    sa.Column("name", sa.String(255)),
    sa.Column("status", sa.String(32), nullable=False),
    sa.Column("owner", sa.String(255)),
    sa.Column("visibility", sa.String(32), nullable=False),
    sa.Column("disk_format", sa.String(32)),
    sa.Column("container_format", sa.String(32)),
    sa.Column("min_disk", sa.Integer, nullable=False),
    sa.Column("min_ram", sa.Integer, nullable=False),
    sa.Column("protected", sa.Boolean(create_constraint=False), nullable=False),
    sa.Column("size", sa.BigInteger),
    sa.Column("checksum", sa.String(32)),
    sa.Column("os_hash_value", sa.String(128)),
    sa.Column("properties", JSONText, nullable=False),
    # Agents of the release before read this column, so it is kept although image tags are gone.
    sa.Column("tags", JSONText, nullable=False, default=[]),
    *timestamps(),
)

compute_hosts = sa.Table(
    "compute_hosts",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False, unique=True),
    sa.Column("hostname", sa.String(255), nullable=False, unique=True),
    sa.Column("rp_uuid", sa.String(36), nullable=False),
    sa.Column("hypervisor_type", sa.String(32), nullable=False),
    sa.Column("hypervisor_version", sa.Integer, nullable=False),
    sa.Column("vcpus", sa.Integer, nullable=False),
    sa.Column("memory_mb", sa.Integer, nullable=False),
    sa.Column("local_gb", sa.Integer, nullable=False),
    flag("disabled"),
    sa.Column("disabled_reason", sa.Text),
    flag("forced_down"),
    *timestamps(),
)

instances = sa.Table(
    "instances",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False, unique=True),
    sa.Column("name", sa.String(255), nullable=False),
    sa.Column("description", sa.Text),
    sa.Column("project_id", sa.String(255), nullable=False, index=True),
    sa.Column("user_id", sa.String(255), nullable=False),
    sa.Column("flavor", JSONText, nullable=False),
    sa.Column("image_uuid", sa.String(36), nullable=False),
    sa.Column("image", JSONText, nullable=False),
    sa.Column("metadata", JSONText, nullable=False),
    sa.Column("tags", JSONText, nullable=False),
    sa.Column("availability_zone", sa.String(255)),
    sa.Column("requested_host", sa.String(255)),
    sa.Column("host", sa.String(255), index=True),
    sa.Column("vm_state", enum_column(VMState, "vm_state"), nullable=False, default=VMState.BUILDING),
    sa.Column("task_state", enum_column(TaskState, "task_state")),
    sa.Column("power_state", sa.Integer, nullable=False, default=0),
    counter("state_version", 1),
    sa.Column("agent_run_id", sa.String(36)),
    sa.Column("rebuild", JSONText),
    sa.Column("fault_code", sa.Integer),
    sa.Column("fault_message", sa.Text),
    sa.Column("fault_details", sa.Text),
    sa.Column("fault_at", moment()),
    sa.Column("launched_at", moment()),
    *timestamps(),
)

burned_cards = sa.Table(
    "burned_cards",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("serial", sa.String(64), nullable=False, unique=True),
    sa.Column("rp_uuid", sa.String(36), nullable=False),
    sa.Column("created_at", moment(), nullable=False, default=utcnow),
)

provider_config_additions = sa.Table(
    "provider_config_additions",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("hostname", sa.String(255), nullable=False),
    sa.Column("rp_uuid", sa.String(36), nullable=False),
    sa.Column("kind", sa.String(16), nullable=False),
    sa.Column("name", sa.String(255), nullable=False),
    sa.UniqueConstraint("hostname", "rp_uuid", "kind", "name"),
)
