"""Write providers, their traits and their inventories. Nothing else in Autoclave does.

Every write of traits or inventories names the generation that was read before. Placement refuses it if another writer
came first, and :func:`by_generation` then starts again from the read. :class:`ProviderState` carries what was read at a
generation, so that the next write need not read it again.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

from oslo_log import log as logging

from autoclave.exceptions import PlacementConflict, PlacementNotFound
from autoclave.placement.client import PlacementClient
from autoclave.placement.records import Inventories, Inventory, Provider, Traits
from autoclave.rules.resource_names import OWNER_CYBORG, OWNER_NOVA, may_be_the_operators

LOG = logging.getLogger(__name__)

ATTEMPTS = 12
"""The number of attempts against a moving generation."""

IN_USE = "placement.inventory.inuse"
"""Placement's code for a record that cannot be removed because of an allocation."""

_T = TypeVar("_T")
_Known = TypeVar("_Known")


@dataclass(frozen=True)
class DesiredProvider:
    """Describe a device's provider.

    :param traits: those of the device; ``OWNER_CYBORG`` is added.
    """

    uuid: str
    name: str
    parent: str
    resource_class: str
    traits: frozenset[str]


@dataclass(frozen=True)
class ProviderState:
    """Hold the state of a provider at one generation, as far as it was read or written.

    :param inventories: None if unknown at this generation.
    :param rewritten: Nova had taken over the provider.
    :param wrote: its traits were changed.
    """

    generation: int
    traits: frozenset[str]
    inventories: Mapping[str, Inventory] | None = None
    rewritten: bool = False
    wrote: bool = False

    @property
    def known_inventories(self) -> Inventories | None:
        """Return the inventories with their generation, if they are known."""
        return None if self.inventories is None else Inventories(self.generation, self.inventories)

    def with_inventories(self, read: Inventories) -> "ProviderState | None":
        """Return the state together with *read*, or None if the generation has changed in between."""
        return replace(self, inventories=read.records) if read.generation == self.generation else None


def whole_record(total: int, reserved: int) -> Inventory:
    """Return an inventory record with every field: Placement resets omitted fields."""
    return Inventory(total=total, reserved=reserved, min_unit=1, max_unit=total, step_size=1, allocation_ratio=1.0)


def by_generation(
    what: str,
    attempt: Callable[[_Known | None, bool], _T | None],
    known: _Known | None = None,
    *,
    stops_in_use: bool = False,
) -> _T:
    """Retry *attempt* until its writes match the generation that it has read, and return its result.

    :param what: the subject, for messages.
    :param attempt: reads, decides and writes. It gets *known* the first time, and None when it must read anew. Its
        second argument is true after Placement refused an attempt because a removed class is in use. It returns None to
        start again, if its reads are outdated.
    :param known: what was just read or written.
    :param stops_in_use: raise such a refusal at once.
    :raises PlacementConflict: the generation changed in each of :data:`ATTEMPTS` attempts.
    """
    in_use, code = False, ""
    for _ in range(ATTEMPTS):
        try:
            latest, known = known, None
            result = attempt(latest, in_use)
        except PlacementConflict as error:
            if error.code == IN_USE:
                if stops_in_use:
                    raise
                in_use = True
            code = error.code
            LOG.debug("Write of %s failed, retrying: %s", what, error)
            continue
        if result is not None:
            return result
    raise PlacementConflict(
        f"{what} could not be written in {ATTEMPTS} attempts because of concurrent writers; the next period retries",
        code,
    )


# Providers


def ensure_provider(
    client: PlacementClient,
    desired: DesiredProvider,
    present: Provider | None,
    on_rewritten: Callable[[], object] = lambda: None,
) -> ProviderState:
    """Write the provider and its traits as *desired*; ``lifecycle.reserve`` writes the inventory afterwards.

    Traits are written first, so that a reader of the inventory finds the owner. Custom traits of an operator are kept,
    and outdated traits of the device are removed.

    :param present: the provider as the tree showed it, or None.
    :param on_rewritten: called before the traits are overwritten, if Nova has taken over the provider.
    :returns: the current state of the provider.
    :raises PlacementConflict: another provider has the name, or another service wrote during each attempt.
    :raises PlacementRefused: this Placement does not know a trait or class.
    """
    made: ProviderState | None = None
    if present is None:
        try:
            made = create_provider(client, desired.uuid, desired.name, desired.parent)
        except PlacementConflict as error:
            raise PlacementConflict(_why_not_made(client, desired) or str(error), error.code) from error
    client.ensure_resource_class(desired.resource_class)
    wanted = desired.traits | {OWNER_CYBORG}

    def with_operators(traits: frozenset[str]) -> frozenset[str]:
        if OWNER_NOVA in traits:
            on_rewritten()
        return wanted | {name for name in traits if may_be_the_operators(name)}

    return change_traits(client, desired.uuid, with_operators, made)


