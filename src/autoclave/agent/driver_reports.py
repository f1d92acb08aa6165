"""What the drivers report of this host, and which of them could not look."""

from collections.abc import Mapping
from dataclasses import dataclass

from oslo_log import log as logging

from autoclave.drivers.base import DiscoveredDevice, Driver, Sighting
from autoclave.exceptions import AutoclaveError, InvalidConfiguration

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    """A device, or a sign of one, and the driver that reports it."""

    driver: Driver
    device: DiscoveredDevice | Sighting


class DriverReports:
    """What the enabled drivers report, taken together: a device belongs to one of them."""

    def __init__(self, drivers: Mapping[str, Driver]) -> None:
        self._drivers = drivers
        self._conflicts: set[str] = set()
        """Addresses that two drivers claim, of which the operator has been told."""

    def look_at(self, driver_name: str, address: str) -> DiscoveredDevice | Sighting | None:
        """Return what one driver reports of one slot; None if that is nothing, or the driver could not look."""
        driver = self._drivers.get(driver_name)
        if driver is None:
            return None
        try:
            return driver.discover_at(address)
        except AutoclaveError as error:
            LOG.error("Driver %s could not look at %s: %s", driver_name, address, error)
        except Exception:  # a vendor's driver may be in error like anybody
            LOG.exception("Driver %s failed unexpectedly when it looked at %s", driver_name, address)
        return None

    def gather(self, *, starting: bool) -> tuple[dict[str, Found], dict[str, str]]:
        """What is on the host, by address, and the drivers that could not look, each with the reason.

        :param starting: a device that two drivers claim is an error; later it stays with the first.
        :raises InvalidConfiguration: see *starting*; or a driver cannot work as it is configured.
        """
        found: dict[str, Found] = {}
        blind: dict[str, str] = {}
        for name, driver in self._drivers.items():
            try:
                reported = list(driver.discover())
            except InvalidConfiguration:
                raise
            except AutoclaveError as error:
                LOG.error("Driver %s could not look at this host; its devices are left as they are: %s", name, error)
                blind[name] = f"its driver {name} could not look at the host: {error}"
                continue
            except Exception as error:  # a vendor's driver may be in error like anybody; the other drivers go on
                LOG.exception("Driver %s failed unexpectedly; its devices are left as they are", name)
                blind[name] = f"its driver {name} failed unexpectedly: {type(error).__name__}: {error}"
                continue
            for device in reported:
                other = found.get(device.pci_address)
                if other is None or isinstance(other.device, Sighting):
                    found[device.pci_address] = Found(driver, device)
                    continue
                if isinstance(device, Sighting):
                    continue
                message = (
                    f"device {device.pci_address} is claimed by {other.driver.name} and by {name}; "
                    "let only one driver's device_spec match it"
                )
                if starting:
                    raise InvalidConfiguration(message, option="[agent] enabled_drivers")
                if device.pci_address not in self._conflicts:
                    LOG.error("%s. It stays with %s.", message, other.driver.name)
                    self._conflicts.add(device.pci_address)
        return found, blind
