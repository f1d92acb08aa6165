"""What a drive remembers without power: its features, its namespaces, its last sanitize."""

from dataclasses import asdict, dataclass, field
from typing import Any

from autoclave.simulator.sanitize import Operation

LBA_FORMATS: tuple[tuple[int, int], ...] = ((0, 9), (8, 9), (16, 9), (64, 9), (0, 12), (8, 12), (16, 12), (64, 12))
"""(metadata bytes, log2 of the data bytes) by index."""

FNA_ALL, FNA_CRYPTO = 0b011, 0b100
"""FNA bits: formats and secure erases reach all namespaces; Format NVM has cryptographic erase."""

_OACS_FORMAT_NVM = 1 << 1
_OACS_NAMESPACE_MANAGEMENT = 1 << 3
_ONCS_WRITE_ZEROES = 1 << 3


@dataclass
class Namespace:
    """One namespace.

    :param blocks: NSZE, in logical blocks.
    :param flbas: index into :data:`LBA_FORMATS`, and in bit 4 whether metadata follows the data of each block.
    :param attached: ids of the controllers it is attached to.
    :param shared: more than one controller may have it (NMIC bit 0).
    :param dps: protection information.
    :param without_storage: blocks by which NCAP is less than NSZE.
    """

    blocks: int
    flbas: int
    attached: list[int]
    shared: bool
    dps: int = 0
    without_storage: int = 0

    @property
    def lba_format(self) -> int:
        return self.flbas & 0xF

    @property
    def block_size(self) -> int:
        return 1 << LBA_FORMATS[self.lba_format][1]

    @property
    def shown_size(self) -> int:
        """Bytes of the block device: Linux shows none of a namespace whose metadata it cannot use."""
        return 0 if LBA_FORMATS[self.lba_format][0] else self.size

    @property
    def size(self) -> int:
        """Bytes."""
        return self.blocks * self.block_size


@dataclass
class DriveState:
    """What a drive remembers without power."""

    serial: str
    model: str
    firmware: str
    nqn: str
    sanicap: int
    oacs: int
    oncs: int
    capacity: int
    sanitize_seconds: float
    withheld: int = 0
    granularity: int = 0
    reports_granularity: bool = False
    max_namespaces: int = 256
    namespaces: dict[int, Namespace] = field(default_factory=dict)
    operation: Operation | None = None
    global_erased: bool = False
    fna: int = 0

    @property
    def formats(self) -> bool:
        """It has the Format NVM command."""
        return bool(self.oacs & _OACS_FORMAT_NVM)

    @property
    def manages_namespaces(self) -> bool:
        """It has Namespace Management and Namespace Attachment."""
        return bool(self.oacs & _OACS_NAMESPACE_MANAGEMENT)

    @property
    def writes_zeroes(self) -> bool:
        """It has the Write Zeroes command."""
        return bool(self.oncs & _ONCS_WRITE_ZEROES)

    @property
    def unallocated(self) -> int:
        """Bytes that no namespace has."""
        return self.capacity - sum(self.takes(namespace.size) for namespace in self.namespaces.values())

    @property
    def free(self) -> int:
        """Bytes of it that a namespace can get."""
        return self.unallocated - self.withheld

    def takes(self, size: int) -> int:
        """Bytes of capacity that a namespace of *size* takes."""
        return -(-size // self.granularity) * self.granularity if self.granularity else size

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> "DriveState":
        namespaces = {int(nsid): Namespace(**fields) for nsid, fields in document.pop("namespaces").items()}
        operation = document.pop("operation")
        return cls(**document, namespaces=namespaces, operation=operation and Operation(**operation))
