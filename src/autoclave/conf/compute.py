"""Define the options of instances (``[compute]``) and of PCI functions (``[pci]``)."""

from oslo_config import cfg

from autoclave.conf.option_types import FiniteFloatOpt
from autoclave.rules import json_options
from autoclave.rules.device_spec import ExtraKeys
from autoclave.rules.reclaim import RECLAIM_CHECKS, RECLAIM_PARSERS

COMPUTE = "compute"

COMPUTE_OPTS = [
    cfg.BoolOpt(
        "enabled",
        default=False,
        help="Start instances in this deployment, behind a subset of Nova's API. Leave it off in a cloud with Nova. "
        "`autoclave up` turns it on if guests can run, unless a file sets it.",
    ),
    cfg.StrOpt(
        "provider_config_location",
        default="/etc/autoclave/provider_config/",
        help="Directory of ``*.yaml`` files with inventories and traits that the operator adds to resource "
        "providers. The agent reads them in lexicographic order when it starts.",
    ),
    cfg.StrOpt(
        "virt_driver",
        default="libvirt",
        choices=["libvirt", "null"],
        help="Driver that runs the guests: libvirt, or null, which runs none and is for rehearsals on simulated hosts.",
    ),
    cfg.StrOpt("libvirt_uri", default="qemu:///system", help="URI of the hypervisor that libvirt connects to."),
    cfg.StrOpt(
        "virt_type",
        default="kvm",
        choices=["kvm", "qemu", "test"],
        help="Type of libvirt's guests: kvm, qemu (emulation, if the host cannot virtualise), or test, for "
        "libvirt's own test:///default, which starts nothing.",
    ),
    FiniteFloatOpt(
        "shutdown_timeout",
        default=60.0,
        min=0,
        help="Seconds for a guest to shut down when it is stopped or rebooted. After that, its power is cut.",
    ),
    cfg.IntOpt("reserved_host_cpus", default=0, min=0, help="Number of processors that are not offered to instances."),
    cfg.IntOpt("reserved_host_memory_mb", default=512, min=0, help="Memory, in MiB, that is not offered to instances."),
    cfg.IntOpt("reserved_host_disk_gb", default=0, min=0, help="Disk space, in GiB, that is not offered to instances."),
    cfg.IntOpt(
        "max_image_size_mb",
        default=8192,
        min=1,
        help="Size of the largest image, in MiB, that the embedded image service accepts.",
    ),
]

PCI = "pci"

PASSTHROUGH_OPTION = "[pci] passthrough_whitelist"

PCI_OPTS = [
    cfg.MultiStrOpt(
        "passthrough_whitelist",
        default=[],
        help="PCI functions that the driver pci_driver offers: a JSON object, or a list of them, with vendor_id, "
        "product_id, address and managed (true, the default, or false: libvirt leaves the function with the driver "
        "that it is bound to), reclaim (none, the default, hold or erase: what becomes of it after each instance), and "
        "for erase clear_action (reset or command) and clear_command. May be given several times; the first entry "
        "that matches a function counts.",
    ),
    cfg.MultiStrOpt(
        "device_spec",
        default=[],
        help="PCI functions that instances get by flavor, if [compute] is enabled: a JSON object, or a list of "
        "them, with vendor_id, product_id, address, managed, reclaim, clear_action, clear_command, one_time_use, "
        "live_migratable, resource_class, traits, physical_network, trusted and remote_managed. May be given several "
        "times; the first entry that matches a function counts. A device driver must not offer any of them as "
        "well.",
    ),
    cfg.MultiStrOpt(
        "alias",
        default=[],
        help="Names by which flavors ask for PCI functions (pci_passthrough:alias): a JSON object, or a list of them, "
        "with name, vendor_id and product_id or resource_class, traits and live_migratable. May be given several "
        "times, each name once.",
    ),
]


PASSTHROUGH_KEYS = ExtraKeys(
    parsers={"managed": json_options.boolean, **RECLAIM_PARSERS},
    checks=RECLAIM_CHECKS,
    refused={
        "devname": "names a network interface, which has no name while a guest uses it; give its address",
        "one_time_use": 'is for [pci] device_spec; give "reclaim": "hold" here, which is the same',
        "clear_strategy": 'is for [nvme] device_spec; here, the methods are "clear_action": "reset" and "command"',
    },
)
"""List the keys of ``[pci] passthrough_whitelist`` that select no functions: whether libvirt detaches and reattaches
a function (managed-mode specification), and its reclaim policy."""
