"""What runs the guests of one host: the port to its hypervisor."""

from dataclasses import dataclass, replace
from typing import Protocol

from oslo_config import cfg

from autoclave.rules.instance_states import PowerState
from autoclave.virt.guest import GuestSpec


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
