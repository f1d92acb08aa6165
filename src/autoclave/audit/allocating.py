"""Giving an instance again, in Placement, what its row says that it has."""

from autoclave.audit.rows import read
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.exceptions import PlacementConflict, PlacementError, PlacementUnavailable
from autoclave.placement.client import PlacementClient
from autoclave.placement.records import ConsumerAllocations, Resources
from autoclave.rules.audit.facts import Instance
from autoclave.rules.audit.instances import Part, lacking


def allocate_again(db: Database, placement: PlacementClient, instance_uuid: str) -> str:
    """Add what an instance lacks to what it holds, of each provider by itself; what was done, in words.

    If it is deleted at the same moment, an allocation may outlive it: the next audit finds that.

    :raises DatabaseUnavailable: the database does not answer.
    """
    records = read(db, utcnow())
    instance = records.instances.get(instance_uuid)
    if instance is None or instance.host is None or not instance.settled:
        return "nothing: the instance changed meanwhile"
    part = Part.of(instance.host, records.roots, records.lent.values())
    try:
        present = placement.get_allocations(instance_uuid).allocations
    except PlacementError as error:
        return f"nothing: {error}"
    missing = lacking(part, instance, records.of_host(instance.host, present))
    if not missing:
        return "nothing: it has all again"
    done, failures = [], []
    for provider, amounts in missing.items():
        try:
            _add(placement, instance, provider, amounts)
        except PlacementUnavailable as error:
            failures.append(f"perhaps of provider {provider}, audit again: {error}")
        except PlacementError as error:
            failures.append(f"not of provider {provider}: {error}")
        else:
            done.append(", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items())))
    if (done or failures) and read(db, utcnow()).instances.get(instance_uuid) != instance:
        failures.append("the instance changed meanwhile: audit again")
    return "; ".join([f"allocated {' and '.join(done)}" if done else "nothing", *failures])


def _add(placement: PlacementClient, instance: Instance, provider: str, amounts: Resources) -> None:
    """:raises PlacementError: it was not taken, or it is not known whether it was."""
    present = placement.get_allocations(instance.uuid)
    wanted = {uuid: dict(held) for uuid, held in present.allocations.items()}
    into = wanted.setdefault(provider, {})
    for name, amount in amounts.items():
        into[name] = into.get(name, 0) + amount
    # Of a consumer that holds nothing nobody can tell the generation: it may be known to Placement all the same.
    generations = (present.generation,) if present.allocations else (None, 0)
    for generation in generations:
        claim = ConsumerAllocations(instance.uuid, wanted, generation, instance.project_id, instance.user_id)
        try:
            placement.put_allocations(claim)
        except PlacementConflict as error:
            if not error.moved_on or generation == generations[-1]:
                raise
        else:
            return
