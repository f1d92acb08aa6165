"""What provider configuration says, once it has been understood."""

from collections.abc import Mapping
from dataclasses import dataclass, field

COMPUTE_NODE = "$COMPUTE_NODE"
"""Stands for every compute node of the agent that no other entry names."""


@dataclass(frozen=True)
class Place:
    """Where something is said.

    :param file: the file as it was named to the reader.
    :param line: counted from 1.
    :param path: the keys and list positions (counted from 0) that lead there, such as ``providers[0].traits``.
    """

    file: str
    line: int
    path: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.path}" if self.path else f"{self.file}:{self.line}"


@dataclass(frozen=True)
class AddedInventory:
    """A whole inventory record. Fields that the file leaves out have Placement's own defaults.

    :param place: where the file has it; not part of what it is.
    """

    total: int
    reserved: int
    min_unit: int
    max_unit: int
    step_size: int
    allocation_ratio: float
    place: Place = field(compare=False)


@dataclass(frozen=True)
class ProviderEntry:
    """One entry: a provider, and what it is to get. Exactly one of *uuid* and *name* is given.

    :param uuid: in lower case, or :data:`COMPUTE_NODE`.
    :param inventories: by resource class.
    :param traits: each with its place.
    """

    place: Place
    uuid: str | None
    name: str | None
    inventories: Mapping[str, AddedInventory] = field(default_factory=dict, hash=False)
    traits: Mapping[str, Place] = field(default_factory=dict, hash=False)

    @property
    def means_every_compute_node(self) -> bool:
        """Whether it is for the compute nodes that no other entry names."""
        return self.uuid == COMPUTE_NODE

    @property
    def key(self) -> tuple[str | None, str | None]:
        """What no two entries may share: they would be for the same provider. Case does not count."""
        return self.uuid, self.name and self.name.casefold()

    @property
    def provider(self) -> str:
        """How the file calls the provider."""
        return self.uuid or self.name or ""


@dataclass(frozen=True)
class ProviderConfig:
    """All entries of all files, in their order; no two are for the same uuid or name.

    :param notes: what was accepted and is ignored, in one line each, for the operator to see.
    """

    entries: tuple[ProviderEntry, ...] = ()
    notes: tuple[str, ...] = ()
