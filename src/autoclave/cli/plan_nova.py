"""``autoclave plan``, of accelerators that ``[pci] device_spec`` of nova.conf matches as well."""

import json
from collections.abc import Sequence
from dataclasses import dataclass

from oslo_config import cfg

from autoclave.conf.check import require_text
from autoclave.drivers.base import DiscoveredDevice
from autoclave.exceptions import InvalidConfiguration
from autoclave.hardware.host import HostPaths
from autoclave.hardware.pci_functions import HostFunctions
from autoclave.rules.device_spec import DeviceSpec, ExtraKeys, first_match, parse_device_spec
from autoclave.rules.json_options import option_entries
from autoclave.rules.pci_address import PCIAddress

_MATCH_KEYS = ("vendor_id", "product_id", "address")


@dataclass(frozen=True)
class NovaSpecs:
    """What Nova's ``[pci] device_spec`` matches on this host.

    :param source: the files that were read, for messages.
    :param reported: ``[pci] report_in_placement``.
    """

    source: str
    specs: Sequence[DeviceSpec]
    reported: bool
    functions: HostFunctions

    def clash(self, device: DiscoveredDevice) -> str | None:
        """Return what is wrong with an accelerator that Nova has as well; None: Nova has no part of it."""
        slot = _address(device.pci_address)
        if slot is None:
            return None
        parts = [_address(handle.identity) for handle in device.attach_handles]
        for address in (slot, *parts):
            found = None if address is None else self.functions.seen(address)
            if found is None:
                continue
            spec = first_match(self.specs, found.vendor_id, found.product_id, found.address, found.physfn)
            if spec is not None:
                does = "writes its provider as its own" if self.reported else "gives it to guests past Autoclave"
                return (
                    f"[pci] device_spec of {self.source} ({spec.text}) matches it as well: "
                    f"nova-compute {does}. Let only one of the two match it"
                )
        return None


def read(files: Sequence[str], paths: HostPaths) -> NovaSpecs:
    """Read Nova's option.

    Nova takes keys that it does not know for tags, so only those that match a device are read here. An entry that names
    a network interface (``devname``) is skipped.

    :raises InvalidConfiguration: an entry cannot be read, or a file is no text; names the file.
    :raises HardwareError: the PCI bus cannot be listed.
    :raises cfg.Error: a file cannot be read.
    """
    require_text(files)
    source = ", ".join(files)
    conf = cfg.ConfigOpts()
    old = [cfg.DeprecatedOpt("passthrough_whitelist", group="pci")]
    conf.register_opts(
        [
            cfg.MultiStrOpt("device_spec", default=[], deprecated_opts=old),
            cfg.BoolOpt("report_in_placement", default=False),
        ],
        group="pci",
    )
    conf([], project="nova", default_config_files=list(files))
    option = f"[pci] device_spec of {source}"
    entries = []
    for number, raw in option_entries(conf.pci.device_spec, option):
        if not isinstance(raw, dict):
            raise InvalidConfiguration("must be a JSON object", option=option, entry=number)
        if "devname" not in raw:
            entries.append({key: raw[key] for key in _MATCH_KEYS if key in raw} or {"address": "*"})
    specs = parse_device_spec([json.dumps(entries)], option=option, extra_keys=ExtraKeys({}, {}, {}))
    return NovaSpecs(source, specs, conf.pci.report_in_placement, HostFunctions(paths))


def _address(text: str) -> PCIAddress | None:
    try:
        return PCIAddress.parse(text)
    except ValueError:
        return None  # a device that is in no slot has a name
