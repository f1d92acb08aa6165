"""Answers of ``/autoclave/v1/functions``."""

from autoclave.api.schema import BOOLEAN, STRING, UUID, listed, nullable, one_of, shape
from autoclave.rules.pci_inventory import DevType

FUNCTION = shape(
    "PCIFunction",
    {
        "hostname": STRING,
        "pci_address": STRING,
        "dev_type": one_of(DevType),
        "vendor_id": STRING,
        "product_id": STRING,
        "managed": BOOLEAN,
        "rp_uuid": {**UUID, "description": "Its resource provider; virtual functions share that of their card."},
        "resource_class": STRING,
        "traits": {"type": "array", "items": STRING},
        "one_time_use": BOOLEAN,
        "burned": BOOLEAN,
        "instance_uuid": {**nullable(UUID), "description": "The instance that has it."},
        "missing": {**BOOLEAN, "description": "Its host, or the configuration there, has it no more."},
        "unreadable_reason": {
            **nullable(STRING),
            "description": "Why its agent could not look at it for [agent] unreadable_patience: it is not offered.",
        },
        "waiting_for": {
            **nullable(STRING),
            "description": "Which change of the host or of [pci] device_spec takes effect on its provider later, and "
            "what that waits for; or why it cannot be looked at.",
        },
    },
)
FUNCTIONS = listed("PCIFunctions", "functions", FUNCTION)
