"""The double's answer to ``GET /allocation_candidates``.

It knows resources, required (also ``in:`` and ``!``), in_tree, root_required, group_policy and
limit, with and without a suffix. Another parameter is refused rather than ignored.
"""

import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from autoclave.testing.placement.ledger import Entry, Ledger, Refusal, fits_units

_KEY = re.compile(r"(resources|required|in_tree)([a-zA-Z0-9_-]{1,64})?")
_MOST = 100
"""As ``[placement] max_allocation_candidates`` of the embedded service."""


@dataclass
class Group:
    """One request group; with a suffix, one provider must satisfy all of it."""

    resources: dict[str, int] = field(default_factory=dict)
    required: list[set[str]] = field(default_factory=list)
    forbidden: set[str] = field(default_factory=set)
    in_tree: str | None = None

    def traits_fit(self, traits: set[str]) -> bool:
        return all(traits & either for either in self.required) and not traits & self.forbidden


Placed = Mapping[str, Mapping[str, int]]
"""Resources by provider uuid."""


def candidates(ledger: Ledger, query: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """The answer's document."""
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
    # The real one deals out what it generates host by host, but which of it a limit keeps is
    # arbitrary: all of one host, at worst. So here it is the worst.
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
    """What ``resources`` asks for: ``CLASS:AMOUNT,…``."""
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
    """The candidates of one tree, each once for each way to map the groups."""
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
    """The ways to satisfy one group: at one provider, or spread over the tree."""
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
    """Whether the provider would give somebody all of it."""
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
