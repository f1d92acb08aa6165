"""Add the compute half: flavors, images, hosts, instances, and their PCI functions."""

import sqlalchemy as sa

from autoclave.db.migrations.steps import check, create_table, moment, one_of, reference, unique

revision = "0006_compute"
down_revision = "0005_bind_events"

_VM_STATES = ("building", "active", "stopped", "error")
_TASK_STATES = (
    "scheduling",
    "spawning",
    "powering-off",
    "powering-on",
    "rebooting",
    "rebuilding",
    "deleting",
)


def _flag(name: str) -> sa.Column[bool]:
    return sa.Column(name, sa.Boolean(create_constraint=False), nullable=False, server_default="0")


def _version() -> sa.Column[int]:
    return sa.Column("state_version", sa.Integer, nullable=False, server_default=sa.text("1"))


def _dates() -> tuple[sa.Column[sa.DateTime], ...]:
    return sa.Column("created_at", moment(), nullable=False), sa.Column("updated_at", moment())


def upgrade() -> None:
    create_table(
        "flavors",
        sa.Column("flavorid", sa.String(255), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("vcpus", sa.Integer, nullable=False),
        sa.Column("ram", sa.Integer, nullable=False),
        sa.Column("disk", sa.Integer, nullable=False),
        sa.Column("ephemeral", sa.Integer, nullable=False),
        sa.Column("swap", sa.Integer, nullable=False),
        sa.Column("rxtx_factor", sa.Float, nullable=False),
        sa.Column("is_public", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("extra_specs", sa.Text, nullable=False),
        *_dates(),
        unique("flavors", "flavorid"),
        unique("flavors", "name"),
    )
    create_table(
        "images",
        sa.Column("uuid", sa.String(36), nullable=False),
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
        sa.Column("properties", sa.Text, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        *_dates(),
        unique("images", "uuid"),
    )
    create_table(
        "compute_hosts",
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("hostname", sa.String(255), nullable=False),
        sa.Column("rp_uuid", sa.String(36), nullable=False),
        sa.Column("hypervisor_type", sa.String(32), nullable=False),
        sa.Column("hypervisor_version", sa.Integer, nullable=False),
        sa.Column("vcpus", sa.Integer, nullable=False),
        sa.Column("memory_mb", sa.Integer, nullable=False),
        sa.Column("local_gb", sa.Integer, nullable=False),
        _flag("disabled"),
        sa.Column("disabled_reason", sa.Text),
        _flag("forced_down"),
        *_dates(),
        unique("compute_hosts", "uuid"),
        unique("compute_hosts", "hostname"),
    )
    create_table(
        "instances",
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("description", sa.Text),
        sa.Column("project_id", sa.String(255), nullable=False),
        sa.Column("user_id", sa.String(255), nullable=False),
        sa.Column("flavor", sa.Text, nullable=False),
        sa.Column("image_uuid", sa.String(36), nullable=False),
        sa.Column("image", sa.Text, nullable=False),
        sa.Column("metadata", sa.Text, nullable=False),
        sa.Column("tags", sa.Text, nullable=False),
        sa.Column("availability_zone", sa.String(255)),
        sa.Column("requested_host", sa.String(255)),
        sa.Column("host", sa.String(255)),
        sa.Column("vm_state", sa.String(32), nullable=False),
        sa.Column("task_state", sa.String(32)),
        sa.Column("power_state", sa.Integer, nullable=False),
        _version(),
        sa.Column("agent_run_id", sa.String(36)),
        sa.Column("rebuild", sa.Text),
        sa.Column("fault_code", sa.Integer),
        sa.Column("fault_message", sa.Text),
        sa.Column("fault_details", sa.Text),
        sa.Column("fault_at", moment()),
        sa.Column("launched_at", moment()),
        *_dates(),
        unique("instances", "uuid"),
        check("instances", "vm_state", one_of("vm_state", _VM_STATES)),
        check("instances", "task_state", one_of("task_state", _TASK_STATES)),
        indexes=("project_id", "host"),
    )
    create_table(
        "pci_providers",
        sa.Column("uuid", sa.String(36), nullable=False),
        sa.Column("hostname", sa.String(255), nullable=False),
        sa.Column("address", sa.String(16), nullable=False),
        sa.Column("resource_class", sa.String(255), nullable=False),
        sa.Column("traits", sa.Text, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        _flag("one_time_use"),
        _flag("burned"),
        _flag("burn_confirmed"),
        sa.Column("burned_at", moment()),
        sa.Column("burned_for", sa.String(36)),
        _flag("release_pending"),
        _version(),
        *_dates(),
        unique("pci_providers", "uuid"),
        unique("pci_providers", "hostname", "address"),
    )
    create_table(
        "pci_functions",
        sa.Column("provider_id", sa.Integer, nullable=False),
        sa.Column("hostname", sa.String(255), nullable=False),
        sa.Column("address", sa.String(16), nullable=False),
        sa.Column("dev_type", sa.String(16), nullable=False),
        sa.Column("vendor_id", sa.String(4), nullable=False),
        sa.Column("product_id", sa.String(4), nullable=False),
        sa.Column("managed", sa.Boolean(create_constraint=False), nullable=False),
        sa.Column("instance_uuid", sa.String(36)),
        _flag("missing"),
        *_dates(),
        reference("pci_functions", "provider_id", "pci_providers"),
        unique("pci_functions", "hostname", "address"),
        indexes=("provider_id", "instance_uuid"),
    )
    create_table(
        "provider_config_additions",
        sa.Column("hostname", sa.String(255), nullable=False),
        sa.Column("rp_uuid", sa.String(36), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        unique("provider_config_additions", "hostname", "rp_uuid", "kind", "name"),
    )
