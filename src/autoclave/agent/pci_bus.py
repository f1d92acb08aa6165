"""What ``[pci] device_spec`` means of a host's PCI functions at this moment."""

from collections.abc import Mapping

from oslo_config import cfg
from oslo_log import log as logging

from autoclave.conf.agent import allowed_host_devices
from autoclave.hardware.host import HostPaths
from autoclave.hardware.pci_functions import HostFunctions
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_claims import refuse_double_claims
from autoclave.rules.pci_device_spec import parse_pci_device_spec
from autoclave.rules.pci_matches import matches
from autoclave.rules.pci_providers import PCIProvider, translate

LOG = logging.getLogger(__name__)


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

    def look(
        self, taken: Mapping[PCIAddress, str], *, starting: bool
    ) -> tuple[tuple[PCIProvider, ...], frozenset[str]]:
        """The providers of what instances may get, and the addresses of what does not say what it is.

        A function that something speaks against giving away is left out, and the operator told once.

        :param taken: what device drivers offer, and the name of the driver.
        :param starting: entries must not contradict each other in what is left out, either. Later, what is left out is
            left out: a card that has got virtual functions is not to stay offered for the sake of that.
        :raises HardwareError: the bus cannot be listed.
        :raises InvalidConfiguration: the entries contradict each other on this host, or mean what a device driver has.
        """
        if not self._specs:
            return (), frozenset()
        host = HostFunctions(self._paths)
        refuse_double_claims(host.functions, self._specs, taken)
        if starting:
            translate(host.functions, self._specs)
        allowed = allowed_host_devices(self._conf)
        withheld = {}
        for match in matches(host.functions, self._specs):
            why = host.withheld(match, allowed)
            if why is not None:
                withheld[match.function.address] = why
        for address, why in withheld.items():
            if self._told.get(address) != why:
                LOG.error("%s is not offered: %s", address, why)
        self._told = withheld
        given = [function for function in host.functions if function.address not in withheld]
        return translate(given, self._specs), frozenset(host.unreadable)
