"""Hold the state of Placement's double, and compute its allocation candidates.

``GET /allocation_candidates`` supports resources, required (also ``in:`` and ``!``), in_tree, root_required,
group_policy and limit, with and without a suffix. Any other parameter is refused, never ignored.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import os_resource_classes
import os_traits

from autoclave.placement.records import ConsumerAllocations, Inventory, Resources

CONCURRENT_UPDATE = "placement.concurrent_update"
UNDEFINED = "placement.undefined_code"


class Refusal(Exception):
    """Represent an answer that is not a success.

    :param status: HTTP status.
    :param code: Placement's own error code.
    """

    def __init__(self, status: int, detail: str, code: str = UNDEFINED) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code


@dataclass
class Entry:
    """Hold one provider of the ledger."""

    uuid: str
    name: str
    parent: str | None
    root: str
    generation: int = 0
    inventories: dict[str, Inventory] = field(default_factory=dict)
    traits: set[str] = field(default_factory=set)


class Ledger:
    """Hold the whole state of Placement. It is not thread-safe; its owner locks."""

    def __init__(self) -> None:
        self.entries: dict[str, Entry] = {}
        self.traits = set(os_traits.get_traits())
        self.resource_classes = set(os_resource_classes.STANDARDS)
        self._consumers: dict[str, ConsumerAllocations] = {}
        self._holders: dict[str, set[str]] = {}
        self._ghosts: set[str] = set()

    # Providers

    def entry(self, uuid: str) -> Entry:
        try:
            return self.entries[uuid]
        except KeyError:
            raise Refusal(404, f"No resource provider has the uuid {uuid}") from None

    def at(self, uuid: str, generation: int) -> Entry:
        """Return the provider if its generation is *generation*."""
        entry = self.entry(uuid)
        if entry.generation != generation:
            raise Refusal(
                409, f"{uuid} is at generation {entry.generation}, not at {generation}", code=CONCURRENT_UPDATE
            )
        return entry

    def create(self, uuid: str, name: str, parent: str | None) -> Entry:
        if parent is not None and parent not in self.entries:
            raise Refusal(400, f"The parent {parent} of {uuid} does not exist")
        if uuid in self.entries or any(entry.name == name for entry in self.entries.values()):
            raise Refusal(409, f"The uuid {uuid} or the name {name} is taken", code="placement.duplicate_name")
        root = uuid if parent is None else self.entries[parent].root
        entry = self.entries[uuid] = Entry(uuid, name, parent, root)
        self._holders[uuid] = set()
        return entry

    def rename(self, uuid: str, name: str) -> Entry:
        entry = self.entry(uuid)
        if any(other.name == name for other in self.entries.values() if other is not entry):
            raise Refusal(409, f"The name {name} is taken", code="placement.duplicate_name")
        entry.name = name
        return entry

    def delete(self, uuid: str) -> None:
        self.entry(uuid)
        if any(entry.parent == uuid for entry in self.entries.values()):
            code = "placement.resource_provider.cannot_delete_parent"
            raise Refusal(409, f"{uuid} has children", code=code)
        if self._holders[uuid]:
            raise Refusal(409, f"{uuid} is allocated from", code="placement.resource_provider.inuse")
        del self.entries[uuid], self._holders[uuid]

    def tree(self, member: str) -> list[Entry]:
        """Return the whole tree of *member*; empty if it does not exist."""
        root = self.entries[member].root if member in self.entries else None
        return [entry for entry in self.entries.values() if entry.root == root]

    # Inventories and traits

    def set_inventories(self, uuid: str, generation: int, records: Mapping[str, Inventory]) -> Entry:
        entry = self.at(uuid, generation)
        for name, record in records.items():
            _check_reserved(uuid, name, record)
        for name in records:
            if name not in self.resource_classes:
                raise Refusal(400, f"The resource class {name} does not exist")
        used = self.used(uuid)
        for name in entry.inventories.keys() - records.keys():
            if used[name]:
                raise Refusal(409, f"{used[name]} of {name} at {uuid} is in use", code="placement.inventory.inuse")
        entry.inventories = dict(records)
        entry.generation += 1
        return entry

    def set_traits(self, uuid: str, generation: int, names: Iterable[str]) -> Entry:
        entry = self.at(uuid, generation)
        wanted = set(names)
        if unknown := wanted - self.traits:
            raise Refusal(400, f"No such trait {', '.join(sorted(unknown))}")
        # As in Placement, only a change increments the generation; inventories always increment it.
        if wanted != entry.traits:
            entry.traits = wanted
            entry.generation += 1
        return entry

    # Allocations

    def used(self, uuid: str, without: Iterable[str] = ()) -> Counter[str]:
        """Return the allocated amounts by resource class, *without* those of the given consumers."""
        total: Counter[str] = Counter()
        for consumer in self._holders[uuid].difference(without):
            total.update(self._consumers[consumer].allocations[uuid])
        return total

    def holders(self, uuid: str) -> Mapping[str, ConsumerAllocations]:
        self.entry(uuid)
        return {consumer: self._consumers[consumer] for consumer in sorted(self._holders[uuid])}

    def held_by(self, consumer: str) -> ConsumerAllocations:
        return self._consumers.get(consumer, ConsumerAllocations(consumer, {}))

    def replace(self, claims: Sequence[ConsumerAllocations]) -> None:
        """Apply all claims, each as the whole allocations of its consumer, or refuse them all."""
        for claim in claims:
            expected = 0 if claim.consumer in self._ghosts else self.held_by(claim.consumer).generation
            if claim.generation != expected:
                detail = f"{claim.consumer} is at generation {expected}, not at {claim.generation}"
                raise Refusal(409, detail, code=CONCURRENT_UPDATE)
        for uuid in {uuid for claim in claims for uuid in claim.allocations}:
            if uuid not in self.entries:
                raise Refusal(400, f"The provider {uuid} does not exist")
        self._check_capacity(claims)
        touched = {uuid for claim in claims for uuid in claim.allocations or self.held_by(claim.consumer).allocations}
        for claim in claims:
            self._hold(claim)
        # As in Placement, a provider that a consumer leaves for another keeps its generation.
        for uuid in touched:
            self.entries[uuid].generation += 1

    def release(self, consumer: str) -> None:
        if not self.held_by(consumer).allocations:
            raise Refusal(404, f"{consumer} holds nothing")
        self._hold(ConsumerAllocations(consumer, {}))

    def _hold(self, claim: ConsumerAllocations) -> None:
        before = self.held_by(claim.consumer)
        if not claim.allocations and not before.allocations:
            # Placement creates the consumer, but no GET shows it.
            self._ghosts.add(claim.consumer)
            return
        self._ghosts.discard(claim.consumer)
        for uuid in before.allocations:
            self._holders[uuid].discard(claim.consumer)
        self._consumers.pop(claim.consumer, None)
        if claim.allocations:
            self._consumers[claim.consumer] = ConsumerAllocations(
                claim.consumer,
                claim.allocations,
                (before.generation or 0) + 1,
                claim.project_id,
                claim.user_id,
                claim.consumer_type,
            )
            for uuid in claim.allocations:
                self._holders[uuid].add(claim.consumer)

    def _check_capacity(self, claims: Sequence[ConsumerAllocations]) -> None:
        consumers = [claim.consumer for claim in claims]
        asked: dict[str, Counter[str]] = {}
        for claim in claims:
            for uuid, resources in claim.allocations.items():
                self._check_units(uuid, resources)
                asked.setdefault(uuid, Counter()).update(resources)
        for uuid, amounts in asked.items():
            before, left = self.used(uuid), self.used(uuid, without=consumers)
            for name, amount in amounts.items():
                record = self.entries[uuid].inventories[name]
                after = left[name] + amount
                # Exceeding the capacity is allowed without an increase: an allocation may move between consumers at a
                # reserved device.
                if after > (record.total - record.reserved) * record.allocation_ratio and after > before[name]:
                    raise Refusal(409, f"{amount} of {name} at {uuid} would exceed the capacity")

    def _check_units(self, uuid: str, resources: Resources) -> None:
        inventories = self.entries[uuid].inventories
        for name, amount in resources.items():
            if name not in self.resource_classes:
                raise Refusal(400, f"The resource class {name} does not exist")
            record = inventories.get(name)
            if record is None:
                raise Refusal(409, f"{uuid} has no inventory of {name}")
            if not fits_units(record, amount):
                raise Refusal(409, f"{amount} of {name} at {uuid} violates min_unit, max_unit or step_size")


def fits_units(record: Inventory, amount: int) -> bool:
    """Return whether *amount* may be allocated at once."""
    return record.min_unit <= amount <= record.max_unit and amount % record.step_size == 0


def _check_reserved(uuid: str, name: str, record: Inventory) -> None:
    if record.reserved > record.total:
        raise Refusal(400, f"{record.reserved} of {record.total} {name} at {uuid} cannot be reserved")


_KEY = re.compile(r"(resources|required|in_tree)([a-zA-Z0-9_-]{1,64})?")
_MOST = 100
"""The ``[placement] max_allocation_candidates`` of the embedded service."""


@dataclass
class Group:
    """Hold one request group; with a suffix, one provider must satisfy all of it."""

    resources: dict[str, int] = field(default_factory=dict)
    required: list[set[str]] = field(default_factory=list)
    forbidden: set[str] = field(default_factory=set)
    in_tree: str | None = None

    def traits_fit(self, traits: set[str]) -> bool:
        return all(traits & either for either in self.required) and not traits & self.forbidden


Placed = Mapping[str, Mapping[str, int]]
"""Resources by provider uuid."""


def candidates(ledger: Ledger, query: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the document of the answer."""
    groups, wide = _parse(ledger, query)
    limit = _limit(wide)
    roots = [entry for entry in ledger.entries.values() if entry.parent is None]
    root_traits = Group()
    for value in wide.get("root_required", []):
        _add_traits(ledger, root_traits, value)
    streams = [
        _in_tree(ledger, root, groups, isolate="isolate" in wide.get("group_policy", []))
        for root in roots
        if root_traits.traits_fit(root.traits)
    ]
    found = list(itertools.islice(_round_robin(streams), _MOST))
    # Placement generates candidates host by host in turn, but a limit keeps an arbitrary part. Here it keeps the worst:
    # all of one host.
    found.sort(key=lambda request: ledger.entries[next(iter(request["allocations"]))].root)
    del found[limit:]
    trees = {ledger.entries[uuid].root for request in found for uuid in request["allocations"]}
    return {
        "allocation_requests": found,
        "provider_summaries": {
            entry.uuid: _summary(ledger, entry) for entry in ledger.entries.values() if entry.root in trees
        },
    }


