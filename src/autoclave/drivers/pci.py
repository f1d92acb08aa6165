"""The generic PCI driver: functions that guests get as they are, and give back as they leave them."""

from collections.abc import Sequence
from functools import cached_property
from typing import ClassVar

from oslo_config import cfg
from oslo_log import log as logging

from autoclave.conf.agent import allowed_host_devices
from autoclave.conf.pci import PASSTHROUGH_KEYS, PASSTHROUGH_OPTION
from autoclave.drivers.base import DiscoveredDevice, Driver, Inspected, Sighting
from autoclave.drivers.pci_inspection import Card, look
from autoclave.hardware.host import HostPaths
from autoclave.rules.device_spec import DeviceSpec, parse_device_spec

LOG = logging.getLogger(__name__)


class PCIDriver(Driver):
    """Discovers what ``[pci] passthrough_whitelist`` names, by sysfs. Nothing of it is erased."""

    name: ClassVar[str] = "pci_driver"

    def __init__(self, conf: cfg.ConfigOpts, paths: HostPaths) -> None:
        super().__init__(conf, paths)
        self._told: dict[str, str | None] = {}

    def init_host(self) -> None:
        """See to it that the options can be read.

        :raises InvalidConfiguration: ``[pci] passthrough_whitelist`` or ``[agent] allow_host_device`` is wrong.
        """
        if not self.device_specs:
            LOG.warning("%s is empty: the driver %s manages no device", PASSTHROUGH_OPTION, self.name)
        allowed_host_devices(self.conf)

    @cached_property
    def device_specs(self) -> Sequence[DeviceSpec]:
        """The entries of ``[pci] passthrough_whitelist``."""
        return parse_device_spec(
            self.conf.pci.passthrough_whitelist, option=PASSTHROUGH_OPTION, extra_keys=PASSTHROUGH_KEYS
        )

    def discover(self) -> Sequence[DiscoveredDevice | Sighting]:
        cards, unreadable = self._look()
        for card in cards:
            self._tell(card)
        return [*(card.device() for card in cards), *unreadable]

    def inspect(self) -> Sequence[Inspected]:
        cards, unreadable = self._look()
        unread = [Inspected(each.pci_address, "?", refused=[each.unreadable]) for each in unreadable]
        return [*(card.inspected() for card in cards), *unread]

    def _look(self) -> tuple[list[Card], list[Sighting]]:
        return look(self.paths, self.device_specs, allowed_host_devices(self.conf))

    def _tell(self, card: Card) -> None:
        """Log what keeps a configured function from being offered, once, until that changes."""
        for candidate in card.candidates:
            address = str(candidate.function.address)
            if candidate.withheld != self._told.get(address):
                self._told[address] = candidate.withheld
                entry = f"{PASSTHROUGH_OPTION} entry {candidate.entry.entry}"
                if candidate.withheld:
                    LOG.error("%s (%s) is not offered: %s", address, entry, candidate.withheld)
                else:
                    LOG.info("%s (%s) may be offered", address, entry)
