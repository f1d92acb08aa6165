"""Define the port to the hypervisor of a host, and load its driver.

What runs the guests of one host: the port to its hypervisor.

The driver that ``[compute] virt_driver`` names.

The null driver: guests that are only told of, on simulated hosts.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from oslo_config import cfg

from autoclave.exceptions import GuestError, InvalidConfiguration, SimulatorError
from autoclave.rules.instance_states import PowerState
from autoclave.rules.pci_address import PCIAddress
from autoclave.simulator.guests import GuestFunction, Guests
from autoclave.simulator.host import SimulatedHost
from autoclave.virt.disks import InstanceFiles
from autoclave.virt.guest import DomainType, GuestSpec, domain_xml, pci_hostdev


@dataclass(frozen=True)
class HostInventory:
    """What a host has for instances: what ``[compute] reserved_host_*`` keeps for itself is taken off already.

    :param memory_mb: MiB.
    :param local_gb: GiB of the file system on which the guests' disks are, used or not.
    :param hypervisor_version: as libvirt counts it: 1000000 × major + 1000 × minor + release.
    :param traits: what the hypervisor says of its root provider.
    """

    vcpus: int
    memory_mb: int
    local_gb: int
    hypervisor_type: str
    hypervisor_version: int
    traits: frozenset[str] = frozenset()

    def less_reserved(self, conf: cfg.ConfigOpts) -> "HostInventory":
        """Without what ``[compute] reserved_host_*`` keeps for the host; never less than nothing."""
        reserved = conf.compute
        return replace(
            self,
            vcpus=max(0, self.vcpus - reserved.reserved_host_cpus),
            memory_mb=max(0, self.memory_mb - reserved.reserved_host_memory_mb),
            local_gb=max(0, self.local_gb - reserved.reserved_host_disk_gb),
        )


class ComputeDriver(Protocol):
    """A hypervisor. Any number of threads may use it, one at a time for each guest.

    A guest is known from :meth:`spawn` until :meth:`destroy`, running or not, also when the agent has been restarted
    meanwhile. Every method raises :class:`~autoclave.exceptions.GuestError` when the hypervisor refuses, or does not
    answer. What was asked may have been done all the same: whoever gives up destroys the guest before it lets go of
    what the guest had.
    """

    def inventory(self) -> HostInventory:
        """What this host has."""

    def spawn(self, guest: GuestSpec) -> None:
        """Make the guest known and run it; refused if it is known already.

        A failure may leave it known, or even running.
        """

    def destroy(self, uuid: str) -> None:
        """End the guest at once and forget it; its disk stays. Nothing is to do where there is none.

        :raises GuestError: it may still be there, and have its devices.
        """

    def start(self, uuid: str) -> None:
        """Run the guest, with the devices that it has; nothing is to do if it runs."""

    def stop(self, uuid: str) -> None:
        """Ask the guest to shut down, and end it when it has not in time; nothing is to do if it is off."""

    def reboot(self, uuid: str) -> None:
        """Stop and start; a guest that is off is started."""

    def rebuild(self, guest: GuestSpec) -> None:
        """End the guest, if it is known, and run it as *guest* says.

        A failure may leave it as it was, off, or running anew.
        """

    def state(self, uuid: str) -> PowerState | None:
        """Whether the guest runs; None: the hypervisor does not know it.

        A paused guest counts as running: it has its devices. CRASHED: it died by itself, and was not shut down.

        :raises GuestError: nobody can say now; that is no None.
        """


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


_OPTION = "[compute] virt_driver"


def load_compute_driver(conf: cfg.ConfigOpts) -> ComputeDriver:
    """What runs the guests of the host that *conf* is for.

    :raises InvalidConfiguration: it is not for this host, or libvirt-python is not installed.
    """
    instances = InstanceFiles(Path(conf.agent.data_dir))
    host = SimulatedHost.of_nodes(Path(conf.agent.dev_root))
    if conf.compute.virt_driver == "null":
        if host is None:
            raise InvalidConfiguration("null is for simulated hosts: on this one it would run no guest", option=_OPTION)
        return NullDriver(conf, host, instances)
    if host is not None and not conf.compute.libvirt_uri.startswith("test:"):
        # The addresses of the simulated host's functions are those of other devices in this machine.
        raise InvalidConfiguration("libvirt cannot run guests on a simulated host; set it to null", option=_OPTION)
    # Imported only here: libvirt-python is an extra.
    from autoclave.virt.libvirt import LibvirtDriver

    return LibvirtDriver(conf, instances)
