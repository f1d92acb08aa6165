"""Load device drivers by the names of their entry points.

:class:`FakeDriver` reports a nonexistent device like Cyborg's fake driver, for tests of everything around a driver.
"""

from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import ClassVar, NoReturn

from oslo_config import cfg
from oslo_log import log as logging
from stevedore import driver as stevedore_driver
from stevedore import exception as stevedore_exception

from autoclave.drivers.base import AttachHandle, DiscoveredDevice, Driver
from autoclave.exceptions import InvalidConfiguration
from autoclave.hardware.host import HostPaths
from autoclave.rules.pci_address import PCIAddress

LOG = logging.getLogger(__name__)

NAMESPACE = "autoclave.drivers"
"""The entry point group; a package with a vendor's driver adds its own entry."""

OPTION = "[agent] enabled_drivers"


def load_drivers(conf: cfg.ConfigOpts, paths: HostPaths) -> list[Driver]:
    """Return the drivers of ``[agent] enabled_drivers``, in its order.

    :raises InvalidConfiguration: a name is given twice, is unknown, or its driver cannot be used.
    """
    names: list[str] = conf.agent.enabled_drivers
    if not names:
        LOG.warning("%s lists no driver: the agent of this host finds and cleans no device", OPTION)
    for name in names:
        if names.count(name) > 1:
            raise InvalidConfiguration(f"the driver {name} is listed more than once", option=OPTION)
    return [_load(name)(conf, paths) for name in names]


def _load(name: str) -> type[Driver]:
    try:
        plugin = stevedore_driver.DriverManager(NAMESPACE, name, on_load_failure_callback=_unloadable).driver
    except stevedore_exception.NoMatches:
        known = ", ".join(sorted({entry.name for entry in entry_points(group=NAMESPACE)})) or "none"
        raise InvalidConfiguration(
            f"no driver {name!r} in the entry point group {NAMESPACE}; installed drivers: {known}", option=OPTION
        ) from None
    except stevedore_exception.MultipleMatches as e:
        raise InvalidConfiguration(
            f"several installed packages provide the driver {name!r}; uninstall all but one: {e}", option=OPTION
        ) from e
    if not (isinstance(plugin, type) and issubclass(plugin, Driver)):
        raise InvalidConfiguration(f"the entry point {name!r} is {plugin!r}, not a device driver", option=OPTION)
    if plugin.name != name:
        # The name is recorded with each device, and selects the driver that must clean it.
        raise InvalidConfiguration(
            f"the entry point {name!r} loads {plugin.__module__}.{plugin.__qualname__}, whose name is {plugin.name!r}; "
            "the two must be the same",
            option=OPTION,
        )
    return plugin


def _unloadable(manager: object, entry_point: object, error: Exception) -> NoReturn:  # noqa: ARG001
    raise InvalidConfiguration(f"the driver {entry_point} cannot be loaded: {error}", option=OPTION) from error


_SLOT = PCIAddress(domain=0, bus=0x0C, slot=0, function=0)
_HANDLES = 16


class FakeDriver(Driver):
    """Report one FPGA with sixteen handles of type ``TEST_PCI``, which Nova does not pass to a guest."""

    name: ClassVar[str] = "fake_driver"

    def discover(self) -> Sequence[DiscoveredDevice]:
        addresses = [PCIAddress(_SLOT.domain, _SLOT.bus, number // 8, number % 8) for number in range(_HANDLES)]
        return [
            DiscoveredDevice(
                pci_address=str(_SLOT),
                device_type="FPGA",
                vendor="0xABCD",
                product="miss model info",
                resource_class="FPGA",
                traits=("CUSTOM_FAKE_DEVICE",),
                attach_handles=[AttachHandle("TEST_PCI", at.as_attach_info(), str(at)) for at in addresses],
                std_board_info={"device_id": "0xabcd", "class": "Fake class"},
                vendor_board_info="fake_vendor_info",
                name="FakeDevice",
            )
        ]
