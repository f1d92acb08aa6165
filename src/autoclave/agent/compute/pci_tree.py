"""The providers of a host's PCI functions: rows, providers, traits; their inventories by ``lifecycle.burn``."""

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
"""What is done with an instance before it claims what it was allocated."""


class PCITree:
    """Keeps the rows of the host's PCI functions, and Placement's providers of them.

    A provider that is at the generation at which it was last found right, for a row that has not changed, is not
    looked at again.

    :param unreadable_patience: seconds for which a function may be one that cannot be looked at.
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
        """Whether the last :meth:`sync` has made a provider."""

    def observe(self, tree: Sequence[Provider]) -> list[ProviderRecord]:
        """Make the rows say what the host has. Returns those whose providers are to go.

        :raises DatabaseUnavailable: nothing could be read or written.
        :raises PlacementError: what Placement has of a new provider, or of one that becomes of one time use, could not
            be asked.
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
        """Make Placement agree, each provider by itself; returns why the last one does not, if so."""
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
        """Remove providers that nothing is configured for any more; then their rows.

        One that Placement has a user of is kept: an instance is on its way to it, and will be refused.
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
        """Before anything is offered: what is new may be a card that was burned in another slot."""
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
            # A device that a changed configuration has taken from its driver is still with its user, or dirty.
            idle = entry.device.device_state is DeviceState.AVAILABLE and not any(use.in_use for use in entry.handles)
            if entry.device.missing and idle:
                continue
            for text in (address, *(use.handle.identity for use in entry.handles)):
                try:
                    taken[PCIAddress.parse(text)] = entry.deployable.driver_name
                except ValueError:
                    continue  # a device that is in no slot has a name
        return taken

    def _foreign(self, new: Sequence[PCIProvider], tree: Sequence[Provider]) -> Mapping[str, str]:
        """The new providers that exist already and are not ours: their addresses, each with words for the operator."""
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
        """What Placement has of providers on record that serve one instance only from now on.

        Who is on his way to one with a row of his own burns it when he claims it.
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
        # Traits go first, so that a reader of the inventory finds the owner.
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
        # After settling: a release that was seen has ended the burn, and does not cover what was allocated since.
        if row.one_time_use and not claimed and self._burn_for_unknown(row.uuid):
            self._settle(row, claimed, None)
        elif settled and not state.wrote and present and inventories.generation == present.generation:
            self._verified[row.uuid] = fingerprint

    def _settle(
        self, row: ProviderRecord, claimed: int, record: Inventory | None, fresh: ProviderState | None = None
    ) -> None:
        """Reconcile *row*'s inventory, and report one of which less is reserved than must be.

        :param record: what Placement had; None: nothing, or it was looked at before.
        :param fresh: what was read of the provider since *row* was read.
        """
        outcome = settle_provider(self._ports.db, self._ports.placement, row.uuid, row, fresh)
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
        """Burn a provider if Placement has a consumer of it that no instance on record is; return whether it did.

        An allocation moves the generation, so an unchanged provider costs no request. A consumer that comes and goes
        between two periods is not seen.
        """
        with self._ports.db.read() as tx:
            row = pci.get(tx, rp_uuid)
        if row is None or row.burn_state is BurnState.BURNED:
            return False
        consumers = self._consumers(row)
        unknown = [consumer for consumer, instance in consumers.items() if instance is None]
        if unknown:
            # An instance that was deleted between the two reads has no allocation any longer, either.
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
        """What holds an allocation of *row*, each with its instance on record; empty without a provider."""
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
        """Tell the operator what the last period has not told him already."""
        for words in said:
            if words not in self._told:
                LOG.warning("%s", words)
        self._told = frozenset(said)
