"""Define the port to the hypervisor of a host, and load its driver.

:class:`NullDriver` is for simulated hosts: it records guests and runs none.
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
    """Describe the host's resources for instances, without ``[compute] reserved_host_*``.

    :param memory_mb: MiB.
    :param local_gb: GiB of the file system with the guests' disks, used or not.
    :param hypervisor_version: in libvirt's encoding: 1000000 × major + 1000 × minor + release.
    :param traits: the hypervisor's traits for the root provider.
    """

    vcpus: int
    memory_mb: int
    local_gb: int
    hypervisor_type: str
    hypervisor_version: int
    traits: frozenset[str] = frozenset()

    def less_reserved(self, conf: cfg.ConfigOpts) -> "HostInventory":
        """Subtract ``[compute] reserved_host_*``; amounts are never negative."""
        reserved = conf.compute
        return replace(
            self,
            vcpus=max(0, self.vcpus - reserved.reserved_host_cpus),
            memory_mb=max(0, self.memory_mb - reserved.reserved_host_memory_mb),
            local_gb=max(0, self.local_gb - reserved.reserved_host_disk_gb),
        )


class ComputeDriver(Protocol):
    """Control a hypervisor. It is thread-safe, with at most one call at a time for each guest.

    A guest exists from :meth:`spawn` until :meth:`destroy`, running or not, even across restarts of the agent. Every
    method raises :class:`~autoclave.exceptions.GuestError` if the hypervisor refuses or does not answer. The operation
    may still have been performed. So a caller that gives up destroys the guest before it frees the guest's resources.
    """

    def inventory(self) -> HostInventory:
        """Return the resources of this host."""

    def spawn(self, guest: GuestSpec) -> None:
        """Define the guest and start it; fail if it exists.

        A failure may leave it defined, or even running.
        """

    def destroy(self, uuid: str) -> None:
        """End the guest at once and remove its definition; its disk stays. Do nothing without such a guest.

        :raises GuestError: it may still exist, and have its devices.
        """

    def start(self, uuid: str) -> None:
        """Start the guest with its devices; do nothing if it runs."""

    def stop(self, uuid: str) -> None:
        """Shut the guest down, and end it after a timeout; do nothing if it is off."""

    def reboot(self, uuid: str) -> None:
        """Stop and start the guest; a guest that is off is started."""

    def rebuild(self, guest: GuestSpec) -> None:
        """End the guest, if it exists, and start it as *guest* describes.

        A failure may leave it unchanged, off, or running with the new definition.
        """

    def state(self, uuid: str) -> PowerState | None:
        """Return the power state of the guest, or None if the hypervisor does not know it.

        A paused guest counts as running, since it has its devices. CRASHED: it ended without a shutdown.

        :raises GuestError: the state is unknown, which differs from None.
        """


_INVENTORY = HostInventory(
    vcpus=32, memory_mb=64 * 1024, local_gb=1000, hypervisor_type="null", hypervisor_version=1_000_000
)


class NullDriver:
    """Implement :class:`~autoclave.virt.driver.ComputeDriver`; its guests outlive the agent in the host's directory.

    ``autoclave sim`` sets their faults.
    """

    def __init__(self, conf: cfg.ConfigOpts, host: SimulatedHost, instances: InstanceFiles) -> None:
        self._conf = conf
        self._guests = Guests(host)
        self._instances = instances

    def inventory(self) -> HostInventory:
        return _INVENTORY.less_reserved(self._conf)

    def spawn(self, guest: GuestSpec) -> None:
        if self.state(guest.uuid) is not None:
            raise GuestError(f"guest {guest.uuid} exists already")
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
    """Convert the guest's ``<hostdev>``, which :func:`domain_xml` has validated."""
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
    """Return the driver for the host of *conf*.

    :raises InvalidConfiguration: the driver does not fit this host, or libvirt-python is not installed.
    """
    instances = InstanceFiles(Path(conf.agent.data_dir))
    host = SimulatedHost.of_nodes(Path(conf.agent.dev_root))
    if conf.compute.virt_driver == "null":
        if host is None:
            raise InvalidConfiguration(
                "null is for simulated hosts only: it runs no guests. Set it to libvirt", option=_OPTION
            )
        return NullDriver(conf, host, instances)
    if host is not None and not conf.compute.libvirt_uri.startswith("test:"):
        # The addresses of the simulated host's functions belong to other devices in this machine.
        raise InvalidConfiguration("libvirt cannot run guests on a simulated host; set it to null", option=_OPTION)
    # A lazy import: libvirt-python is an extra.
    from autoclave.virt.libvirt import LibvirtDriver

    return LibvirtDriver(conf, instances)
