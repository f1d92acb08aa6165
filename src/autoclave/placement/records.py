"""Define Placement's records, and parse them from its JSON.

Records are always whole, because Placement resets omitted fields. Every value is validated. All parsers raise
:class:`ValueError` with the name of the invalid key.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from autoclave.rules.resource_names import CONSUMER_TYPE, same_provider_name

Resources = Mapping[str, int]
"""Amounts by resource class."""


@dataclass(frozen=True)
class Provider:
    """Represent a resource provider.

    :param generation: grows with every change of its inventories, traits, aggregates and allocations. A write with an
        older one is refused.
    :param parent: uuid of its parent, or None for a root.
    :param root: uuid of the root of its tree; its own, for a root.
    """

    uuid: str
    name: str
    generation: int
    parent: str | None
    root: str

    def is_named(self, name: str) -> bool:
        """Return whether *name* refers to this provider."""
        return same_provider_name(self.name, name)


@dataclass(frozen=True)
class Inventory:
    """Represent the inventory of one resource class at one provider.

    ``(total - reserved) * allocation_ratio - used`` units are offered.
    """

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float


class Inventories(NamedTuple):
    """Hold all inventories of one provider, by resource class, at one generation of it."""

    generation: int
    records: Mapping[str, Inventory]


class Traits(NamedTuple):
    """Hold the traits of one provider, at one generation of it."""

    generation: int
    names: frozenset[str]


GENERATIONS_OF_NOTHING = (None, 0)
"""The possible generations of a consumer without allocations.

A claim that names a deleted provider leaves a consumer of generation 0 behind, which no GET shows.
"""


@dataclass(frozen=True)
class ConsumerAllocations:
    """Hold all allocations of one consumer (an instance).

    :param generation: the consumer's; None for a consumer without allocations.
    :param allocations: resources by provider uuid; empty to remove all.
    """

    consumer: str
    allocations: Mapping[str, Resources]
    generation: int | None = None
    project_id: str = ""
    user_id: str = ""
    consumer_type: str = CONSUMER_TYPE


@dataclass(frozen=True)
class Candidate:
    """Represent one way to satisfy a query.

    :param allocations: resources by provider uuid.
    :param mappings: uuids of the providers that satisfy each request group, by the group's suffix (``""`` for the
        unnumbered one).
    """

    allocations: Mapping[str, Resources]
    mappings: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Summary:
    """Summarize a provider in a candidate, or in the tree of one.

    :param capacity: ``(total - reserved) * allocation_ratio`` by resource class.
    :param used: the allocated amounts, by resource class.
    """

    parent: str | None
    root: str
    traits: frozenset[str]
    capacity: Resources
    used: Resources


@dataclass(frozen=True)
class Candidates:
    """Hold the answer to an allocation candidates query; an empty one is not an error."""

    candidates: tuple[Candidate, ...] = ()
    summaries: Mapping[str, Summary] = field(default_factory=dict)

    def root_of(self, candidate: Candidate) -> str:
        """Return the root provider of *candidate*'s tree; no provider is shared between trees."""
        return self.summaries[next(iter(candidate.allocations))].root


_T = TypeVar("_T")


def mapping(document: Any, key: str) -> Mapping[str, Any]:
    return _typed(document, key, dict)


def sequence(document: Any, key: str) -> list[Any]:
    return _typed(document, key, list)


def text(document: Any, key: str) -> str:
    return _typed(document, key, str)


def integer(document: Any, key: str) -> int:
    return _typed(document, key, int)


def provider(document: Any) -> Provider:
    """Parse one element of ``GET /resource_providers``."""
    parent = document.get("parent_provider_uuid") if isinstance(document, dict) else None
    return Provider(
        uuid=text(document, "uuid"),
        name=text(document, "name"),
        generation=integer(document, "generation"),
        parent=None if parent is None else text(document, "parent_provider_uuid"),
        root=text(document, "root_provider_uuid"),
    )


def providers(document: Any) -> list[Provider]:
    return [provider(item) for item in sequence(document, "resource_providers")]


def inventories(document: Any) -> Inventories:
    records = mapping(document, "inventories")
    return Inventories(provider_generation(document), {name: _inventory(records, name) for name in records})


