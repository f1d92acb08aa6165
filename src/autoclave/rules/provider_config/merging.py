"""What provider configuration adds to a host's providers, and what of earlier additions has to go.

Pure: nothing is written here. Whoever applies it remembers each addition in the database *before* it is written to
Placement, and forgets it *after* it was taken away there: a death in between can then neither make our own addition
look like somebody else's, nor leave one behind. What was remembered of a provider that is gone has to be forgotten: one
made anew has none of it.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from autoclave.rules.provider_config.model import AddedInventory, Place, ProviderConfig, ProviderEntry


@dataclass(frozen=True)
class TreeProvider:
    """A provider of the host's tree, as far as adding to it is concerned.

    :param is_compute_node: whether ``$COMPUTE_NODE`` means it.
    :param classes: classes that it has inventories of in Placement.
    :param traits: traits that it has in Placement.
    :param owned_classes: classes that another part of this agent writes there at this sync.
    :param owned_traits: traits likewise.
    :param remembered_classes: classes that earlier merges added, by the database.
    :param remembered_traits: traits likewise.
    :param traits_only: whether its inventory is one record that belongs to somebody else and may have no neighbour, as
        that of an accelerator.
    """

    uuid: str
    name: str
    is_compute_node: bool = False
    classes: frozenset[str] = frozenset()
    traits: frozenset[str] = frozenset()
    owned_classes: frozenset[str] = frozenset()
    owned_traits: frozenset[str] = frozenset()
    remembered_classes: frozenset[str] = frozenset()
    remembered_traits: frozenset[str] = frozenset()
    traits_only: bool = False


@dataclass(frozen=True)
class ProviderChange:
    """What provider configuration means for one provider.

    :param inventories: what it is to have besides what others write, by class. All of it is to be remembered.
    :param traits: likewise.
    :param removed_classes: remembered, no longer configured, and nobody else's: to be taken out of Placement.
    :param removed_traits: likewise.
    :param forgotten_classes: remembered, and no longer ours: the removed ones, and those that somebody else has now.
    :param forgotten_traits: likewise.
    """

    inventories: Mapping[str, AddedInventory] = field(default_factory=dict, hash=False)
    traits: frozenset[str] = frozenset()
    removed_classes: frozenset[str] = frozenset()
    removed_traits: frozenset[str] = frozenset()
    forgotten_classes: frozenset[str] = frozenset()
    forgotten_traits: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Conflict:
    """A part of an entry, at *place*, that cannot be followed; the merge has left it out."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(frozen=True)
class Merge:
    """The outcome.

    :param changes: by uuid, for the providers where anything is added, removed or forgotten.
    :param conflicts: at the start of an agent a reason to stop, later to warn. They are the same at every sync, and
        hashable, for as long as nothing changes.
    :param absent: entries that mean no provider of the tree.
    """

    changes: Mapping[str, ProviderChange]
    conflicts: tuple[Conflict, ...]
    absent: tuple[ProviderEntry, ...]


def merge(config: ProviderConfig, tree: Iterable[TreeProvider]) -> Merge:
    """Work out what *config* means for the providers of one host.

    A trait that somebody else has set is there already, and so neither a conflict nor remembered. An inventory that
    somebody else has is a conflict.
    """
    providers = tuple(tree)
    named, conflicts, absent = _named(config, providers)
    general = next((entry for entry in config.entries if entry.means_every_compute_node), None)
    if general is not None and not any(provider.is_compute_node for provider in providers):
        absent.append(general)
    changes = {}
    for provider in providers:
        entry = named.get(provider.uuid) or (general if provider.is_compute_node else None)
        refused = _refused(entry, provider) if entry else {}
        conflicts += refused.values()
        change = _change(entry, provider, refused)
        if change != ProviderChange():
            changes[provider.uuid] = change
    return Merge(changes, tuple(conflicts), tuple(absent))


def _named(
    config: ProviderConfig, providers: Sequence[TreeProvider]
) -> tuple[dict[str, ProviderEntry], list[Conflict], list[ProviderEntry]]:
    """The entry that names each provider, by its uuid; what that contradicts; and entries that name none.

    Where two entries mean one provider, the one that gives its uuid counts: a name may have moved.
    """
    uuids = {provider.uuid.lower(): provider for provider in providers}
    names = {provider.name.casefold(): provider for provider in providers} | {each.name: each for each in providers}
    found: dict[str, ProviderEntry] = {}
    conflicts: list[Conflict] = []
    absent: list[ProviderEntry] = []
    explicit = [entry for entry in config.entries if not entry.means_every_compute_node]
    for entry in sorted(explicit, key=lambda entry: entry.uuid is None):
        if entry.uuid:
            provider = uuids.get(entry.uuid)
        else:
            name = entry.name or ""
            provider = names.get(name) or names.get(name.casefold())
        if provider is None:
            absent.append(entry)
            continue
        first = found.setdefault(provider.uuid, entry)
        if first is not entry:
            message = f"{entry.provider!r} is the provider {provider.uuid}, which {first.place} is for; merge the two"
            conflicts.append(Conflict(entry.place, message))
    return found, conflicts, absent


def _refused(entry: ProviderEntry, provider: TreeProvider) -> dict[str, Conflict]:
    """Why the provider cannot have some of the entry's inventories, by class."""
    refused = {}
    for name, inventory in entry.inventories.items():
        if provider.traits_only:
            why = "an accelerator, whose inventory is not shared; an entry can add traits only"
        elif name in provider.owned_classes:
            why = f"which gets its {name} from this agent already; take it out of the entry"
        elif name in provider.classes - provider.remembered_classes:
            why = f"where somebody else has put {name}; take it out of the entry, or delete that inventory"
        else:
            continue
        message = f"not possible for {provider.name!r} ({provider.uuid}), {why}"
        refused[name] = Conflict(inventory.place, message)
    return refused


def _change(entry: ProviderEntry | None, provider: TreeProvider, refused: Container[str]) -> ProviderChange:
    inventories: dict[str, AddedInventory] = {}
    traits: frozenset[str] = frozenset()
    if entry is not None:
        inventories = {name: record for name, record in entry.inventories.items() if name not in refused}
        traits = frozenset(entry.traits) - provider.owned_traits - (provider.traits - provider.remembered_traits)
    forgotten_classes = provider.remembered_classes - inventories.keys()
    forgotten_traits = provider.remembered_traits - traits
    return ProviderChange(
        inventories,
        traits,
        forgotten_classes - provider.owned_classes,
        forgotten_traits - provider.owned_traits,
        forgotten_classes,
        forgotten_traits,
    )