def create_provider(client: PlacementClient, uuid: str, name: str, parent: str | None = None) -> ProviderState:
    """Create a provider, and return its state: without traits, without inventories.

    :raises PlacementConflict: the uuid or the name is taken.
    """
    made = client.create_provider(uuid, name, parent)
    return ProviderState(made.generation, frozenset(), {})


def delete_provider(client: PlacementClient, uuid: str) -> bool:
    """Delete a provider with its inventories and traits; return whether it existed.

    :raises PlacementConflict: a consumer has an allocation from it, or it has children.
    """
    try:
        client.delete_provider(uuid)
    except PlacementNotFound:
        return False
    return True


def rename_provider(client: PlacementClient, uuid: str, name: str) -> None:
    """Rename a provider.

    :raises PlacementNotFound: no provider has that uuid.
    :raises PlacementConflict: the name is taken.
    """
    client.rename_provider(uuid, name)


def provider_named(tree: Iterable[Provider], name: str) -> Provider | None:
    """Return the provider of *tree* with *name*, or None."""
    return next((provider for provider in tree if provider.is_named(name)), None)


# Traits


def change_traits(
    client: PlacementClient,
    uuid: str,
    change: Callable[[frozenset[str]], frozenset[str]],
    known: ProviderState | None = None,
) -> ProviderState:
    """Apply *change* to the traits of a provider, write them if they differ, and return the resulting state.

    :param change: returns the desired traits for the current ones.
    :param known: the known state of the provider; None to read it.
    :raises PlacementNotFound: the provider does not exist.
    :raises PlacementConflict: the generation changed in each attempt.
    :raises PlacementRefused: this Placement does not know a trait.
    """

    def attempt(state: ProviderState | None, _in_use: bool) -> ProviderState:
        if state is None:
            read: Traits = client.get_traits(uuid)
            state = ProviderState(read.generation, read.names)
        state = replace(state, rewritten=OWNER_NOVA in state.traits)
        wanted = change(state.traits)
        if wanted == state.traits:
            return state
        client.ensure_traits(wanted)
        return replace(state, generation=client.put_traits(uuid, state.generation, wanted), traits=wanted, wrote=True)

    return by_generation(f"the traits of provider {uuid}", attempt, known)


# Inventories


def put_inventories(client: PlacementClient, uuid: str, generation: int, records: Mapping[str, Inventory]) -> int:
    """Replace all inventories of a provider by *records*, and return its new generation.

    :raises PlacementConflict: the generation is outdated, or a removed class is in use.
    """
    return client.put_inventories(uuid, generation, records)


def change_inventories(
    client: PlacementClient, uuid: str, change: Callable[[Mapping[str, Inventory]], Mapping[str, Inventory]]
) -> Inventories | None:
    """Apply *change* to the inventories of a provider, and write them if they differ.

    :param change: returns the desired records for the current ones.
    :returns: the current inventories if they need no change; None after a write.
    :raises PlacementNotFound: the provider does not exist.
    :raises PlacementConflict: the generation changed in each attempt, or a removed class is in use.
    """

    def attempt(_known: None, _in_use: bool) -> tuple[Inventories | None]:
        known = client.get_inventories(uuid)
        wanted = change(known.records)
        if wanted == known.records:
            return (known,)
        for name in wanted.keys() - known.records.keys():
            client.ensure_resource_class(name)
        client.put_inventories(uuid, known.generation, wanted)
        return (None,)

    return by_generation(f"the inventory of provider {uuid}", attempt, stops_in_use=True)[0]


def _why_not_made(client: PlacementClient, desired: DesiredProvider) -> str | None:
    """Describe the other tree that contains the provider, if any: a root was renamed or recreated."""
    try:
        elsewhere = client.get_provider(desired.uuid)
        root, ours = client.get_provider(elsewhere.root), client.get_provider(desired.parent)
    except PlacementNotFound:
        return None
    return (
        f"provider {desired.name} ({desired.uuid}) is below the root {root.name} ({root.uuid}), not below {ours.name} "
        f"({ours.uuid}). If {root.name} is this host's former root, renamed by hand: delete {ours.uuid}, which must be "
        f"empty, then run `openstack resource provider set --name {ours.name} {root.uuid}` and restart the agent"
    )


def reserve_all(records: Mapping[str, Inventory]) -> dict[str, Inventory]:
    """Return *records* with everything reserved."""
    return {name: replace(record, reserved=record.total) for name, record in records.items()}
