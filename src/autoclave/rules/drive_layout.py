"""The layout of a drive: its namespaces, and the format of their blocks.

A tenant may change it, and an erase alone keeps what the tenant made of it. So it is recorded when a drive is first
offered, and compared after each visit.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any


@dataclass(frozen=True)
class NamespaceShape:
    """One attached namespace.

    :param blocks: its size in logical blocks (NSZE).
    :param block_bytes: data bytes of a block.
    :param metadata_bytes: metadata bytes of a block.
    :param extended: metadata follows the data of each block in the same buffer (FLBAS bit 4).
    :param dps: protection information, as Identify Namespace has it.
    :param write_protected: it takes no writes (NSATTR bit 0).
    """

    blocks: int
    block_bytes: int
    metadata_bytes: int = 0
    extended: bool = False
    dps: int = 0
    write_protected: bool = False

    @property
    def bytes(self) -> int:
        """Bytes of data that it holds."""
        return self.blocks * self.block_bytes

    def same_format(self, other: "NamespaceShape") -> bool:
        """Whether a format makes no difference between the two."""
        return replace(self, blocks=0, write_protected=False) == replace(other, blocks=0, write_protected=False)

    def __str__(self) -> str:
        metadata = f" + {self.metadata_bytes} bytes of metadata" if self.metadata_bytes else ""
        extended = " (extended)" if self.extended else ""
        protection = f", protection information {self.dps:#x}" if self.dps else ""
        protected = ", write-protected" if self.write_protected else ""
        return f"{self.blocks} blocks of {self.block_bytes} bytes{metadata}{extended}{protection}{protected}"


@dataclass(frozen=True)
class DriveLayout:
    """The namespaces of a drive, in order of their ids.

    :param namespaces: those that are attached.
    :param unattached: how many others there are.
    """

    namespaces: tuple[NamespaceShape, ...]
    unattached: int = 0

    def to_json(self) -> str:
        """The layout as it is recorded."""
        fields = {"namespaces": [_without_defaults(each) for each in self.namespaces]}
        return json.dumps(fields | ({"unattached": self.unattached} if self.unattached else {}), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> "DriveLayout":
        """Read what :meth:`to_json` wrote."""
        fields: Mapping[str, Any] = json.loads(text)
        return cls(tuple(NamespaceShape(**each) for each in fields["namespaces"]), fields.get("unattached", 0))

    @property
    def bytes(self) -> int:
        """Bytes of data in all attached namespaces."""
        return sum(each.bytes for each in self.namespaces)

    @property
    def one_format(self) -> bool:
        """Whether all namespaces have the same format."""
        return all(each.same_format(self.namespaces[0]) for each in self.namespaces)

    def __str__(self) -> str:
        parts = [f"namespace {number}: {shape}" for number, shape in enumerate(self.namespaces, 1)]
        parts += [f"{self.unattached} namespaces that are not attached"] if self.unattached else []
        return "; ".join(parts) or "no namespace"


def _without_defaults(shape: NamespaceShape) -> dict[str, Any]:
    return {name: value for name, value in asdict(shape).items() if value}


def difference(recorded: DriveLayout, found: DriveLayout) -> str | None:
    """Say in which way a layout is not the recorded one; None: it is."""
    if recorded == found:
        return None
    return f"on record: {recorded}; found: {found}"


def is_consolidated(recorded: DriveLayout, found: DriveLayout) -> bool:
    """Whether the recorded namespaces have become one that holds at least as much, in the recorded format.

    This is what the specification makes of a drive's namespaces before they are overwritten.
    """
    if not recorded.namespaces or len(found.namespaces) != 1 or found.unattached:
        return False
    [whole] = found.namespaces
    first = recorded.namespaces[0]
    return whole.same_format(first) and not whole.write_protected and whole.bytes >= recorded.bytes


def to_format(recorded: DriveLayout, found: DriveLayout) -> Sequence[int]:
    """Return the positions of the namespaces that a format alone may bring back to the record."""
    pairs = zip(recorded.namespaces, found.namespaces, strict=True)
    return [number for number, (was, now) in enumerate(pairs) if not was.same_format(now)]
