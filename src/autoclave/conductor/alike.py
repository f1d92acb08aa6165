"""Request groups that are alike: of each host, whether it has enough for all of them.

Placement finds out by trying every order in which to deal devices out to groups: for eleven of which a host has ten,
that takes it minutes, in which it answers nobody else.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from autoclave.placement.records import Summary
from autoclave.rules.resource_request import RequestGroup, ResourceRequest

MANY = 6
"""As many that are alike are worth a question beforehand."""

_Kind = tuple[frozenset[tuple[str, int]], frozenset[str], frozenset[str]]


def one_of_each(request: ResourceRequest) -> ResourceRequest | None:
    """*request* with one group for all that are alike; None where there are not :data:`MANY` of any kind."""
    if max(_counts(request).values(), default=0) < MANY:
        return None
    first: dict[_Kind | str, RequestGroup] = {}
    for group in request.groups.values():
        first.setdefault(_kind(group) if group.suffix else "", group)
    return replace(request, groups={group.suffix: group for group in first.values()})


def with_enough(request: ResourceRequest, summaries: Mapping[str, Summary]) -> set[str]:
    """The roots of those trees that have enough of every kind of group, each kind looked at by itself.

    :param summaries: of all providers of the trees, by uuid.
    """
    trees: dict[str, list[Summary]] = defaultdict(list)
    for summary in summaries.values():
        trees[summary.root].append(summary)
    counts = _counts(request)
    return {
        root for root, tree in trees.items() if all(sum(_room(tree, *kind)) >= count for kind, count in counts.items())
    }


def _counts(request: ResourceRequest) -> Counter[_Kind]:
    return Counter(_kind(group) for group in request.groups.values() if group.suffix)


def _kind(group: RequestGroup) -> _Kind:
    return frozenset(group.resources.items()), group.required, group.forbidden


def _room(
    tree: list[Summary], amounts: frozenset[tuple[str, int]], required: frozenset[str], forbidden: frozenset[str]
) -> Iterator[int]:
    """For each provider of *tree*, how many groups of a kind it alone would have room for."""
    for each in tree:
        if required <= each.traits and not forbidden & each.traits:
            yield min((each.capacity.get(name, 0) - each.used.get(name, 0)) // amount for name, amount in amounts)
