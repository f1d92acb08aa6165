"""Define the options of the agent (``[agent]``), and of its privileged helper (``[autoclave_privileged]``)."""

from datetime import timedelta
from typing import Any

from oslo_config import cfg

from autoclave.conf.option_types import FiniteFloatOpt, exact_addresses
from autoclave.rules.pci_address import PCIAddress

GROUP = "agent"

ALIVE_PERIODS = 3
"""Set the periods after which a silent agent counts as dead."""

STUCK_PERIODS = 10
STUCK_AFTER = timedelta(minutes=10)
"""Set the periods and the time after which an agent at one step counts as stuck. It then reports no liveness."""

OPTS = [
    cfg.ListOpt("enabled_drivers", default=["nvme_driver"], help="Device drivers to load, by entry point name."),
    cfg.StrOpt(
        "resource_provider_name",
        help="This host's name everywhere: its root provider in Placement, device hostnames, the RPC server. "
        "Default: the fully qualified domain name.",
    ),
    cfg.StrOpt(
        "data_dir",
        default="/var/lib/autoclave",
        help="Directory for the agent's lock, the journal of running tools and, when embedded, the databases.",
    ),
    FiniteFloatOpt(
        "periodic_interval",
        default=60.0,
        min=0.1,
        help="Seconds between two discoveries. The agent also sends a heartbeat at this interval, independently of "
        "discovery. An agent counts as dead after three intervals without one.",
    ),
    cfg.IntOpt(
        "max_concurrent_cleanups",
        default=4,
        min=1,
        max=256,
        help="Maximum number of drives of this host that are erased concurrently.",
    ),
    FiniteFloatOpt(
        "rebind_timeout",
        default=60.0,
        min=0,
        help="Seconds to wait after an unbind for libvirt to give the device back to its host driver.",
    ),
    FiniteFloatOpt(
        "unreadable_patience",
        default=300.0,
        min=0,
        help="Seconds for which an available device, or a PCI function for flavors, stays offered while the agent "
        "cannot read it, for example because no driver is bound. After that it is not offered until the agent "
        "can read it again.",
    ),
    cfg.MultiStrOpt(
        "allow_host_device",
        default=[],
        help="Exact PCI address of a device to offer although this host itself uses it. The data of a drive will be "
        "erased. May be given several times.",
    ),
    cfg.StrOpt(
        "rpc_version_cap",
        regex=r"^\d+\.\d+$",
        help="Highest RPC version that this agent announces, for rolling upgrades and their tests.",
    ),
    cfg.StrOpt("sysfs_root", default="/sys", help="Mount point of sysfs. Another directory makes a simulated host."),
    cfg.StrOpt("dev_root", default="/dev", help="Directory of device nodes."),
    cfg.StrOpt("proc_root", default="/proc", help="Mount point of procfs."),
    cfg.StrOpt(
        "etc_root",
        default="/etc",
        help="Directory of machine-id and of the settings of LVM, mdadm, multipath and udev.",
    ),
    cfg.ListOpt("tools_path", default=[], help="Directories searched for external tools before PATH."),
]


def allowed_host_devices(conf: cfg.ConfigOpts) -> frozenset[PCIAddress]:
    """Return the addresses of ``[agent] allow_host_device``.

    :raises InvalidConfiguration: an entry is no full PCI address.
    """
    return exact_addresses(conf.agent.allow_host_device, "[agent] allow_host_device")


def patience_with_agents(conf: Any) -> timedelta:
    """Return how long an agent may be silent before it counts as dead."""
    return timedelta(seconds=ALIVE_PERIODS * conf.agent.periodic_interval)


def longest_step(conf: Any) -> timedelta:
    """Return how long an agent may stay at one step of a period before it is stuck."""
    return max(STUCK_AFTER, timedelta(seconds=STUCK_PERIODS * conf.agent.periodic_interval))


PRIVILEGED = "autoclave_privileged"

PRIVILEGED_OPTS = [
    cfg.StrOpt(
        "helper_command",
        default="",
        help="Command that starts the privileged helper as root, such as sudo -n "
        "/opt/autoclave/bin/autoclave-privileged. The agent appends two arguments. Empty: the agent does "
        "everything itself and must run as root.",
    ),
]
