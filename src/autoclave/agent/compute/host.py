"""The compute half of an agent: what its host publishes, and its instances."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oslo_config import cfg
from oslo_log import log as logging

from autoclave.agent import provider_config
from autoclave.agent.compute.claims import ResourceTracker
from autoclave.agent.compute.functions import PCIBus
from autoclave.agent.compute.instance_work import InstanceWork
from autoclave.agent.compute.pci_tree import PCITree
from autoclave.agent.compute.provider_config import ProviderAdditions
from autoclave.agent.compute_tree import ComputeTree
from autoclave.agent.guests import Guests
from autoclave.agent.instances import Instances
from autoclave.agent.root_provider import RootProvider
from autoclave.exceptions import AutoclaveError, InvalidConfiguration
from autoclave.hardware.command import Commands
from autoclave.hardware.host import HostPaths
from autoclave.lifecycle.ports import Ports
from autoclave.objects.base import RequestContext
from autoclave.rpc.conductor_api import ConductorAPI
from autoclave.rpc.notifications import Notifications
from autoclave.virt.disks import InstanceFiles
from autoclave.virt.driver import ComputeDriver

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class ComputeParts:
    """The world of the compute half.

    :param paths: where the host's kernel interfaces are.
    """

    driver: ComputeDriver
    paths: HostPaths
    conductor: ConductorAPI
    notifications: Notifications


class ComputeHost:
    """Publishes a host, and runs its instances.

    :param root: shared with discovery, so that both are told of the tree at once.
    :param begin_step: see :class:`InstanceWork`.
    :raises InvalidConfiguration: ``[pci] device_spec`` or the provider config cannot be read.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        ports: Ports,
        root: RootProvider,
        parts: ComputeParts,
        *,
        host: str,
        run_id: str,
        begin_step: Callable[[], None],
    ) -> None:
        bus = PCIBus(conf, parts.paths)
        config = provider_config.load(conf.compute.provider_config_location)
        additions = ProviderAdditions(ports, config, host)
        self._host = host
        self._starting = True
        """Until the host was published once without an error: what contradicts itself stops the agent."""
        pci_tree = PCITree(ports, bus, host, unreadable_patience=conf.agent.unreadable_patience)
        self._tree = ComputeTree(ports, root, parts.driver, pci_tree, additions, host=host)
        # Not by the privileged helper: the disks are this user's, and a tenant wrote what is read of them.
        commands = Commands(replace(parts.paths, helper=None))
        # The guests of simulated hosts only exist on paper.
        files = None if conf.compute.virt_driver == "null" else InstanceFiles(Path(conf.agent.data_dir), commands)
        self.instances = Instances(
            InstanceWork(
                ports=ports,
                driver=parts.driver,
                guests=Guests(ports.db, files),
                tracker=ResourceTracker(ports, host),
                conductor=parts.conductor,
                notifications=parts.notifications,
                host=host,
                run_id=run_id,
                begin_step=begin_step,
            )
        )

    def start(self, context: RequestContext) -> None:
        """Publish the host for the first time, then go on with what the last run left of its instances.

        :raises InvalidConfiguration: the configuration and the host contradict each other.
        """
        try:
            self._sync(context)
        except InvalidConfiguration:
            raise
        except AutoclaveError as error:
            LOG.error("What %s has for instances is not all published yet: %s", self._host, error)
        try:
            self.instances.check(context)
        except AutoclaveError as error:
            LOG.error("What became of the instances of %s could not be seen to yet: %s", self._host, error)

    @property
    def steps(self) -> Sequence[Callable[[RequestContext], None]]:
        """What is done every period, after discovery."""
        return self._sync, self.instances.check

    def _sync(self, _context: RequestContext) -> None:
        """Publish the host.

        :raises InvalidConfiguration: while this has not succeeded once: the configuration and the host contradict
            each other.
        :raises AutoclaveError: not all of it is published.
        """
        self._tree.sync(starting=self._starting)
        self._starting = False
