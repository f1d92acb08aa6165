"""Write providers, their traits and their inventories. Nothing else in Autoclave does.

Every write of traits or inventories names the generation at which its author has read the provider. Placement refuses
it if another writer came first; :func:`by_generation` then starts again from the reading. What was read at a
generation is passed on as :class:`ProviderState`, so that the next write need not read it again.
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
"""How often a generation that has moved on is answered by starting again."""

IN_USE = "placement.inventory.inuse"
"""Placement's code for a record that an allocation was made from, and that cannot be removed therefore."""

_T = TypeVar("_T")


@dataclass(frozen=True)
class DesiredProvider:
    """A device's provider.

    :param traits: those that the device has; ``OWNER_CYBORG`` comes by itself.
    """

    uuid: str
    name: str
    parent: str
    resource_class: str
    traits: frozenset[str]


@dataclass(frozen=True)
class ProviderState:
    """What a provider has at one generation, as far as it was read or written.

    :param inventories: None: not known at this generation.
    :param rewritten: Nova had made the provider its own.
    :param wrote: its traits were other ones before.
    """

    generation: int
    traits: frozenset[str]
    inventories: Mapping[str, Inventory] | None = None
    rewritten: bool = False
    wrote: bool = False

    @property
    def known_inventories(self) -> Inventories | None:
        """The inventories with their generation, if they are known."""
        return None if self.inventories is None else Inventories(self.generation, self.inventories)

    def with_inventories(self, read: Inventories) -> "ProviderState | None":
        """Return what is known of the provider together with *read*, or None if it has moved on in between."""
        return replace(self, inventories=read.records) if read.generation == self.generation else None


def whole_record(total: int, reserved: int) -> Inventory:
    """Return an inventory record with every field: Placement resets what is left out."""
    return Inventory(total=total, reserved=reserved, min_unit=1, max_unit=total, step_size=1, allocation_ratio=1.0)


def by_generation(what: str, attempt: Callable[[bool], _T | None], *, stops_in_use: bool = False) -> _T:
    """Run *attempt* until its writes meet the generation that it has read, and return its result.

    :param what: the subject, for messages.
    :param attempt: reads, decides and writes. Its argument says whether Placement has refused an earlier attempt
        because a class that was to go is in use. It returns None to start again: what it has read is out of date.
    :param stops_in_use: such a refusal is raised at once.
    :raises PlacementConflict: the generation moved at each of :data:`ATTEMPTS` attempts.
    """
    in_use, code = False, ""
    for _ in range(ATTEMPTS):
        try:
            result = attempt(in_use)
        except PlacementConflict as error:
            if error.code == IN_USE:
                if stops_in_use:
                    raise
                in_use = True
            code = error.code
            LOG.debug("%s was not written, starting again: %s", what, error)
            continue
        if result is not None:
            return result
    raise PlacementConflict(
        f"{what} could not be written in {ATTEMPTS} attempts: other writers came first each time; the next period "
        "tries again",
        code,
    )


# Providers


def ensure_provider(
    client: PlacementClient,
    desired: DesiredProvider,
    present: Provider | None,
    on_rewritten: Callable[[], object] = lambda: None,
) -> ProviderState:
    """Write the provider and its traits as *desired*; the inventory comes afterwards, by ``settle``.

    Traits go first, so that a reader of the inventory finds the owner. Custom traits that an operator set are kept;
    what the device no longer is or can do is not.

    :param present: the provider as the tree showed it, or None if it is not there.
    :param on_rewritten: called before the traits are written over, if Nova has made the provider its own.
    :returns: the provider as it is now.
    :raises PlacementConflict: another provider has that name, or another service wrote at each attempt.
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
    """Make a provider, and return it: without traits, without inventories.

    :raises PlacementConflict: the uuid or the name is taken.
    """
    made = client.create_provider(uuid, name, parent)
    return ProviderState(made.generation, frozenset(), {})


def delete_provider(client: PlacementClient, uuid: str) -> bool:
    """Delete a provider with its inventories and traits; return whether it was there.

    :raises PlacementConflict: an allocation is made from it, or it has children.
    """
    try:
        client.delete_provider(uuid)
    except PlacementNotFound:
        return False
    return True


def rename_provider(client: PlacementClient, uuid: str, name: str) -> None:
    """Give a provider another name.

    :raises PlacementNotFound: there is none with that uuid.
    :raises PlacementConflict: the name is taken.
    """
    client.rename_provider(uuid, name)


def provider_named(tree: Iterable[Provider], name: str) -> Provider | None:
    """Return the provider of *tree* that *name* means, or None."""
    return next((provider for provider in tree if provider.is_named(name)), None)


# Traits


def change_traits(
    client: PlacementClient,
    uuid: str,
    change: Callable[[frozenset[str]], frozenset[str]],
    known: ProviderState | None = None,
) -> ProviderState:
    """Change the traits of a provider by *change*, if it changes them; return the provider as it is then.

    :param change: what the traits are to be, of what they are.
    :param known: what was read or written of the provider; None: it is read.
    :raises PlacementNotFound: there is no such provider.
    :raises PlacementConflict: the provider moved on at each attempt.
    :raises PlacementRefused: this Placement does not know a trait.
    """
    latest = [known]

    def attempt(_in_use: bool) -> ProviderState:
        state, latest[0] = latest[0], None
        if state is None:
            read: Traits = client.get_traits(uuid)
            state = ProviderState(read.generation, read.names)
        state = replace(state, rewritten=OWNER_NOVA in state.traits)
        wanted = change(state.traits)
        if wanted == state.traits:
            return state
        client.ensure_traits(wanted)
        return replace(state, generation=client.put_traits(uuid, state.generation, wanted), traits=wanted, wrote=True)

    return by_generation(f"the traits of provider {uuid}", attempt)


# Inventories


def put_inventories(client: PlacementClient, uuid: str, generation: int, records: Mapping[str, Inventory]) -> int:
    """Make *records* all the inventories of a provider, and return its new generation.

    :raises PlacementConflict: the provider has moved on from *generation*, or a class that goes is in use.
    """
    return client.put_inventories(uuid, generation, records)


def change_inventories(
    client: PlacementClient, uuid: str, change: Callable[[Mapping[str, Inventory]], Mapping[str, Inventory]]
) -> Inventories | None:
    """Change the inventories of a provider by *change*.

    :param change: what the records are to be, of what they are.
    :returns: what was there and stays, if nothing is to be changed; None: it was written.
    :raises PlacementNotFound: there is no such provider.
    :raises PlacementConflict: the provider moved on at each attempt, or a class that is to go is in use.
    """

    def attempt(_in_use: bool) -> tuple[Inventories | None]:
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
    """Where the provider is, if it is in another tree: its root was renamed, or that of the host made anew."""
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
    """Return *records*, of which nothing more can be allocated."""
    return {name: replace(record, reserved=record.total) for name, record in records.items()}
