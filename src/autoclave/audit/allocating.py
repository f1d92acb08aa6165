"""Giving instances again, in Placement, what their rows say that they have."""

from collections.abc import Iterable

from autoclave.audit.records import Records, read
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.exceptions import PlacementConflict, PlacementError, PlacementUnavailable
from autoclave.placement.client import PlacementClient
from autoclave.placement.records import GENERATIONS_OF_NOTHING, ConsumerAllocations, Resources
from autoclave.rules.audit.instances import Part, lacking
from autoclave.rules.audit.model import Instance


def allocate_again(
    db: Database, placement: PlacementClient, records: Records, instance_uuids: Iterable[str]
) -> dict[str, str]:
    """Add what instances lack to what they hold, of each provider by itself; what was done, in words, by instance.

    If one is deleted at the same moment, an allocation may outlive it: the next audit finds that.

    :param records: what they are to have; the database is read once more, after all was done.
    :raises DatabaseUnavailable: the database does not answer.
    """
    tried = {uuid: _of(placement, records, uuid) for uuid in instance_uuids}
    if not any(tried.values()):
        return dict.fromkeys(tried, "nothing: it has all again")
    present = read(db, utcnow()).instances
    done = {}
    for uuid, parts in tried.items():
        if parts and present.get(uuid) != records.instances.get(uuid):
            parts.append("the instance changed meanwhile: audit again")
        done[uuid] = "; ".join(parts) or "nothing: it has all again"
    return done


def _of(placement: PlacementClient, records: Records, instance_uuid: str) -> list[str]:
    """What was done for one instance, in words; nothing, if it lacks nothing."""
    instance = records.instances.get(instance_uuid)
    if instance is None or instance.host is None or not instance.settled:
        return ["nothing: the instance changed meanwhile"]
    part = Part.of(instance.host, records.roots, records.lent.values())
    try:
        present = placement.get_allocations(instance_uuid).allocations
    except PlacementError as error:
        return [f"nothing: {error}"]
    missing = lacking(part, instance, records.of_host(instance.host, present))
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
    if not missing:
        return []
    return [f"allocated {' and '.join(done)}" if done else "nothing", *failures]


def _add(placement: PlacementClient, instance: Instance, provider: str, amounts: Resources) -> None:
    """:raises PlacementError: it was not taken, or it is not known whether it was."""
    present = placement.get_allocations(instance.uuid)
    wanted = {uuid: dict(held) for uuid, held in present.allocations.items()}
    into = wanted.setdefault(provider, {})
    for name, amount in amounts.items():
        into[name] = into.get(name, 0) + amount
    generations = (present.generation,) if present.allocations else GENERATIONS_OF_NOTHING
    for generation in generations:
        claim = ConsumerAllocations(instance.uuid, wanted, generation, instance.project_id, instance.user_id)
        try:
            placement.put_allocations(claim)
        except PlacementConflict as error:
            if not error.moved_on or generation == generations[-1]:
                raise
        else:
            return
