"""Providers and traits as they should be, with the fewest writes. Inventories are not written here."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from oslo_log import log as logging

from autoclave.exceptions import PlacementConflict, PlacementNotFound
from autoclave.placement.client import PlacementClient
from autoclave.placement.records import Provider
from autoclave.rules.resource_names import OWNER_CYBORG, OWNER_NOVA, may_be_the_operators

LOG = logging.getLogger(__name__)

_ATTEMPTS = 3
"""How often traits are written where somebody overtakes us: a conductor that pays a device's debt, for example."""


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


def ensure_provider(
    client: PlacementClient,
    desired: DesiredProvider,
    present: Provider | None,
    on_rewritten: Callable[[], object] = lambda: None,
) -> bool:
    """Make the provider and its traits as *desired*; the inventory comes afterwards, by ``settle``.

    Traits go first, so that whoever sees the inventory sees whose it is. Custom traits that
    somebody else set are kept; what the device no longer is or can do is not.

    :param present: the provider as the tree showed it, or None if it is not there.
    :param on_rewritten: called before the traits are written over, if Nova has made the provider its own.
    :returns: whether Nova had made it its own.
    :raises PlacementConflict: another provider has that name, or somebody else wrote at the same time, each time.
    :raises PlacementRefused: this Placement does not know a trait or class.
    """
    if present is None:
        try:
            client.create_provider(desired.uuid, desired.name, desired.parent)
        except PlacementConflict as error:
            raise PlacementConflict(_why_not_made(client, desired) or str(error), error.code) from error
    client.ensure_resource_class(desired.resource_class)
    for _ in range(_ATTEMPTS - 1):
        try:
            return _ensure_traits(client, desired, on_rewritten)
        except PlacementConflict as error:
            LOG.debug("The traits of provider %s were not written, starting again: %s", desired.uuid, error)
    return _ensure_traits(client, desired, on_rewritten)


def _ensure_traits(client: PlacementClient, desired: DesiredProvider, on_rewritten: Callable[[], object]) -> bool:
    wanted = desired.traits | {OWNER_CYBORG}
    traits = client.get_traits(desired.uuid)
    rewritten = OWNER_NOVA in traits.names
    if rewritten:
        on_rewritten()
    foreign = {name for name in traits.names if may_be_the_operators(name)}
    if traits.names != wanted | foreign:
        client.ensure_traits(wanted)
        client.put_traits(desired.uuid, traits.generation, wanted | foreign)
    return rewritten


def _why_not_made(client: PlacementClient, desired: DesiredProvider) -> str | None:
    """Where the provider is, if it is in another tree: somebody has renamed its root, or made the host's anew."""
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


def provider_named(tree: Iterable[Provider], name: str) -> Provider | None:
    """The provider of *tree* that *name* means."""
    return next((provider for provider in tree if provider.is_named(name)), None)
