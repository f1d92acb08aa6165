"""Describe simulated drives: their specification, their bytes, their slots.

The bytes of a namespace are a sparse file. Erasing and searching it never fills its holes.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from autoclave.exceptions import SimulatorError
from autoclave.rules.pci_address import PCIAddress, parse_pci_id
from autoclave.simulator import files
from autoclave.simulator.drive_state import FNA_ALL, FNA_CRYPTO

MIB = 1 << 20
BLOCK = 512
"""The bytes of a block; the smallest namespace has one."""

# NVMe base specification, Identify Controller: SANICAP, OACS and ONCS.
_SANICAP_CRYPTO = 1 << 0
_SANICAP_BLOCK = 1 << 1
_SANICAP_OVERWRITE = 1 << 2
_SANICAP_NDI = 1 << 29
_SANICAP_NODMMAS_MODIFIED = 2 << 30
_OACS_FORMAT_NVM = 1 << 1
_OACS_NAMESPACE_MANAGEMENT = 1 << 3
_OACS_DOORBELL_BUFFER = 1 << 8
_ONCS_WRITE_ZEROES = 1 << 3
_ONCS_ALWAYS = 0x155  # Compare, DSM, Save/Select, Timestamp, Copy


@dataclass(frozen=True)
class DriveSpec:
    """Specify one NVMe controller in one slot, and the drive behind it.

    :param address: the full PCI address, such as ``0000:41:00.0``.
    :param serial: at most 20 characters; it identifies the drive in every slot.
    :param model: at most 40 characters.
    :param vendor: PCI vendor id, four hexadecimal digits without ``0x``.
    :param product: PCI device id, four hexadecimal digits without ``0x``.
    :param size_bytes: of all namespaces together; they share it evenly.
    :param unallocated_bytes: capacity in no namespace (with *namespace_management*).
    :param withheld_bytes: capacity that TNVMCAP and UNVMCAP include, but that the drive grants to no namespace.
    :param granularity: bytes of which a namespace occupies a multiple; 0 for any number of blocks.
    :param reports_granularity: Identify reports it (CTRATT bit 7, CNS 16h).
    :param max_namespaces: the most namespaces (NN).
    :param crypto: sanitize by crypto erase.
    :param block: sanitize by block erase.
    :param overwrite: sanitize by overwrite.
    :param write_zeroes: the Write Zeroes command.
    :param namespace_management: the commands create-ns, delete-ns, attach-ns and detach-ns.
    :param format_nvm: the Format NVM command, with user data erase.
    :param format_crypto: Format NVM with cryptographic erase, too.
    :param format_all: a format, and a secure erase, of one namespace affects all (FNA bits 0 and 1).
    :param namespaces: their number; all are attached.
    :param sanitize_seconds: the duration of a sanitize operation.
    :param mounted: this host's own disk: a partition of it is mounted on ``/``.
    :param firmware: at most 8 characters.
    :param subsystem: controllers with the same NQN share one drive; None for a drive of its own.
    :param driver: the kernel driver of the function: ``nvme``, ``vfio-pci`` or None.
    :param iommu: the host has an IOMMU.
    :param iommu_group: the number of its group; None for a group of its own.
    :param numa_node: -1 if the platform does not report it.
    :param physfn: for a virtual function, the address of its physical function. It has no drive of its own, and no
        driver.
    :raises SimulatorError: no drive can have these values.
    """

    address: str
    serial: str
    model: str = "Simulated NVMe Drive"
    vendor: str = "1b36"
    product: str = "0010"
    size_bytes: int = 64 * MIB
    unallocated_bytes: int = 0
    withheld_bytes: int = 0
    granularity: int = 0
    reports_granularity: bool = False
    max_namespaces: int = 256
    crypto: bool = False
    block: bool = False
    overwrite: bool = False
    write_zeroes: bool = True
    namespace_management: bool = False
    format_nvm: bool = False
    format_crypto: bool = False
    format_all: bool = False
    namespaces: int = 1
    sanitize_seconds: float = 1.0
    mounted: bool = False
    firmware: str = "SIM1.0"
    subsystem: str | None = None
    driver: str | None = "nvme"
    iommu: bool = True
    iommu_group: int | None = None
    numa_node: int = -1
    physfn: str | None = None

    class_code: ClassVar[str] = "010802"
    """The PCI class of all NVMe controllers."""

    def __post_init__(self) -> None:
        try:
            written = str(PCIAddress.parse(self.address))
            ids = (parse_pci_id(self.vendor), parse_pci_id(self.product))
        except ValueError as e:
            raise SimulatorError(f"drive {self.serial!r} at {self.address!r}: {e}") from None
        for given, canonical in zip((self.address, self.vendor, self.product), (written, *ids), strict=True):
            if given != canonical:
                raise SimulatorError(f"drive {self.serial!r}: write {canonical!r} instead of {given!r}")
        for name, longest in (("serial", 20), ("model", 40), ("firmware", 8)):
            text = getattr(self, name)
            if len(text) > longest or not text.isascii():
                raise SimulatorError(f"{self.address}: {name} {text!r} is not ASCII of at most {longest} characters")
        if self.size_bytes < BLOCK * self.namespaces:
            raise SimulatorError(
                f"{self.address}: {self.size_bytes} bytes are too few for {self.namespaces} namespaces"
            )
        if not self.serial and self.physfn is None:
            raise SimulatorError(f"{self.address}: a drive needs a serial number")

    @property
    def drive_id(self) -> str:
        """Return the name of the drive's directory."""
        return (self.subsystem or self.serial).replace("/", "_").replace(":", "_")

    @property
    def nqn(self) -> str:
        """Return the NVM subsystem's qualified name."""
        return self.subsystem or f"nqn.2014-08.org.nvmexpress:sim:{self.serial}"

    @property
    def sanicap(self) -> int:
        """Return SANICAP. As in real drives, its top bits are set, so it exceeds a signed 32-bit number."""
        bits = _SANICAP_CRYPTO * self.crypto | _SANICAP_BLOCK * self.block | _SANICAP_OVERWRITE * self.overwrite
        return bits and bits | _SANICAP_NDI | _SANICAP_NODMMAS_MODIFIED

    @property
    def oacs(self) -> int:
        formats = _OACS_FORMAT_NVM * (self.format_nvm or self.format_crypto)
        return _OACS_DOORBELL_BUFFER | _OACS_NAMESPACE_MANAGEMENT * self.namespace_management | formats

    @property
    def fna(self) -> int:
        return FNA_ALL * self.format_all | FNA_CRYPTO * self.format_crypto

    @property
    def oncs(self) -> int:
        return _ONCS_ALWAYS | _ONCS_WRITE_ZEROES * self.write_zeroes


