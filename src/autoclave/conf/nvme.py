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
        help="NVMe controllers that Autoclave manages, and how it erases them: a JSON object, or a list of them, with "
        "vendor_id, product_id, address, clear_action (auto, sanitize, zero, format), clear_strategy (auto, crypto, "
        "block) and requested_by (profile, the default, or flavor); for flavors also resource_class and traits. May be "
        "given several times; the first entry that matches a controller counts.",
    ),
    cfg.IntOpt(
        "cleanup_timeout",
        default=900,
        min=1,
        max=30 * DAY,
        help="Maximum seconds of an erase, from the state cleaning on. After that the device goes to error.",
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
        help="Exact PCI address of a slot whose drive is identified by slot and model, for drives without a serial "
        "number or with one that other drives have too. Autoclave does not recognize such a drive after a "
        "move, so clean it before you move it. May be given several times.",
    ),
    FiniteFloatOpt("poll_interval", default=2.0, min=0.01, help="Seconds between two polls of a running sanitize."),
    FiniteFloatOpt("command_timeout", default=30.0, min=0.1, help="Maximum seconds of a query command of nvme-cli."),
    cfg.StrOpt(
        "verify",
        default="sample",
        choices=["none", "sample", "full"],
        help="Part of a zeroed drive that is read back before the drive counts as clean.",
    ),
    cfg.BoolOpt(
        "clean_on_discovery",
        default=False,
        help="Erase a drive when it is first discovered. If false, Autoclave assumes that the operator has cleaned it.",
    ),
]


def slots_that_identify(conf: Any) -> frozenset[PCIAddress]:
    """Return the addresses of ``[nvme] identify_by_slot``.

    :raises InvalidConfiguration: an entry is no full PCI address.
    """
    return exact_addresses(conf.nvme.identify_by_slot, "[nvme] identify_by_slot")
