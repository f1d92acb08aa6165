"""What Placement keeps, as typed records. Whole records always: what is left out, Placement resets."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from autoclave.rules.resource_names import CONSUMER_TYPE, same_provider_name

Resources = Mapping[str, int]
"""Amounts by resource class."""


@dataclass(frozen=True)
class Provider:
    """A resource provider.

    :param generation: grows with every change of its inventories, traits, aggregates and
        allocations; a write that names an older one is refused.
    :param parent: uuid of its parent, or None for a root.
    :param root: uuid of the root of its tree; its own, for a root.
    """

    uuid: str
    name: str
    generation: int
    parent: str | None
    root: str

    def is_named(self, name: str) -> bool:
        """Whether *name* means this provider."""
        return same_provider_name(self.name, name)


@dataclass(frozen=True)
class Inventory:
    """The inventory of one resource class at one provider.

    ``(total - reserved) * allocation_ratio - used`` units are offered.
    """

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float


class Inventories(NamedTuple):
    """All inventories of one provider, by resource class, at one generation of it."""

    generation: int
    records: Mapping[str, Inventory]


class Traits(NamedTuple):
    """The traits of one provider, at one generation of it."""

    generation: int
    names: frozenset[str]


GENERATIONS_OF_NOTHING = (None, 0)
"""What the generation of a consumer that holds nothing may be.

0: a claim that names a provider which is gone leaves a consumer of that generation behind, which no GET shows."""


@dataclass(frozen=True)
class ConsumerAllocations:
    """Everything that one consumer (an instance) holds.

    :param generation: the consumer's; None says that it holds nothing yet.
    :param allocations: resources by provider uuid; empty to give everything back.
    """

    consumer: str
    allocations: Mapping[str, Resources]
    generation: int | None = None
    project_id: str = ""
    user_id: str = ""
    consumer_type: str = CONSUMER_TYPE


@dataclass(frozen=True)
class Candidate:
    """One way to satisfy a query.

    :param allocations: resources by provider uuid.
    :param mappings: uuids of the providers that satisfy each request group, by the group's suffix
        (``""`` for the unnumbered one).
    """

    allocations: Mapping[str, Resources]
    mappings: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Summary:
    """What Placement says of a provider that a candidate names, or that is in its tree.

    :param capacity: ``(total - reserved) * allocation_ratio`` by resource class.
    :param used: what is allocated, by resource class.
    """

    parent: str | None
    root: str
    traits: frozenset[str]
    capacity: Resources
    used: Resources


@dataclass(frozen=True)
class Candidates:
    """The answer to an allocation candidates query; no candidates is an answer, not an error."""

    candidates: tuple[Candidate, ...] = ()
    summaries: Mapping[str, Summary] = field(default_factory=dict)

    def root_of(self, candidate: Candidate) -> str:
        """The root provider of the tree that *candidate* is in; no provider is shared between trees."""
        return self.summaries[next(iter(candidate.allocations))].root
