"""Nothing is offered before its provider has the traits that say what it is."""

from autoclave.exceptions import PlacementConflict, TraitsMissing
from autoclave.placement.client import PlacementClient
from autoclave.placement.provider_tree import ProviderState
from autoclave.placement.records import Traits


def require_traits(
    placement: PlacementClient,
    rp_uuid: str,
    generation: int,
    wanted: frozenset[str],
    known: ProviderState | None = None,
) -> None:
    """See that a provider has *wanted* at *generation*: what is written at that generation finds them there.

    Without this, a request that forbids a trait could get a device that has it, while its agent is about to write it.

    :param known: the provider as it was read or written at some generation; its traits are read if it is another.
    :raises TraitsMissing: it has not all of them. Its agent writes them in its next period.
    :raises PlacementConflict: the provider is at another generation.
    :raises PlacementError: Placement did not tell.
    """
    if known is not None and known.generation == generation:
        traits = Traits(generation, known.traits)
    else:
        traits = placement.get_traits(rp_uuid)
    if missing := wanted - traits.names:
        raise TraitsMissing(
            f"provider {rp_uuid} is not offered before its agent has given it the traits {', '.join(sorted(missing))}"
        )
    if traits.generation != generation:
        raise PlacementConflict(f"provider {rp_uuid} is at generation {traits.generation}, not {generation} any more")
