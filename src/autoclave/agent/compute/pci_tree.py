"""Reconcile the rows and providers of a host's PCI functions; ``lifecycle.burn`` writes their inventories."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.agent.compute.functions import PCIBus, UnreadableFunctions
from autoclave.agent.device_tree import LoweredReserved, known_devices
from autoclave.db import instances as instance_rows
from autoclave.db import pci
from autoclave.db.instances import InstanceRecord
from autoclave.db.pci import AdditionKind, ProviderRecord
from autoclave.exceptions import (
    HardwareError,
    PlacementConflict,
    PlacementError,
    PlacementNotFound,
)
from autoclave.lifecycle import burn
from autoclave.lifecycle.burn import Settled, burn_for_unknown, is_settled, settle_provider
from autoclave.lifecycle.pci_inventory import Adopted, Changes, apply, changes
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.provider_tree import (
    ProviderState,
    change_traits,
    create_provider,
    delete_provider,
    provider_named,
)
from autoclave.placement.records import Inventory, Provider
from autoclave.rules.burn import BurnState
from autoclave.rules.device_lifecycle import Actor, DeviceState
from autoclave.rules.instance_states import TaskState
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_inventory import PCIProvider
from autoclave.rules.resource_names import OWNER_CYBORG, provider_name

LOG = logging.getLogger(__name__)

_OWN = "COMPUTE_MANAGED_PCI_DEVICE"

_COMING = frozenset({TaskState.SCHEDULING, TaskState.SPAWNING})
"""Task states of an instance that has not claimed its allocation yet."""


class PCITree:
    """Reconcile the rows of the host's PCI functions, and their providers in Placement.

    A provider is skipped if its generation and its row have not changed since it was last verified.

    :param unreadable_patience: seconds for which a function may be unreadable.
    """

    def __init__(self, ports: Ports, bus: PCIBus, host: str, *, unreadable_patience: float) -> None:
        self._ports = ports
        self._bus = bus
        self._host = host
        self._unreadable = UnreadableFunctions(ports, host, unreadable_patience)
        self._verified: dict[str, tuple[object, ...]] = {}
        self._lowered = LoweredReserved()
        self._told: frozenset[str] = frozenset()
        self.made = False
        """Whether the last :meth:`sync` has created a provider."""

    def observe(self, tree: Sequence[Provider]) -> list[ProviderRecord]:
        """Reconcile the rows with the host; return the rows whose providers must be removed.

        :raises DatabaseUnavailable: the database cannot be read or written.
        :raises PlacementError: Placement cannot be read for a provider that is new or becomes one-time-use.
        """
        try:
            look = self._bus.look(self._taken_by_drivers())
        except HardwareError as error:
            LOG.error(
                "The PCI bus of %s cannot be looked at; its functions are left as they are: %s", self._host, error
            )
            self._unreadable.note_blind(str(error))
            return []
        self._unreadable.note(look)
        wanted, unreadable = look.providers, frozenset(look.unreadable.keys() | look.unclear.keys())
        found = self._changes(wanted, unreadable)
        foreign: Mapping[str, str] = {}
        if found.to_write:
            adopted = {**self._adopted(found.new, tree), **self._held(found.becoming_one_time_use)}
            foreign = self._foreign(found.new, tree)
            ours = [each for each in wanted if str(each.address) not in foreign]

            def write(tx: Connection) -> Changes:
                again = changes(tx, self._host, ours, unreadable, lock=True)
                apply(tx, self._host, again, adopted, self._ports.clock())
                return again

            found = self._ports.db.transact(write)
        self._follow_cards(wanted)
        self._tell([*foreign.values(), *found.kept])
        return found.withdrawn

    def sync(self, root: str, tree: Sequence[Provider]) -> PlacementError | None:
        """Reconcile each provider independently; return the last failure, if any."""
        present = {provider.uuid: provider for provider in tree}
        with self._ports.db.read() as tx:
            rows = pci.providers(tx, self._host)
            claimed = Counter(
                each.provider_id for each in pci.functions(tx, self._host) if each.instance_uuid is not None
            )
            added = pci.of_host(tx, self._host)
        failure: PlacementError | None = None
        self.made = False
        for row in rows:
            traits = row.trait_names | {
                each.name for each in added if each.rp_uuid == row.uuid and each.kind is AdditionKind.TRAIT
            }
            try:
                self._sync_one(root, tree, present.get(row.uuid), row, claimed[row.id], traits)
            except PlacementError as error:
                LOG.warning("Provider %s is not as it should be yet: %s", self._name(row), error)
                failure = error
        return failure

    def withdraw(self, rows: Sequence[ProviderRecord]) -> None:
        """Remove providers that are no longer configured, then their rows.

        A provider with an allocation is kept: its instance has not claimed yet, and will be refused.
        """
        for row in rows:
            try:
                if not delete_provider(self._ports.placement, row.uuid):
                    LOG.debug("Provider %s was gone already", self._name(row))
            except PlacementError as error:
                LOG.warning("Provider %s, of which nothing is configured, cannot go yet: %s", self._name(row), error)
                continue
            if self._ports.db.transact(lambda tx, row=row: pci.delete(tx, row)):  # type: ignore[misc]
                LOG.info(
                    "Provider %s is gone: its function is not there, or not configured, any more.", self._name(row)
                )

    def _follow_cards(self, wanted: Sequence[PCIProvider]) -> None:
        """Detect, before anything is offered, cards that were burned in another slot."""
        serials = self._bus.serials(wanted)
        with self._ports.db.read() as tx:
            if not burn.differs(tx, self._host, serials):
                return
        self._ports.db.transact(lambda tx: burn.follow(tx, self._host, serials, self._ports.clock()))

    def _changes(self, wanted: Sequence[PCIProvider], unreadable: frozenset[str]) -> Changes:
        with self._ports.db.read() as tx:
            return changes(tx, self._host, wanted, unreadable)

    def _taken_by_drivers(self) -> dict[PCIAddress, str]:
        taken = {}
        for address, entry in known_devices(self._ports.db, self._host).items():
            # A device whose driver lost it by a changed configuration is still in use or dirty.
            idle = entry.device.device_state is DeviceState.AVAILABLE and not any(use.in_use for use in entry.handles)
            if entry.device.missing and idle:
                continue
            for text in (address, *(use.handle.identity for use in entry.handles)):
                try:
                    taken[PCIAddress.parse(text)] = entry.deployable.driver_name
                except ValueError:
                    continue  # a device without a slot is identified by a name
        return taken

    def _foreign(self, new: Sequence[PCIProvider], tree: Sequence[Provider]) -> Mapping[str, str]:
        """Return messages for the operator, by address, for new providers whose names others use in Placement."""
        foreign = {}
        for wanted in new:
            name = provider_name(self._host, wanted.address)
            present = provider_named(tree, name)
            if present is None:
                continue
            traits = self._ports.placement.get_traits(present.uuid).names
            if OWNER_CYBORG in traits or _OWN not in traits:
                foreign[str(wanted.address)] = (
                    f"{wanted.address} is skipped: provider {name} exists without the trait {_OWN}, so somebody else "
                    "manages it. Delete that provider, or let [pci] device_spec not match the function."
                )
        return foreign

    def _adopted(self, new: Sequence[PCIProvider], tree: Sequence[Provider]) -> Mapping[str, Adopted]:
        adopted = {}
        for wanted in new:
            present = provider_named(tree, provider_name(self._host, wanted.address))
            if present is not None:
                used = any(self._ports.placement.get_usages(present.uuid).values())
                adopted[str(wanted.address)] = Adopted(present.uuid, used)
        return adopted

    def _held(self, late: Sequence[ProviderRecord]) -> Mapping[str, Adopted]:
        """Return the usage in Placement of providers that become one-time-use.

        An instance that is about to claim is not counted: its claim burns the device.
        """
        held = {}
        for row in late:
            known = self._consumers(row).values()
            used = any(instance is None or instance.task_state not in _COMING for instance in known)
            held[row.address] = Adopted(row.uuid, used)
        return held

    def _sync_one(
        self,
        root: str,
        tree: Sequence[Provider],
        present: Provider | None,
        row: ProviderRecord,
        claimed: int,
        traits: frozenset[str],
    ) -> None:
        generation = present.generation if present else None
        fingerprint = (generation, row.state_version, row.resource_class, row.total, row.outdated, claimed, traits)
        if present is not None and self._verified.get(row.uuid) == fingerprint:
            return
        made = self._make(root, tree, row) if present is None else None
        # Traits first, so that a reader of the inventory finds the owner.
        state = change_traits(self._ports.placement, row.uuid, lambda _known: traits, made)
        inventories = state.known_inventories or self._ports.placement.get_inventories(row.uuid)
        settled = is_settled(self._ports.db, row.uuid, inventories)
        record = inventories.records.get(row.resource_class)
        if not settled:
            self._settle(row, claimed, record, state.with_inventories(inventories))
        elif record is not None and record.reserved >= row.total:
            self._lowered.saw_full(row.uuid, (row.state_version, claimed))
        else:
            self._lowered.saw(row.uuid)
        # After reconciling: a release ends an earlier burn, but not one by a later allocation.
        if row.one_time_use and not claimed and self._burn_for_unknown(row.uuid):
            self._settle(row, claimed, None)
        elif settled and not state.wrote and present and inventories.generation == present.generation:
            self._verified[row.uuid] = fingerprint

    def _settle(
        self, row: ProviderRecord, claimed: int, record: Inventory | None, fresh: ProviderState | None = None
    ) -> None:
        """Reconcile *row*'s inventory, and report one that has too little reserved.

        :param record: the inventory in Placement; None if there was none, or it was inspected before.
        :param fresh: the provider as read since *row* was read.
        """
        outcome = settle_provider(self._ports.db, self._ports.placement, row.uuid, (row, fresh) if fresh else None)
        if outcome is not Settled.RAISED or record is None or record.reserved >= row.total or not row.burned:
            return
        with self._ports.db.read() as tx:
            now = pci.get(tx, row.uuid)
            now_claimed = (
                0 if now is None else sum(each.instance_uuid is not None for each in pci.functions_of(tx, now))
            )
        self._lowered.report(
            row.uuid,
            (row.state_version, claimed),
            None if now is None else (now.state_version, now_claimed),
            f"Provider {self._name(row)} had reserved={record.reserved}, but {row.address} is burned and must not be "
            f"offered: raised to {row.total}.",
        )

    def _burn_for_unknown(self, rp_uuid: str) -> bool:
        """Burn a provider that has a consumer without an instance on record; return whether it was burned.

        An allocation increments the generation, so an unchanged provider costs no request. A consumer that comes and
        goes between two periods is not detected.
        """
        with self._ports.db.read() as tx:
            row = pci.get(tx, rp_uuid)
        if row is None or row.burn_state is BurnState.BURNED:
            return False
        consumers = self._consumers(row)
        unknown = [consumer for consumer, instance in consumers.items() if instance is None]
        if unknown:
            # An instance deleted between the two reads no longer has an allocation.
            unknown = [consumer for consumer in unknown if consumer in self._consumers(row)]
        by = Cause(Actor.AGENT, self._host)
        if not unknown or not burn_for_unknown(self._ports.db, row, unknown, self._ports.clock(), by):
            return False
        LOG.warning(
            "Provider %s is allocated by %s, of which no instance is on record: %s is burned until it is released.",
            self._name(row),
            ", ".join(sorted(unknown)),
            row.address,
        )
        return True

    def _consumers(self, row: ProviderRecord) -> dict[str, InstanceRecord | None]:
        """Return the consumers of *row*'s provider, each with its instance on record; empty if there is no provider."""
        try:
            consumers = self._ports.placement.get_allocations_for_provider(row.uuid)
        except PlacementNotFound:
            return {}
        with self._ports.db.read() as tx:
            return {consumer: instance_rows.get(tx, consumer) for consumer in consumers}

    def _make(self, root: str, tree: Sequence[Provider], row: ProviderRecord) -> ProviderState:
        taken = provider_named(tree, self._name(row))
        if taken is not None:
            raise PlacementConflict(
                f"it has the uuid {taken.uuid} in Placement, and {row.uuid} here: delete the foreign one"
            )
        state = create_provider(self._ports.placement, row.uuid, self._name(row), root)
        self.made = True
        return state

    def _name(self, row: ProviderRecord) -> str:
        return provider_name(row.hostname, PCIAddress.parse(row.address))

    def _tell(self, said: Collection[str]) -> None:
        """Log the messages that the last period has not logged."""
        for words in said:
            if words not in self._told:
                LOG.warning("%s", words)
        self._told = frozenset(said)