def _parse(ledger: Ledger, query: Sequence[tuple[str, str]]) -> tuple[dict[str, Group], dict[str, list[str]]]:
    groups: dict[str, Group] = {}
    wide: dict[str, list[str]] = {}
    for key, value in query:
        if key in ("limit", "group_policy", "root_required"):
            wide.setdefault(key, []).append(value)
            continue
        match = _KEY.fullmatch(key)
        if match is None:
            raise Refusal(400, f"The query parameter {key} is not known here")
        group = groups.setdefault(match[2] or "", Group())
        if match[1] == "resources":
            group.resources = parse_amounts(ledger, value)
        elif match[1] == "required":
            _add_traits(ledger, group, value)
        else:
            group.in_tree = value
    if not groups or not all(group.resources for group in groups.values()):
        raise Refusal(400, "All request groups must specify resources")
    if len(groups.keys() - {""}) > 1 and "group_policy" not in wide:
        raise Refusal(400, "group_policy is needed with more than one numbered group")
    return groups, wide


def _limit(wide: Mapping[str, list[str]]) -> int:
    text = wide.get("limit", [str(_MOST)])[-1]
    if not text.isdigit() or int(text) < 1:
        raise Refusal(400, f"limit is {text}")
    return int(text)


def parse_amounts(ledger: Ledger, text: str) -> dict[str, int]:
    """Parse ``resources``: ``CLASS:AMOUNT,…``."""
    amounts = {}
    for part in text.split(","):
        name, _, amount = part.partition(":")
        if not amount.isdigit() or int(amount) < 1:
            raise Refusal(400, f"resources has {part}")
        if name not in ledger.resource_classes:
            raise Refusal(400, f"The resource class {name} does not exist")
        amounts[name] = int(amount)
    return amounts