def default_drives(host_index: int) -> Sequence[DriveSpec]:
    """Return the drives of a rehearsal host: one that sanitizes, one that can only be zeroed, and the host's own.

    :param host_index: makes the serial numbers unique among the hosts.
    """
    return (
        DriveSpec(
            address="0000:01:00.0",
            serial=f"SIM{host_index:04d}SYS",
            model="Simulated NVMe System Disk",
            product="0011",
            block=True,
            mounted=True,
        ),
        DriveSpec(
            address="0000:41:00.0",
            serial=f"SIM{host_index:04d}A",
            model="Simulated NVMe Sanitizing",
            product="a808",
            vendor="144d",
            crypto=True,
            block=True,
            namespace_management=True,
        ),
        DriveSpec(
            address="0000:42:00.0",
            serial=f"SIM{host_index:04d}B",
            model="Simulated NVMe Zeroing",
            product="0a54",
            vendor="8086",
        ),
    )


_CHUNK = 1 << 20


def make(path: Path, size: int) -> None:
    """Create *path* as a file of *size* bytes that reads as zeros."""
    with path.open("wb") as media:
        media.truncate(size)


def written(descriptor: int, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the (offset, length) pieces of [*start*, *end*) that hold data, none longer than 1 MiB."""
    position = start
    while position < end:
        try:
            position = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError:  # ENXIO: only a hole follows
            return
        stop = min(os.lseek(descriptor, position, os.SEEK_HOLE), end)
        while position < stop:
            length = min(_CHUNK, stop - position)
            yield position, length
            position += length


def zero(descriptor: int, offset: int, length: int) -> None:
    """Overwrite [*offset*, *offset* + *length*) with zeros; holes stay holes."""
    for start, size in written(descriptor, offset, offset + length):
        os.pwrite(descriptor, bytes(size), start)


def scramble(path: Path) -> None:
    """Replace all written data with noise, as a drive does after the destruction of its key."""
    with path.open("r+b", buffering=0) as media:
        for start, size in written(media.fileno(), 0, path.stat().st_size):
            os.pwrite(media.fileno(), os.urandom(size), start)


def move(source: Path, source_offset: int, target: Path, target_offset: int, length: int) -> None:
    """Copy *length* bytes between two files, growing *target* if needed."""
    with source.open("rb", buffering=0) as reader, target.open("r+b", buffering=0) as writer:
        for start, size in written(reader.fileno(), source_offset, source_offset + length):
            os.pwrite(writer.fileno(), os.pread(reader.fileno(), size, start), target_offset + start - source_offset)
        if target.stat().st_size < target_offset + length:
            writer.truncate(target_offset + length)


def find(path: Path, needle: bytes) -> int | None:
    """Return the offset of the first *needle* in the file, or None."""
    tail, previous_end = b"", -1
    with path.open("rb", buffering=0) as media:
        for start, size in written(media.fileno(), 0, path.stat().st_size):
            if start != previous_end:
                tail = b""
            block = tail + os.pread(media.fileno(), size, start)
            position = block.find(needle)
            if position >= 0:
                return start - len(tail) + position
            tail = block[-(len(needle) - 1) :] if len(needle) > 1 else b""
            previous_end = start + size
    return None


@dataclass
class Slot:
    """Describe the slot of one PCI function.

    :param spec: the drive that is, or was last, in it.
    :param cntlid: id of its controller within its subsystem.
    :param present: a drive is in it.
    :param driver: the current kernel driver of the function.
    :param instance: the N of nvmeN while the nvme driver has it.
    :param previous: the drive before *spec*.
    """

    spec: DriveSpec
    cntlid: int
    present: bool = True
    driver: str | None = None
    instance: int | None = None
    previous: DriveSpec | None = None

    @property
    def address(self) -> str:
        return self.spec.address


@dataclass
class Inventory:
    """Hold the slots of one host.

    :param name: the host's name.
    :param style: the version of nvme-cli that its stand-in imitates.
    :param slots: by PCI address.
    :param heads: the N of the block devices nvmeNnY by drive. The kernel uses the subsystem's number, which may differ
        from the controller's.
    """

    name: str
    style: str
    slots: dict[str, Slot] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)

    @classmethod
    def load(cls, root: Path) -> "Inventory":
        """Load the inventory of the simulated host in *root*.

        :raises FileNotFoundError: it does not exist.
        """
        document = files.read_json(root / "state" / "host.json")
        slots = {address: _slot(fields) for address, fields in document["slots"].items()}
        return cls(document["name"], document["style"], slots, document["heads"])

    @classmethod
    @contextmanager
    def change(cls, root: Path) -> Iterator["Inventory"]:
        """Lock the host's inventory, and save the caller's changes unless it raises."""
        with files.locked(root / "state" / "host.lock"):
            inventory = cls.load(root)
            yield inventory
            inventory.save(root)

    def save(self, root: Path) -> None:
        files.write_json(root / "state" / "host.json", asdict(self))

    def sharing(self, drive_id: str) -> list[Slot]:
        """Return the occupied slots whose controllers belong to this drive."""
        return [
            slot
            for slot in self.slots.values()
            if slot.present and slot.spec.drive_id == drive_id and slot.spec.physfn is None
        ]

    def bound(self) -> list[Slot]:
        """Return the slots bound to the nvme driver."""
        return [slot for slot in self.slots.values() if slot.instance is not None]

    def by_controller(self, instance: int) -> Slot | None:
        """Return the slot of controller nvme*instance*, or None."""
        return next((slot for slot in self.bound() if slot.instance == instance), None)

    def by_head(self, head: int) -> Slot | None:
        """Return a slot that leads to the block devices nvme*head*nY, or None."""
        return next((slot for slot in self.bound() if self.heads[slot.spec.drive_id] == head), None)

    def bind(self, *slots: Slot) -> None:
        """Bind functions to the nvme driver, and number them as the kernel does."""
        for slot in slots:
            taken = {other.instance for other in self.bound()} | self._heads_in_use()
            slot.driver, slot.instance = "nvme", next(n for n in range(len(taken) + 1) if n not in taken)
        for slot in slots:
            others = [s for s in self.sharing(slot.spec.drive_id) if s.instance is not None and s not in slots]
            if not others:
                together = [s.instance for s in slots if s.spec.drive_id == slot.spec.drive_id]
                self.heads[slot.spec.drive_id] = max(n for n in together if n is not None)

    def unbind(self, slot: Slot, driver: str | None) -> None:
        """Unbind the function from the nvme driver and bind it to *driver*."""
        slot.driver, slot.instance = driver, None

    def _heads_in_use(self) -> set[int | None]:
        return {self.heads[slot.spec.drive_id] for slot in self.bound() if slot.spec.drive_id in self.heads}


def _slot(fields: dict[str, Any]) -> Slot:
    spec, previous = fields.pop("spec"), fields.pop("previous")
    return Slot(spec=DriveSpec(**spec), previous=previous and DriveSpec(**previous), **fields)
