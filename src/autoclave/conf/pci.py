"""[pci]: the generic PCI driver."""

from oslo_config import cfg
from oslo_utils import strutils

from autoclave.rules import strict_json
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
]


def _managed(value: object) -> bool:
    try:
        return bool(strutils.bool_from_string(value, strict=True))
    except ValueError:
        raise ValueError(
            f"must be true or false, or as a text one of yes, no, on, off, y, n, t, f, 1, 0; not "
            f"{strict_json.kind(value)}"
        ) from None


PASSTHROUGH_KEYS = ExtraKeys(
    parsers={"managed": _managed},
    refused={
        "devname": "names a network interface, which has no name any more while a guest has it; give its address",
        "one_time_use": "is for [pci] device_spec; what this driver offers comes back as its guest has left it",
        "clear_action": "is for [nvme] device_spec; this driver erases nothing",
        "clear_strategy": "is for [nvme] device_spec; this driver erases nothing",
    },
)
"""What an entry of ``[pci] passthrough_whitelist`` may say besides which functions it means: whether libvirt
detaches and reattaches them (managed-mode specification)."""