def _add_traits(ledger: Ledger, group: Group, text: str) -> None:
    either = text.removeprefix("in:").split(",")
    if unknown := {name.removeprefix("!") for name in either} - ledger.traits:
        raise Refusal(400, f"No such trait {', '.join(sorted(unknown))}")
    if text.startswith("in:"):
        group.required.append(set(either))
    else:
        group.required += [{name} for name in either if not name.startswith("!")]
        group.forbidden |= {name[1:] for name in either if name.startswith("!")}
    if any(names <= group.forbidden for names in group.required):
        raise Refusal(400, f"Conflicting required and forbidden traits: {', '.join(sorted(group.forbidden))}")


def _in_tree(ledger: Ledger, root: Entry, groups: Mapping[str, Group], isolate: bool) -> Iterator[dict[str, Any]]:
    """Yield the candidates of one tree, once for each mapping of the groups."""
    tree = ledger.tree(root.uuid)
    room = {entry.uuid: _room(ledger, entry) for entry in tree}
    ways = [list(_ways(tree, room, group, spread=not suffix)) for suffix, group in groups.items()]
    for choice in itertools.product(*ways):
        placed = dict(zip(groups, choice, strict=True))
        alone = [uuid for suffix, way in placed.items() if suffix for uuid in way]
        if isolate and len(alone) != len(set(alone)):
            continue
        total: dict[str, Counter[str]] = {}
        for way in choice:
            for uuid, resources in way.items():
                total.setdefault(uuid, Counter()).update(resources)
        if all(_fits(ledger.entries[uuid], room[uuid], amounts) for uuid, amounts in total.items()):
            yield {
                "allocations": {uuid: {"resources": dict(amounts)} for uuid, amounts in total.items()},
                "mappings": {suffix: list(way) for suffix, way in placed.items()},
            }