def provider_generation(document: Any) -> int:
    return integer(document, "resource_provider_generation")


def traits(document: Any) -> Traits:
    return Traits(provider_generation(document), trait_names(document))


def trait_names(document: Any) -> frozenset[str]:
    names = sequence(document, "traits")
    if not all(isinstance(name, str) for name in names):
        raise ValueError("traits are not all text")
    return frozenset(names)


def resource_class_names(document: Any) -> frozenset[str]:
    return frozenset(text(item, "name") for item in sequence(document, "resource_classes"))


def usages(document: Any) -> Resources:
    return resources(document, "usages")


def resources(document: Any, key: str = "resources") -> Resources:
    amounts = mapping(document, key)
    return {name: integer(amounts, name) for name in amounts}


def resources_by_uuid(document: Any) -> Mapping[str, Resources]:
    """Parse the allocations of a provider by its consumers' uuids, or of a consumer by its providers'."""
    allocations = mapping(document, "allocations")
    return {uuid: resources(allocations[uuid]) for uuid in allocations}


def consumer_allocations(consumer: str, document: Any) -> ConsumerAllocations:
    """Parse ``GET /allocations/{consumer}``; Placement returns an empty record for an unknown consumer."""
    allocations = resources_by_uuid(document)
    if not allocations:
        return ConsumerAllocations(consumer, {})
    return ConsumerAllocations(
        consumer,
        allocations,
        generation=integer(document, "consumer_generation"),
        project_id=text(document, "project_id"),
        user_id=text(document, "user_id"),
        consumer_type=text(document, "consumer_type"),
    )


def candidates(document: Any) -> Candidates:
    """Parse ``GET /allocation_candidates``. Each candidate has a provider, and each provider has a summary."""
    summaries = mapping(document, "provider_summaries")
    found = Candidates(
        tuple(_candidate(item) for item in sequence(document, "allocation_requests")),
        {uuid: _summary(mapping(summaries, uuid)) for uuid in summaries},
    )
    for candidate in found.candidates:
        if not candidate.allocations:
            raise ValueError("allocations is empty")
        for uuid in candidate.allocations.keys() - found.summaries.keys():
            raise ValueError(f"{uuid} is missing in provider_summaries")
    return found


def error(document: Any) -> tuple[str, str] | None:
    """Return ``(detail, code)`` of Placement's error document, or None if *document* is not one."""
    try:
        first = sequence(document, "errors")[0]
        # The detail has the general meaning of the status, an empty line, and the specific error.
        general, _, special = text(first, "detail").strip().partition("\n\n")
        return " ".join((special or general).split()), str(first.get("code", ""))
    except (ValueError, IndexError):
        return None


def _typed(document: Any, key: str, kind: type[_T]) -> _T:
    if not isinstance(document, dict) or key not in document:
        raise ValueError(f"{key} is missing")
    value = document[key]
    # In Python, bool is a subclass of int.
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{key} is {value!r:.60}")
    return value


def _inventory(records: Mapping[str, Any], name: str) -> Inventory:
    record = mapping(records, name)
    ratio = record.get("allocation_ratio")
    if not isinstance(ratio, int | float):
        raise ValueError(f"allocation_ratio of {name} is {ratio!r:.60}")
    return Inventory(
        total=integer(record, "total"),
        reserved=integer(record, "reserved"),
        min_unit=integer(record, "min_unit"),
        max_unit=integer(record, "max_unit"),
        step_size=integer(record, "step_size"),
        allocation_ratio=float(ratio),
    )


def _candidate(document: Any) -> Candidate:
    groups = mapping(document, "mappings")
    return Candidate(resources_by_uuid(document), {suffix: tuple(sequence(groups, suffix)) for suffix in groups})


def _summary(document: Mapping[str, Any]) -> Summary:
    amounts = mapping(document, "resources")
    parent = document.get("parent_provider_uuid")
    return Summary(
        parent=None if parent is None else text(document, "parent_provider_uuid"),
        root=text(document, "root_provider_uuid"),
        traits=trait_names(document),
        capacity={name: integer(mapping(amounts, name), "capacity") for name in amounts},
        used={name: integer(mapping(amounts, name), "used") for name in amounts},
    )
