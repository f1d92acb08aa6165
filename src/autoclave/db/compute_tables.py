"""Every table of the compute half: flavors, images, instances, and the PCI functions that hosts lend to them.

They refer to each other by uuid and host name as the services do, and to nothing of the accelerator half: an
instance's accelerator requests name it by ``instance_uuid``.
"""

import sqlalchemy as sa

from autoclave.db.columns import JSONText, counter, enum_column, flag, metadata, moment, timestamps, utcnow
from autoclave.rules.instance_states import TaskState, VMState

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
    # agents of the release before read it, so it outlives the tags of images
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

pci_providers = sa.Table(
    "pci_providers",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("uuid", sa.String(36), nullable=False, unique=True),
    sa.Column("hostname", sa.String(255), nullable=False),
    sa.Column("address", sa.String(16), nullable=False),
    sa.Column("serial", sa.String(64)),
    sa.Column("resource_class", sa.String(255), nullable=False),
    sa.Column("traits", sa.Text, nullable=False),
    sa.Column("total", sa.Integer, nullable=False),
    flag("one_time_use"),
    flag("burned"),
    flag("burn_confirmed"),
    sa.Column("burned_at", moment()),
    sa.Column("burned_for", sa.String(36)),
    flag("release_pending"),
    sa.Column("waiting_for", sa.Text),
    flag("outdated"),
    sa.Column("unreadable_reason", sa.Text),
    flag("withheld"),
    counter("state_version", 1),
    *timestamps(),
    sa.UniqueConstraint("hostname", "address"),
)

burned_cards = sa.Table(
    "burned_cards",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("serial", sa.String(64), nullable=False, unique=True),
    sa.Column("rp_uuid", sa.String(36), nullable=False),
    sa.Column("created_at", moment(), nullable=False, default=utcnow),
)

pci_functions = sa.Table(
    "pci_functions",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("provider_id", sa.Integer, sa.ForeignKey("pci_providers.id"), nullable=False, index=True),
    sa.Column("hostname", sa.String(255), nullable=False),
    sa.Column("address", sa.String(16), nullable=False),
    sa.Column("dev_type", sa.String(16), nullable=False),
    sa.Column("vendor_id", sa.String(4), nullable=False),
    sa.Column("product_id", sa.String(4), nullable=False),
    sa.Column("managed", sa.Boolean(create_constraint=False), nullable=False),
    sa.Column("instance_uuid", sa.String(36), index=True),
    flag("missing"),
    *timestamps(),
    sa.UniqueConstraint("hostname", "address"),
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