def _ways(tree: Sequence[Entry], room: Mapping[str, Mapping[str, int]], group: Group, spread: bool) -> Iterator[Placed]:
    """Yield the ways to satisfy one group: at one provider, or spread over the tree."""
    if group.in_tree is not None and group.in_tree not in {entry.uuid for entry in tree}:
        return
    usable = [entry for entry in tree if not entry.traits & group.forbidden]
    if not spread:
        for entry in usable:
            if group.traits_fit(entry.traits) and _fits(entry, room[entry.uuid], group.resources):
                yield {entry.uuid: group.resources}
        return
    givers = [
        [entry for entry in usable if _fits(entry, room[entry.uuid], {name: amount})]
        for name, amount in group.resources.items()
    ]
    for choice in itertools.product(*givers):
        if group.traits_fit(set().union(*(entry.traits for entry in choice))):
            placed: dict[str, dict[str, int]] = {}
            for entry, (name, amount) in zip(choice, group.resources.items(), strict=True):
                placed.setdefault(entry.uuid, {})[name] = amount
            yield placed


def has_room(ledger: Ledger, entry: Entry, amounts: Mapping[str, int]) -> bool:
    """Return whether the provider can allocate all of it."""
    return _fits(entry, _room(ledger, entry), amounts)


def _room(ledger: Ledger, entry: Entry) -> dict[str, int]:
    used = ledger.used(entry.uuid)
    return {name: _capacity(entry, name) - used[name] for name in entry.inventories}


def _capacity(entry: Entry, name: str) -> int:
    record = entry.inventories[name]
    return int((record.total - record.reserved) * record.allocation_ratio)


def _fits(entry: Entry, room: Mapping[str, int], amounts: Mapping[str, int]) -> bool:
    return all(
        name in room and room[name] >= amount and fits_units(entry.inventories[name], amount)
        for name, amount in amounts.items()
    )


def _round_robin(streams: Sequence[Iterator[dict[str, Any]]]) -> Iterator[dict[str, Any]]:
    for row in itertools.zip_longest(*streams):
        yield from (item for item in row if item is not None)


def _summary(ledger: Ledger, entry: Entry) -> dict[str, Any]:
    used = ledger.used(entry.uuid)
    return {
        "parent_provider_uuid": entry.parent,
        "root_provider_uuid": entry.root,
        "traits": sorted(entry.traits),
        "resources": {name: {"capacity": _capacity(entry, name), "used": used[name]} for name in entry.inventories},
    }
