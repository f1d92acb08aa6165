"""The layout of a drive: its namespaces, and the format of their blocks.

A tenant may change it, and an erase keeps what the tenant made of it.
"""

from dataclasses import dataclass, replace


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

    @property
    def one_format(self) -> bool:
        """Whether all namespaces have the same format."""
        return all(each.same_format(self.namespaces[0]) for each in self.namespaces)

    def __str__(self) -> str:
        parts = [f"namespace {number}: {shape}" for number, shape in enumerate(self.namespaces, 1)]
        parts += [f"{self.unattached} namespaces that are not attached"] if self.unattached else []
        return "; ".join(parts) or "no namespace"


def difference(before: DriveLayout, after: DriveLayout) -> str | None:
    """Return in which way a layout differs from an earlier one; None: it does not."""
    return None if before == after else f"before: {before}; after: {after}"
