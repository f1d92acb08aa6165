"""Merge provider configuration into a host's providers, and find earlier additions to remove.

The merge performs no I/O. The caller records each addition in the database *before* the write to Placement. It removes
the record *after* the removal from Placement. So a crash in between neither leaves an addition behind, nor makes it
look like another owner's. If a provider is gone, the caller removes its records: a new provider has none of the
additions.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from autoclave.rules.provider_config.model import AddedInventory, Place, ProviderConfig, ProviderEntry


@dataclass(frozen=True)
class TreeProvider:
    """Describe a provider of the host's tree.

    :param is_compute_node: ``$COMPUTE_NODE`` refers to it.
    :param classes: the resource classes of its inventories in Placement.
    :param traits: its traits in Placement.
    :param owned_classes: classes that another part of this agent writes there in this sync.
    :param owned_traits: traits that another part of this agent writes there in this sync.
    :param remembered_classes: classes that earlier merges added, by the database.
    :param remembered_traits: traits that earlier merges added, by the database.
    :param traits_only: its inventory has another owner and must remain the only record, as for an accelerator.
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
    """Describe the changes of provider configuration to one provider.

    :param inventories: the inventories to add, by class. All of them are recorded.
    :param traits: the traits to add. All of them are recorded.
    :param removed_classes: recorded, no longer configured, and without another owner: to be removed from Placement.
    :param removed_traits: the same for traits.
    :param forgotten_classes: classes whose record is to be removed: those above, and those that have another owner now.
    :param forgotten_traits: the same for traits.
    """

    inventories: Mapping[str, AddedInventory] = field(default_factory=dict, hash=False)
    traits: frozenset[str] = frozenset()
    removed_classes: frozenset[str] = frozenset()
    removed_traits: frozenset[str] = frozenset()
    forgotten_classes: frozenset[str] = frozenset()
    forgotten_traits: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Conflict:
    """Describe a part of an entry, at *place*, that cannot be applied and is left out."""

    place: Place
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(frozen=True)
class Merge:
    """Hold the result of a merge.

    :param changes: by uuid, for providers with any change.
    :param conflicts: they stop a starting agent, and later cause warnings. They are hashable, and equal in every sync
        while nothing changes.
    :param absent: entries whose provider is not in the tree.
    """

    changes: Mapping[str, ProviderChange]
    conflicts: tuple[Conflict, ...]
    absent: tuple[ProviderEntry, ...]


def merge(config: ProviderConfig, tree: Iterable[TreeProvider]) -> Merge:
    """Derive the changes that *config* makes to the providers of one host.

    A trait that another owner has set exists already, so it is neither a conflict nor recorded. An inventory of another
    owner is a conflict.
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
    """Return the entry of each provider by its uuid, the conflicting entries, and the entries without a provider.

    If two entries refer to one provider, the entry with its uuid applies: a name may have moved.
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
    """Return by class why the provider cannot have some of the entry's inventories."""
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
