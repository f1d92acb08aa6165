"""Publish the compute host of an agent, and serve its instances.

The agent publishes the root provider, the providers of PCI functions, and the operator's additions. A period without
changes costs one Placement request, which it shares with discovery.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oslo_config import cfg
from oslo_log import log as logging

from autoclave.agent.compute import provider_config
from autoclave.agent.compute.claims import ResourceTracker
from autoclave.agent.compute.functions import PCIBus
from autoclave.agent.compute.instance_work import Guests, InstanceWork
from autoclave.agent.compute.instances import Instances
from autoclave.agent.compute.pci_tree import PCITree
from autoclave.agent.compute.provider_config import ProviderAdditions
from autoclave.agent.device_tree import RootProvider
from autoclave.db import hosts
from autoclave.db.devices import DeviceRecord
from autoclave.exceptions import AutoclaveError, InvalidConfiguration
from autoclave.hardware.command import Commands
from autoclave.hardware.host import HostPaths
from autoclave.lifecycle.ports import Ports
from autoclave.objects.base import RequestContext
from autoclave.placement.provider_tree import change_inventories, change_traits, whole_record
from autoclave.placement.records import Inventory, Provider
from autoclave.rpc.conductor_api import ConductorAPI
from autoclave.rpc.notifications import Notifications
from autoclave.rules.resource_request import HOST_TRAIT
from autoclave.virt.disks import InstanceFiles
from autoclave.virt.driver import ComputeDriver, HostInventory

LOG = logging.getLogger(__name__)

_INITIAL_RATIO = {"VCPU": 4.0, "MEMORY_MB": 1.0, "DISK_GB": 1.0}
"""Allocation ratios of a new host. Later changes made in Placement are kept."""


class ComputeTree:
    """Reconcile the providers of a compute host.

    :param host: the host's name, which is also that of its root provider.
    """

    def __init__(
        self,
        ports: Ports,
        root: RootProvider,
        driver: ComputeDriver,
        pci_tree: PCITree,
        provider_additions: ProviderAdditions,
        *,
        host: str,
    ) -> None:
        self._ports = ports
        self._root = root
        self._driver = driver
        self._pci = pci_tree
        self._additions = provider_additions
        self._host = host
        self._verified: tuple[object, ...] | None = None

    def sync(self, *, starting: bool = False) -> None:
        """Reconcile Placement and the rows with the host; called after discovery in every period.

        :param starting: stop the agent on a contradictory configuration; later, log it and keep the published state.
        :raises InvalidConfiguration: see *starting*.
        :raises GuestError: the hypervisor does not report the host's resources.
        :raises DatabaseUnavailable: the database cannot be read or written.
        :raises PlacementError: Placement could not be updated completely.
        """
        # At the start, discovery has created providers after it read the tree.
        root, tree = self._root.tree() if starting else self._root.tree_once_more()
        # First, so that burned devices are reserved even if a later step fails.
        withdrawn = self._pci.observe(tree)
        failure = self._pci.sync(root, tree)
        self._pci.withdraw(withdrawn)
        if self._pci.made:
            root, tree = self._root.tree()
        inventory = self._driver.inventory()
        self._sync_root(next(each for each in tree if each.uuid == root), inventory)
        self._report(root, inventory)
        own_classes, own_traits = frozenset(_INITIAL_RATIO), self._traits(inventory)
        failure = self._additions.sync(root, tree, own_classes, own_traits, starting=starting) or failure
        if failure is not None:
            raise failure

    def _report(self, root: str, inventory: HostInventory) -> None:
        values = {
            "rp_uuid": root,
            "hypervisor_type": inventory.hypervisor_type,
            "hypervisor_version": inventory.hypervisor_version,
            "vcpus": inventory.vcpus,
            "memory_mb": inventory.memory_mb,
            "local_gb": inventory.local_gb,
        }
        self._ports.db.transact(lambda tx: hosts.report(tx, self._host, values))

    def _sync_root(self, present: Provider, inventory: HostInventory) -> None:
        fingerprint = (present.uuid, present.generation, inventory)
        if self._verified == fingerprint:
            return
        # Keep additions of others: traits and classes from the provider configuration or set directly.
        traits = self._traits(inventory)
        state = change_traits(self._ports.placement, present.uuid, lambda known: known | traits)
        stands = change_inventories(
            self._ports.placement, present.uuid, lambda known: {**known, **_records(inventory, known)}
        )
        if stands is not None and state.generation == stands.generation == present.generation:
            self._verified = fingerprint

    def _traits(self, inventory: HostInventory) -> frozenset[str]:
        return inventory.traits | {HOST_TRAIT}


def _records(inventory: HostInventory, known: Mapping[str, Inventory]) -> dict[str, Inventory]:
    """Return the inventories of the host's own resource classes.

    Placement permits no total of 0: a resource that the host lacks has no inventory. An existing one is reserved,
    because it may be in use.

    :param known: inventories in Placement, whose allocation ratios are kept.
    """
    totals = {"VCPU": inventory.vcpus, "MEMORY_MB": inventory.memory_mb, "DISK_GB": inventory.local_gb}
    records = {}
    for name, total in totals.items():
        if total > 0:
            ratio = known[name].allocation_ratio if name in known else _INITIAL_RATIO[name]
            records[name] = replace(whole_record(total, 0), allocation_ratio=ratio)
        elif name in known:
            records[name] = replace(known[name], reserved=known[name].total)
    return records


@dataclass(frozen=True)
class ComputeParts:
    """Bundle the dependencies of a compute host.

    :param paths: paths of the host's kernel interfaces.
    """

    driver: ComputeDriver
    paths: HostPaths
    conductor: ConductorAPI
    notifications: Notifications


class ComputeHost:
    """Publish a host, and run its instances.

    :param root: shared with discovery, so that both use one request.
    :param begin_step: see :class:`InstanceWork`.
    :param clean: see :class:`InstanceWork`.
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
        clean: Callable[[RequestContext, DeviceRecord], None],
    ) -> None:
        bus = PCIBus(conf, parts.paths)
        config = provider_config.load(conf.compute.provider_config_location)
        additions = ProviderAdditions(ports, config, host)
        self._host = host
        self._starting = True
        """True until the host was published once without an error: a contradictory configuration stops the agent."""
        pci_tree = PCITree(ports, bus, host, unreadable_patience=conf.agent.unreadable_patience)
        self._tree = ComputeTree(ports, root, parts.driver, pci_tree, additions, host=host)
        # Without the privileged helper: the disks belong to this user, and their contents come from tenants.
        commands = Commands(replace(parts.paths, helper=None))
        # Guests of simulated hosts have no disks.
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
                clean=clean,
            )
        )

    def start(self, context: RequestContext) -> None:
        """Publish the host for the first time, then recover the instances of the last run.

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
        """Return the steps of a period, in order, to be run after discovery."""
        return self._sync, self.instances.check

    def _sync(self, _context: RequestContext) -> None:
        """Publish the host.

        :raises InvalidConfiguration: the configuration and the host contradict each other, and no publication has
            succeeded yet.
        :raises AutoclaveError: the host is not published completely.
        """
        self._tree.sync(starting=self._starting)
        self._starting = False
