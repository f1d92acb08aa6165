"""Define [nvme]: the generic NVMe driver."""

from typing import Any

from oslo_config import cfg

from autoclave.conf.option_types import DAY, FiniteFloatOpt, exact_addresses
from autoclave.rules.pci_address import PCIAddress

GROUP = "nvme"

OPTS = [
    cfg.MultiStrOpt(
        "device_spec",
        default=[],
        help="Which NVMe controllers are ours and how they are erased: a JSON object, or a list of them, with "
        "vendor_id, product_id, address, clear_action (auto, sanitize, zero, format), clear_strategy (auto, crypto, "
        "block) and requested_by (profile, the default, or flavor); for flavors also resource_class and traits. May be "
        "given several times; the first entry that matches a controller counts.",
    ),
    cfg.IntOpt(
        "cleanup_timeout",
        default=900,
        min=1,
        max=30 * DAY,
        help="Seconds an erase may take, from the state cleaning on. Afterwards the device goes to error.",
    ),
    cfg.IntOpt(
        "stall_timeout",
        default=120,
        min=1,
        max=30 * DAY,
        help="Seconds of unchanged progress after which a running erase is reported as stalled.",
    ),
    cfg.MultiStrOpt(
        "identify_by_slot",
        default=[],
        help="Exact PCI address of a slot that, with the model, identifies the drive in it instead of the drive's "
        "serial number: it has none, or other drives have the same. Such a drive is not known again when it is moved, "
        "so clean it before you move it. May be given several times.",
    ),
    FiniteFloatOpt("poll_interval", default=2.0, min=0.01, help="Seconds between two looks at a running sanitize."),
    FiniteFloatOpt("command_timeout", default=30.0, min=0.1, help="Seconds a query command of nvme-cli may take."),
    cfg.StrOpt(
        "verify",
        default="sample",
        choices=["none", "sample", "full"],
        help="What is read back after a drive was zeroed, before it counts as clean.",
    ),
    cfg.BoolOpt(
        "clean_on_discovery",
        default=False,
        help="Erase a drive when it is first discovered, instead of taking the operator's word that it is clean.",
    ),
]


def slots_that_identify(conf: Any) -> frozenset[PCIAddress]:
    """Return the addresses of ``[nvme] identify_by_slot``.

    :raises InvalidConfiguration: an entry is no full PCI address.
    """
    return exact_addresses(conf.nvme.identify_by_slot, "[nvme] identify_by_slot")
