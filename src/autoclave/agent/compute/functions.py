"""What ``[pci] device_spec`` means of a host's PCI functions at this moment."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from oslo_config import cfg
from oslo_log import log as logging

from autoclave.conf.agent import allowed_host_devices
from autoclave.exceptions import HardwareError
from autoclave.hardware.host import HostPaths
from autoclave.hardware.pci_functions import HostFunctions, card_serial
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_inventory import (
    PCIProvider,
    all_matches,
    double_claims,
    matches,
    parse_pci_device_spec,
    translate,
)

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Look:
    """One look at the bus.

    :param providers: of what instances may get.
    :param unreadable: functions that are there and do not say what they are: why, by their addresses.
    :param unclear: functions of which the host does not say who uses them: why, by their addresses.
    """

    providers: tuple[PCIProvider, ...] = ()
    unreadable: Mapping[str, str] = field(default_factory=dict)
    unclear: Mapping[str, str] = field(default_factory=dict)


class PCIBus:
    """Looks at the bus, by sysfs.

    :param paths: where the host's kernel interfaces are.
    :raises InvalidConfiguration: ``[pci] device_spec`` cannot be read.
    """

    def __init__(self, conf: cfg.ConfigOpts, paths: HostPaths) -> None:
        self._conf = conf
        self._paths = paths
        self._specs = parse_pci_device_spec(conf.pci.device_spec)
        self._told: dict[PCIAddress, str] = {}

    def look(self, taken: Mapping[PCIAddress, str]) -> Look:
        """Return the providers of what instances may get, and what could not be read.

        A function that must not be given away, and a slot whose entries contradict each other on this host, are left
        out, and logged once.

        :param taken: what device drivers have, and the name of the driver.
        :raises HardwareError: the bus cannot be listed.
        """
        if not self._specs:
            return Look()
        host = HostFunctions(self._paths)
        allowed = allowed_host_devices(self._conf)
        withheld = {address: str(fault) for address, fault in double_claims(host.functions, self._specs, taken).items()}
        meant = {match.function.address for match in all_matches(host.functions, self._specs)}
        for match in matches(host.functions, self._specs):
            address = match.function.address
            why = str(match.fault) if match.fault is not None else host.withheld(match, allowed, meant)
            if why is not None:
                withheld.setdefault(address, why)
        given = [function for function in host.functions if function.address not in withheld]
        translated = translate(given, self._specs)
        withheld |= {slot: str(fault) for slot, fault in translated.faults.items()}
        for address, why in withheld.items():
            if self._told.get(address) != why:
                LOG.error("%s is not offered: %s", address, why)
        self._told = withheld
        return Look(translated.providers, host.unreadable, host.unclear)

    def serials(self, providers: Sequence[PCIProvider]) -> Mapping[str, str]:
        """Return what tells the whole devices of this host from all others, by their addresses.

        It is made of the ids, the number of the function and the serial: all functions of a card may have one serial.
        What two devices have in common, and what cannot be read, is left out.
        """
        found: dict[str, str] = {}
        for provider in providers:
            it = provider.functions[0]
            if it.address != provider.address:
                continue  # virtual functions
            try:
                serial = card_serial(self._paths, it.address, vital_product_data=provider.one_time_use)
            except HardwareError as error:
                LOG.debug("The serial of %s is not known: %s", it.address, error)
                continue
            if serial is not None:
                found[str(it.address)] = f"{it.vendor_id}:{it.product_id}.{it.address.function} {serial}"
        count = Counter(found.values())
        return {address: serial for address, serial in found.items() if count[serial] == 1}
