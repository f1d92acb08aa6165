"""Reconcile the devices that ``[pci] device_spec`` selects with the host and with Placement."""

from collections.abc import Collection, Mapping, Sequence

from oslo_log import log as logging
from sqlalchemy.engine import Connection

from autoclave.agent.compute.functions import PCIBus, UnreadableFunctions
from autoclave.agent.device_tree import DeviceProviders, KnownDevice, known_devices, known_functions
from autoclave.db import instances as instance_rows
from autoclave.db import pci
from autoclave.db.instances import InstanceRecord
from autoclave.db.pci import ProviderRecord
from autoclave.exceptions import HardwareError, PlacementError, PlacementNotFound
from autoclave.lifecycle.claims import burn_for_unknown
from autoclave.lifecycle.pci_inventory import (
    Adopted,
    Changes,
    apply,
    cards_differ,
    changes,
    follow_cards,
    withdraw,
)
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.provider_tree import delete_provider, provider_named
from autoclave.placement.records import Provider
from autoclave.rules.device_lifecycle import Actor, DeviceState
from autoclave.rules.instance_states import TaskState
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_inventory import PCIProvider
from autoclave.rules.reclaim import BurnState, Reclaim
from autoclave.rules.resource_names import OWNER_CYBORG, provider_name

LOG = logging.getLogger(__name__)

_OWN = "COMPUTE_MANAGED_PCI_DEVICE"

_COMING = frozenset({TaskState.SCHEDULING, TaskState.SPAWNING})
"""Task states of an instance that has not claimed its allocation yet."""


class PCITree:
    """Reconcile the devices with the host, and their providers in Placement.

    :param unreadable_patience: seconds for which a function may be unreadable.
    """

    def __init__(self, ports: Ports, bus: PCIBus, host: str, *, unreadable_patience: float) -> None:
        self._ports = ports
        self._bus = bus
        self._host = host
        self._unreadable = UnreadableFunctions(ports, host, unreadable_patience)
        self._providers = DeviceProviders(ports, host, known_functions)
        self._told: frozenset[str] = frozenset()

    @property
    def made(self) -> bool:
        """Return whether the last :meth:`sync` has created a provider."""
        return self._providers.made

    def observe(self, tree: Sequence[Provider]) -> list[ProviderRecord]:
        """Reconcile the rows with the host; return the rows whose providers must be removed.

        :raises DatabaseUnavailable: the database cannot be read or written.
        :raises PlacementError: Placement cannot be read for a provider that is new or becomes one-time-use.
        """
        known = known_devices(self._ports.db, self._host)
        try:
            look = self._bus.look(_taken_by_drivers(known))
        except HardwareError as error:
            LOG.error(
                "The PCI bus of %s cannot be looked at; its functions are left as they are: %s", self._host, error
            )
            self._unreadable.note_blind(str(error))
            return []
        self._unreadable.note(look)
        occupied = _occupied([str(each.address) for each in look.providers], known)
        wanted = [each for each in look.providers if str(each.address) not in occupied]
        unreadable = frozenset(look.unreadable.keys() | look.unclear.keys())
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
            self._providers.note_changed(row.uuid for row, _ in found.providers)
        self._follow_cards(wanted)
        self._tell([*occupied.values(), *foreign.values(), *found.kept])
        return found.withdrawn

    def sync(self, root: str, tree: Sequence[Provider]) -> PlacementError | None:
        """Reconcile each provider independently; return the last failure, if any."""
        return self._providers.sync(root, tree, self._burn_for_unknown)

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
            if self._ports.db.transact(lambda tx, row=row: withdraw(tx, row)):  # type: ignore[misc]
                LOG.info(
                    "Provider %s is gone: its function is not there, or not configured, any more.", self._name(row)
                )

    def _follow_cards(self, wanted: Sequence[PCIProvider]) -> None:
        """Detect, before anything is offered, cards that were burned in another slot."""
        serials = self._bus.serials(wanted)
        with self._ports.db.read() as tx:
            if not cards_differ(tx, self._host, serials):
                return
        self._ports.db.transact(lambda tx: follow_cards(tx, self._host, serials, self._ports.clock()))

    def _changes(self, wanted: Sequence[PCIProvider], unreadable: frozenset[str]) -> Changes:
        with self._ports.db.read() as tx:
            return changes(tx, self._host, wanted, unreadable)

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

    def _burn_for_unknown(self, entry: KnownDevice) -> bool:
        """Burn a device that has a consumer without an instance on record; return whether it was burned.

        An allocation increments the generation, so an unchanged provider costs no request. A consumer that comes and
        goes between two periods is not detected.
        """
        if entry.device.reclaim is not Reclaim.HOLD or entry.claimed:
            return False
        with self._ports.db.read() as tx:
            row = pci.get(tx, entry.deployable.rp_uuid)
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

    def _name(self, row: ProviderRecord) -> str:
        return provider_name(row.hostname, PCIAddress.parse(row.address))

    def _tell(self, said: Collection[str]) -> None:
        """Log the messages that the last period has not logged."""
        for words in said:
            if words not in self._told:
                LOG.warning("%s", words)
        self._told = frozenset(said)


def _taken_by_drivers(known: Mapping[str, KnownDevice]) -> dict[PCIAddress, str]:
    """Return the names of device drivers by the address of the functions that they have."""
    taken = {}
    for address, entry in known.items():
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


def _occupied(addresses: Sequence[str], known: Mapping[str, KnownDevice]) -> dict[str, str]:
    """Return messages for the operator about slots that still have a driver's device on record, by address.

    A slot has one device. Its driver misses this one, and no instance has it.
    """
    return {
        address: (
            f"{address} is skipped: device {known[address].device.uuid} of {known[address].deployable.driver_name} is "
            f"on record in that slot, and missing. Run `autoclave device forget {known[address].device.uuid}`."
        )
        for address in addresses
        if address in known
    }
