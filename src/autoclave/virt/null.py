"""The null driver: guests that are only told of, on simulated hosts."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from oslo_config import cfg

from autoclave.exceptions import GuestError, SimulatorError
from autoclave.rules.instance_states import PowerState
from autoclave.rules.pci_address import PCIAddress
from autoclave.simulator.guests import GuestFunction, Guests
from autoclave.simulator.host import SimulatedHost
from autoclave.virt.disks import InstanceFiles
from autoclave.virt.driver import HostInventory
from autoclave.virt.guest import DomainType, GuestSpec, domain_xml
from autoclave.virt.hostdev import pci_hostdev

_INVENTORY = HostInventory(
    vcpus=32, memory_mb=64 * 1024, local_gb=1000, hypervisor_type="null", hypervisor_version=1_000_000
)


class NullDriver:
    """See :class:`~autoclave.virt.driver.ComputeDriver`; its guests outlive the agent in the host's directory.

    What goes wrong with them, ``autoclave sim`` says.
    """

    def __init__(self, conf: cfg.ConfigOpts, host: SimulatedHost, instances: InstanceFiles) -> None:
        self._conf = conf
        self._guests = Guests(host)
        self._instances = instances

    def inventory(self) -> HostInventory:
        return _INVENTORY.less_reserved(self._conf)

    def spawn(self, guest: GuestSpec) -> None:
        if self.state(guest.uuid) is not None:
            raise GuestError(f"guest {guest.uuid} is there already")
        with _simulated():
            self._define(guest)
            self._guests.obey_spawn_faults()
            self._guests.start(guest.uuid)

    def destroy(self, uuid: str) -> None:
        if self.state(uuid) is None:
            return
        with _simulated():
            self._guests.end(uuid)
            self._guests.forget(uuid)

    def start(self, uuid: str) -> None:
        with _simulated():
            self._guests.start(uuid)

    def stop(self, uuid: str) -> None:
        with _simulated():
            self._guests.end(uuid)

    def reboot(self, uuid: str) -> None:
        self.stop(uuid)
        self.start(uuid)

    def rebuild(self, guest: GuestSpec) -> None:
        with _simulated():
            if self.state(guest.uuid) is not None:
                self._guests.end(guest.uuid)
            self._define(guest)
            self._guests.obey_spawn_faults()
            self._guests.start(guest.uuid)

    def state(self, uuid: str) -> PowerState | None:
        guest = self._guests.all().get(uuid)
        if guest is None:
            return None
        if guest.running:
            return PowerState.RUNNING
        return PowerState.CRASHED if guest.crashed else PowerState.SHUTDOWN

    def _define(self, guest: GuestSpec) -> None:
        xml = domain_xml(
            guest,
            domain_type=DomainType.TEST,
            console_log=self._instances.console_log(guest.uuid),
            nvram=self._instances.nvram(guest.uuid),
        )
        self._guests.define(guest.uuid, xml, tuple(_function(info) for info in guest.hostdevs))


def _function(info: Mapping[str, Any]) -> GuestFunction:
    """What the guest's ``<hostdev>`` says of it, which :func:`domain_xml` has judged."""
    hostdev = pci_hostdev(info)
    address = PCIAddress.parse("{domain}:{bus}:{device}.{function}".format(**info))
    return GuestFunction(str(address), managed=hostdev.get("managed") == "yes")


@contextmanager
def _simulated() -> Iterator[None]:
    try:
        yield
    except SimulatorError as error:
        raise GuestError(str(error)) from error
