"""Compare the layouts of a drive: its namespaces, and the format of their blocks.

A tenant may change the layout, and an erase alone does not restore it.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

MOST_RECORDED = 160
"""The most namespaces of a recorded layout. The evidence of an erase has a result for each of them. It must fit into
the 65535 bytes of a TEXT in MariaDB.
"""
_MOST_SHOWN = 4
"""The most differences, or namespaces, that a message lists."""


@dataclass(frozen=True)
class NamespaceShape:
    """Describe one attached namespace.

    :param blocks: its size in logical blocks (NSZE).
    :param block_bytes: data bytes of a block.
    :param metadata_bytes: metadata bytes of a block.
    :param extended: metadata follows the data of each block in the same buffer (FLBAS bit 4).
    :param dps: protection information, as in Identify Namespace.
    :param write_protected: it refuses writes (NSATTR bit 0).
    :param without_storage: blocks that cannot be written, because its capacity is less than its size (NCAP, NSZE).
    :param lba_format: the index of the LBA format. Firmware may renumber its formats, so it is not compared.
    """

    blocks: int
    block_bytes: int
    metadata_bytes: int = 0
    extended: bool = False
    dps: int = 0
    write_protected: bool = False
    without_storage: int = 0
    lba_format: int = field(default=0, compare=False)

    def same_format(self, other: "NamespaceShape") -> bool:
        """Return whether both namespaces have the same format."""
        mine, others = (replace(each, blocks=0, write_protected=False, without_storage=0) for each in (self, other))
        return mine == others

    @property
    def format_words(self) -> str:
        """Describe the format: index, data and metadata bytes of a block, and other settings."""
        extended = " extended" if self.extended else ""
        protection = f" with protection information {self.dps:#x}" if self.dps else ""
        return f"{self.lba_format} ({self.block_bytes}+{self.metadata_bytes}{extended}){protection}"

    def __str__(self) -> str:
        protected = ", write-protected" if self.write_protected else ""
        lacking = f", {self.without_storage} of them without storage" if self.without_storage else ""
        return f"{self.blocks} blocks{lacking} in LBA format {self.format_words}{protected}"


@dataclass(frozen=True)
class DriveLayout:
    """Describe the namespaces of a drive, in order of their ids.

    :param namespaces: the attached namespaces.
    :param unattached: the number of other namespaces.
    :param unallocated: bytes in no namespace (UNVMCAP), also 0 if the drive does not report them. They follow from the
        sizes of the namespaces, so they are not compared.
    """

    namespaces: tuple[NamespaceShape, ...]
    unattached: int = 0
    unallocated: int = field(default=0, compare=False)

    @property
    def bytes(self) -> int:
        """Return the bytes of data in all attached namespaces."""
        return sum(each.blocks * each.block_bytes for each in self.namespaces)

    @property
    def one_format(self) -> bool:
        """Return whether all namespaces have the same format."""
        return all(each.same_format(self.namespaces[0]) for each in self.namespaces)

    @property
    def recordable(self) -> bool:
        """Return whether the layout is recorded. A drive without a namespace has no layout yet."""
        return 0 < len(self.namespaces) <= MOST_RECORDED

    def fields(self) -> dict[str, Any]:
        """Return the layout as a JSON object without zero values."""
        described: dict[str, Any] = {"namespaces": [_without_zeros(asdict(each)) for each in self.namespaces]}
        return described | _without_zeros({"unattached": self.unattached, "unallocated": self.unallocated})

    def to_json(self) -> str:
        """Return the layout as the JSON text that is recorded."""
        return json.dumps(self.fields(), sort_keys=True)

    @classmethod
    def from_fields(cls, fields: object) -> "DriveLayout | None":
        """Parse the result of :meth:`fields`; return None for anything else."""
        try:
            namespaces, others = fields["namespaces"], {k: v for k, v in fields.items() if k != "namespaces"}  # type: ignore[index, attr-defined]
            values = [value for each in (others, *namespaces) for value in each.values()]
            if not all(isinstance(value, int) and value >= 0 for value in values):
                return None
            return cls(tuple(NamespaceShape(**each) for each in namespaces), **others)
        except (TypeError, KeyError, AttributeError):
            return None

    @classmethod
    def from_json(cls, text: str | None) -> "DriveLayout | None":
        """Parse the result of :meth:`to_json`; return None for anything else, or for None."""
        try:
            return None if text is None else cls.from_fields(json.loads(text))
        except ValueError:
            return None

    def __str__(self) -> str:
        parts = _first([f"namespace {number}: {shape}" for number, shape in enumerate(self.namespaces, 1)])
        parts += [f"{self.unattached} namespaces that are not attached"] if self.unattached else []
        parts += [f"{self.unallocated} bytes in no namespace"] if self.unallocated else []
        return "; ".join(parts) or "no namespace"


def difference(recorded: DriveLayout, found: DriveLayout) -> str | None:
    """Return how a layout differs from the recorded one, or None if it does not."""
    if recorded == found:
        return None
    said = []
    if len(recorded.namespaces) != len(found.namespaces):
        said.append(f"it has {_counted(found)}, recorded is {_counted(recorded)}")
    if found.unattached != recorded.unattached:
        said.append(
            f"{found.unattached} of its namespaces are not attached to it, recorded is that of {recorded.unattached}"
        )
    # Compare the formats of common namespaces also if their numbers differ.
    pairs = zip(recorded.namespaces, found.namespaces, strict=False)
    for number, (was, now) in enumerate(pairs, 1):
        if not now.same_format(was):
            said.append(f"namespace {number} has LBA format {now.format_words}, recorded is {was.format_words}")
        elif now.blocks != was.blocks:
            said.append(f"namespace {number} has {now.blocks} blocks, recorded is {was.blocks}")
        if now.without_storage != was.without_storage:
            lacking = f"{now.without_storage} blocks without storage"
            said.append(f"namespace {number} has {lacking}, recorded is {was.without_storage}")
        if now.write_protected != was.write_protected:
            said.append(f"namespace {number} is {'' if now.write_protected else 'not '}write-protected")
    return ", ".join(_first(said))


def is_what_zeroing_makes(recorded: DriveLayout, found: DriveLayout, *, made_anew: bool) -> bool:
    """Return whether *found* may be the result of zeroing a drive of the recorded layout.

    If so, all storage could be overwritten. By the specification, one namespace replaces several, as large as the drive
    grants. It has the recorded format, or one without metadata if a host cannot overwrite the recorded one.

    :param made_anew: the namespace was just created, so a larger one was not available.
    """
    if found.unattached or not (recorded.namespaces and found.namespaces):
        return False
    if found.bytes < recorded.bytes and not made_anew:
        return False
    first = recorded.namespaces[0]
    return not any(each.write_protected for each in found.namespaces) and all(
        each.same_format(first) or (first.metadata_bytes and not each.metadata_bytes) for each in found.namespaces
    )


def _counted(layout: DriveLayout) -> str:
    number = len(layout.namespaces)
    return f"{number or 'no'} namespace{'s' if number > 1 else ''}"


def _first(parts: list[str]) -> list[str]:
    left = len(parts) - _MOST_SHOWN
    return [*parts[:_MOST_SHOWN], f"and {left} more"] if left > 1 else parts


def _without_zeros(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value}
