"""``[pci] device_spec``: what an entry says of the PCI functions that instances get by flavor.

The keys are Nova's (its administrator guide, "PCI passthrough"), and ``one_time_use`` of the one-time-use-devices
specification. Nova takes a key that it does not know for a tag; here it is refused, since it may be a misspelled
``one_time_use``.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from autoclave.rules import placement_names, strict_json
from autoclave.rules.device_spec import DeviceSpec, ExtraKeys, parse_device_spec

DEVICE_SPEC_OPTION = "[pci] device_spec"

_OTHERS_TRAITS = {
    "HW_PCI_ONE_TIME_USE": "it follows from the key one_time_use; alone it would promise what nobody keeps",
    "HW_PCI_LIVE_MIGRATABLE": "it follows from the key live_migratable",
    "OWNER_CYBORG": "it marks what the accelerator half offers, and these functions are not its",
}


def parse_pci_device_spec(values: Sequence[str]) -> tuple[DeviceSpec, ...]:
    """The entries of ``[pci] device_spec``.

    :raises InvalidConfiguration: anything in them is not exactly as it must be.
    """
    return parse_device_spec(values, option=DEVICE_SPEC_OPTION, extra_keys=DEVICE_SPEC_KEYS)


def left_to_neutron(spec: DeviceSpec) -> bool:
    """Whether the entry's functions are for ports of Neutron, and so not for flavors: Placement does not get them."""
    return "physical_network" in spec.extra or spec.extra.get("remote_managed", False)


def _traits(value: object) -> frozenset[str]:
    names = placement_names.traits(value)
    for name, reason in _OTHERS_TRAITS.items():
        if name in names:
            raise ValueError(f"{name} cannot be given: {reason}")
    return names


def _physical_network(value: object) -> str | None:
    """Null, as in Nova, is a network that Neutron makes of tunnels."""
    if value is None:
        return None
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"must be the name of a network, or null for tunnels, not {strict_json.kind(value)}")
    return value


def _protects(keys: Mapping[str, Any]) -> None:
    for key in ("physical_network", "remote_managed"):
        if keys["one_time_use"] and keys.get(key, False) is not False:
            raise ValueError(f"protects nothing beside {key}, which leaves the function to Neutron")


DEVICE_SPEC_KEYS = ExtraKeys(
    parsers={
        "managed": strict_json.boolean,
        "live_migratable": strict_json.boolean,
        "one_time_use": strict_json.boolean,
        "resource_class": placement_names.resource_class,
        "traits": _traits,
        "physical_network": _physical_network,
        "trusted": strict_json.boolean,
        "remote_managed": strict_json.boolean,
    },
    checks={"one_time_use": _protects},
    refused={
        "devname": "names a network interface, which has no name any more while a guest has it; give its address",
        "clear_action": "is for [nvme] device_spec; nothing is erased here, but see one_time_use",
        "clear_strategy": "is for [nvme] device_spec; nothing is erased here, but see one_time_use",
    },
)
"""The extra keys of ``[pci] device_spec``."""
