"""Define [pci]: the generic PCI driver, and the functions that instances get by flavor."""

from oslo_config import cfg

from autoclave.rules import json_options
from autoclave.rules.device_spec import ExtraKeys

GROUP = "pci"

PASSTHROUGH_OPTION = "[pci] passthrough_whitelist"

OPTS = [
    cfg.MultiStrOpt(
        "passthrough_whitelist",
        default=[],
        help="Which PCI functions the driver pci_driver offers: a JSON object, or a list of them, with vendor_id, "
        "product_id, address and managed (true, the default, or false: libvirt leaves the function with the driver "
        "that it is bound to). May be given several times; the first entry that matches a function counts.",
    ),
    cfg.MultiStrOpt(
        "device_spec",
        default=[],
        help="Which PCI functions instances get by flavor, where [compute] is enabled: a JSON object, or a list of "
        "them, with vendor_id, product_id, address, managed, one_time_use, live_migratable, resource_class, traits, "
        "physical_network, trusted and remote_managed. May be given several times; the first entry that matches a "
        "function counts. None of them may be offered by a device driver as well.",
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
    parsers={"managed": json_options.boolean},
    refused={
        "devname": "names a network interface, which has no name any more while a guest has it; give its address",
        "one_time_use": "is for [pci] device_spec; what this driver offers comes back as its guest has left it",
        "clear_action": "is for [nvme] device_spec; this driver erases nothing",
        "clear_strategy": "is for [nvme] device_spec; this driver erases nothing",
    },
)
"""List the keys of ``[pci] passthrough_whitelist`` that select no functions: whether libvirt detaches and reattaches
a function (managed-mode specification)."""
