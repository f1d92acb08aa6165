"""Make the whole storage of a drive visible before an erase, and hold it.

Writes do not reach storage in an unattached namespace, or in none. TNVMCAP is not a size that a drive must grant.
Firmware keeps a part for itself, or rounds to an unreported granularity, or refuses an unsuitable size. Only an attempt
shows which sizes it grants.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from oslo_log import log as logging

from autoclave.exceptions import DeviceVanished, EraseFailed, HardwareError, ToolFailed
from autoclave.hardware.block import open_soon
from autoclave.hardware.erase.found_layout import allocated_namespaces, flbas_of, format_index
from autoclave.hardware.erase.work import EraseWork
from autoclave.hardware.host import Deadline, Disk
from autoclave.hardware.nvme import Controller, Namespace, controller_at
from autoclave.hardware.nvme_cli import (
    COMMON_NAMESPACE,
    INSUFFICIENT_CAPACITY,
    INVALID_FIELD,
    INVALID_FORMAT,
    INVALID_OPCODE,
    NSID_UNAVAILABLE,
    NvmeCli,
)
from autoclave.hardware.nvme_json import ControllerIdentity, NamespaceIdentity
from autoclave.rules.drive_layout import NamespaceShape

LOG = logging.getLogger(__name__)

NO_ROOM = frozenset({INSUFFICIENT_CAPACITY, NSID_UNAVAILABLE})
"""The statuses by which a drive with the command refuses to create a namespace."""

_NOT_GRANTED = NO_ROOM | {INVALID_FIELD, INVALID_FORMAT}
"""The statuses by which drives refuse a size. The last two mean that it does not fit the granularity."""


class NamespaceMaker:
    """Create and delete namespaces of one drive.

    :param identity: the controller's.
    :param flbas: the LBA format of new namespaces.
    :param dps: the protection information of new namespaces.
    :param step: blocks of which a size must be a multiple, if the drive reports it. :attr refusal: the drive's latest
        refusal of a size.
    """

    def __init__(
        self, work: EraseWork, identity: ControllerIdentity, *, flbas: int, dps: int = 0, step: int = 1
    ) -> None:
        self._work = work
        self._nvme = work.nvme
        self._node = work.controller.path
        self._identity = identity
        self._flbas = flbas
        self._dps = dps
        self._step = max(1, step)
        self.refusal: ToolFailed | None = None

    def create(self, blocks: int) -> int | None:
        """Create an unattached namespace and return its id; None if the drive does not grant this size.

        :raises ToolFailed: the drive refuses for another reason, such as a missing command.
        """
        self._work.must_be_same_drive()
        try:
            return self._nvme.create_namespace(self._node, blocks, self._flbas, self._dps)
        except ToolFailed as e:
            self._work.must_be_there(e)
            self.refusal = e
            if e.status in _NOT_GRANTED:
                return None
            raise

    def attach(self, nsids: Sequence[int]) -> None:
        """Attach namespaces to the controller, and make the kernel rescan it."""
        for nsid in nsids:
            self._work.must_be_same_drive()
            self._nvme.attach_namespace(self._node, nsid, self._identity.cntlid)
        self._nvme.rescan(self._node)

    def delete(self, nsid: int) -> None:
        """Delete a namespace."""
        self._work.must_be_same_drive()
        self._nvme.delete_namespace(self._node, nsid)

    def has_command(self, sizes: Sequence[int]) -> bool:
        """Return whether the drive can create namespaces at all, without deleting existing ones.

        :param sizes: the sizes to try, in blocks.
        """
        for blocks in sizes:
            try:
                created = self.create(blocks)
            except ToolFailed as e:
                if e.status is None:
                    raise
                if e.status == INVALID_OPCODE:
                    return False
                continue
            if created is not None:
                self.delete(created)
                return True
            if self.refusal is not None and self.refusal.status in NO_ROOM:
                return True
        return False

    def fits_in(self, blocks: int) -> bool:
        """Return whether the drive grants any namespace within *blocks* unallocated blocks. Created namespaces are
        deleted again.
        """
        for size in (blocks, *_halving(blocks, self._step)):
            created = self.create(size)
            if created is not None:
                self.delete(created)
                return True
        return False

    def create_largest(self, blocks: int, *, known: Sequence[int] = ()) -> int:
        """Create the largest namespace that the drive grants, and return its id.

        :param blocks: the upper limit.
        :param known: sizes that the drive has granted before.
        :raises EraseFailed: it grants none.
        """
        for size in dict.fromkeys((blocks, blocks // self._step * self._step)):
            if size and (created := self.create(size)) is not None:
                return created
        largest = self._largest_granted(blocks)
        for size in sorted({largest, *known}, reverse=True):
            if size and (created := self.create(size)) is not None:
                return created
        had = f"namespaces of {', '.join(map(str, known))} blocks" if known else "none"
        raise EraseFailed(
            f"{self._work.drive} grants no namespace of any size up to {blocks} blocks ({self.refusal}); it has no "
            f"namespace now, and had {had}: create one with nvme create-ns, or ask its vendor"
        )

    def fill(self, blocks: int) -> list[int]:
        """Create namespaces within *blocks* unallocated blocks until the drive refuses; return their ids."""
        created: list[int] = []
        left = blocks
        for size in (blocks, *_halving(blocks, self._step)):
            if 0 < size <= left and (nsid := self.create(size)) is not None:
                created.append(nsid)
                left -= size
        return created

    def _largest_granted(self, blocks: int) -> int:
        """Return the largest granted size, found bit by bit from the highest, so that each attempt is as aligned as
        possible.
        """
        held: int | None = None
        found = 0
        for size in _halving(blocks, self._step):
            if found + size > blocks:
                continue
            if held is not None:
                self.delete(held)
            held = self.create(found + size)
            if held is not None:
                found += size
        if held is not None:
            self.delete(held)
        LOG.info("%s: the largest namespace that it grants has %d blocks", self._work.drive, found)
        return found


def _halving(blocks: int, step: int) -> Iterator[int]:
    """Yield sizes within *blocks*: *step* times each power of two, the largest first."""
    power = (blocks // step).bit_length() - 1
    while power >= 0:
        yield step << power
        power -= 1


NODE_TIMEOUT = 60.0
"""Seconds within which the kernel must show the block device of an attached namespace."""


def lacks_storage(nvme: NvmeCli, controller: Controller, identity: ControllerIdentity) -> str | None:
    """Return why the drive has no storage that could be overwritten, or None.

    :raises HardwareError: the drive does not answer.
    """
    if nvme.list_namespaces(controller.path) or identity.capabilities.namespace_management:
        return None
    return "it has no namespace, and no Namespace Management (OACS bit 3) to create one: nothing to zero"


class NamespaceLayout:
    """Arrange the namespaces of a drive that is to be zeroed.

    :param recorded: the recorded namespaces, of which the first has the required format; empty without a record.
    """

    def __init__(self, work: EraseWork, recorded: Sequence[NamespaceShape] = ()) -> None:
        self._work = work
        self._recorded = recorded
        self._nvme = work.nvme
        self._node = work.controller.path

    def expose_everything(self) -> tuple[Controller, bool]:
        """Ensure that all storage is in attached namespaces.

        With Namespace Management, this is one namespace, as large as the drive grants. It is created unless it exists.
        Nothing is deleted before the drive has proved that it can create namespaces. Without Namespace Management, all
        existing namespaces are returned.

        :returns: the controller with its resulting namespaces, and whether they were recreated.
        :raises EraseFailed: the drive refuses, has no namespace, or one without a block device.
        """
        with self._work.bounded("its namespaces may be half rebuilt"):
            identity = self._nvme.identify(self._node)
            attached = self._nvme.list_namespaces(self._node)
            if identity.capabilities.namespace_management:
                nsids, made_anew = self._managed(identity, attached)
            elif attached:
                nsids, made_anew = attached, False
            else:
                raise EraseFailed(
                    f"{self._work.drive} has no namespace and does not support Namespace Management (OACS bit 3), "
                    "so its storage cannot be reached"
                )
            return self.with_block_devices(nsids), made_anew

    def _managed(self, identity: ControllerIdentity, attached: list[int]) -> tuple[list[int], bool]:
        """Return the ids of attached namespaces with all storage, and whether they were recreated."""
        allocated = allocated_namespaces(self._nvme, self._node, attached)
        present = {nsid: self._work.namespace(nsid) for nsid in attached}
        flbas, lba_bytes, index = self._format(present)
        granularity = self._granularity(identity, index)
        maker = NamespaceMaker(self._work, identity, flbas=flbas, step=granularity // lba_bytes)
        total = identity.tnvmcap // lba_bytes
        try:
            if allocated == attached and self._is_whole(identity, present, granularity, maker, index):
                return attached, False
            sizes = sorted(namespace.size_bytes // lba_bytes for namespace in present.values())
            recorded = [shape.blocks * shape.block_bytes // lba_bytes for shape in self._recorded]
            asked = [blocks for blocks in (total or sum(sizes) + 1, *reversed(sizes)) if blocks]
            if allocated and not maker.has_command(asked):
                unreached = identity.unvmcap if identity.unvmcap >= max(lba_bytes, granularity) else 0
                return self._as_it_is(maker, attached, allocated, unreached), False
            if not total:
                raise EraseFailed(
                    f"{self._work.drive} claims Namespace Management, but reports no total capacity (TNVMCAP), so a "
                    "namespace of full size cannot be made; nothing was deleted"
                )
            LOG.info("%s: replacing its namespaces %s by one as large as it grants", self._work.drive, allocated)
            self.delete_all(maker, allocated, {nsid: present[nsid].size_bytes // lba_bytes for nsid in present})
            nsids = [maker.create_largest(total, known=[*sizes, *recorded])]
            nsids += maker.fill(self._nvme.identify(self._node).unvmcap // lba_bytes)
            self._check_rest(maker, max(lba_bytes, granularity))
            maker.attach(nsids)
        except ToolFailed as e:
            self._work.must_be_there(e)
            raise EraseFailed(
                f"{self._work.drive} claims Namespace Management, but refused a part of it: {e}; {self.what_is_left()}"
            ) from e
        for nsid in nsids:
            made = self._work.namespace(nsid)
            if made.ncap != made.nsze:
                raise EraseFailed(
                    f"{self._work.drive} was asked for a namespace with storage for each of its blocks, but created "
                    f"one of {made.nsze} blocks with capacity for {made.ncap}"
                )
        return sorted(nsids), True

    def _is_whole(
        self,
        identity: ControllerIdentity,
        present: dict[int, NamespaceIdentity],
        granularity: int,
        maker: NamespaceMaker,
        index: int,
    ) -> bool:
        """Return whether one attached namespace has all storage that the drive grants to namespaces.

        :param index: the LBA format of a new namespace.
        """
        if len(present) != 1:
            return False
        [only] = present.values()
        if only.ncap != only.nsze or not self._is_wanted(only, index):
            return False
        # Controllers that do not report capacity (such as QEMU's) return 0 here, which is no reason to doubt.
        if identity.unvmcap < max(only.lba_bytes, granularity):
            return True
        try:
            if maker.fits_in(identity.unvmcap // only.lba_bytes):
                return False
        except ToolFailed as e:
            if e.status != INVALID_OPCODE:
                raise
            LOG.warning("%s claims Namespace Management, but does not create namespaces: %s", self._work.drive, e)
            return True
        refused = maker.refusal.status if maker.refusal else None
        # Only insufficient capacity shows that the drive keeps the rest for itself. If no id is left, or after an error
        # such as Invalid Field, the rest may contain a tenant's deleted namespace.
        if refused != INSUFFICIENT_CAPACITY or identity.nn == 1:
            return False
        LOG.info(
            "%s: %d bytes belong to no namespace, and the drive adds them to none", self._work.drive, identity.unvmcap
        )
        return True

    def _is_wanted(self, namespace: NamespaceIdentity, index: int) -> bool:
        """Return whether a namespace has the required format, and at least the recorded bytes.

        The required format is the recorded one, or that of a new namespace. Without a record, any namespace is
        accepted.
        """
        if not self._recorded:
            return True
        if namespace.size_bytes < sum(shape.blocks * shape.block_bytes for shape in self._recorded):
            return False
        return namespace.format_index in (index, format_index(namespace.formats, self._recorded[0]))

    def _check_rest(self, maker: NamespaceMaker, least: int) -> None:
        """Verify that the rest after a new namespace is only left for lack of capacity or ids.

        :param least: the smallest possible namespace, in bytes.
        :raises EraseFailed: the drive refuses the rest for another reason, so that storage cannot be reached.
        """
        rest = self._nvme.identify(self._node).unvmcap
        if rest >= least and (maker.refusal is None or maker.refusal.status not in NO_ROOM):
            raise EraseFailed(
                f"{self._work.drive} has {rest} bytes in no namespace, and creates none for them ({maker.refusal}), so "
                "they cannot be reached"
            )

    def _as_it_is(self, maker: NamespaceMaker, attached: list[int], allocated: list[int], unreached: int) -> list[int]:
        """Attach and return all namespaces of a drive that cannot create any.

        :param unreached: unallocated bytes. Without the command, no later user of the drive can reach them.
        """
        if unreached and maker.refusal is not None and maker.refusal.status != INVALID_OPCODE:
            raise EraseFailed(
                f"{self._work.drive} has {unreached} bytes in no namespace, and creates none for them "
                f"({maker.refusal}), so they cannot be reached; nothing was deleted"
            )
        LOG.warning(
            "%s claims Namespace Management, but does not create namespaces (%s): the existing ones are zeroed",
            self._work.drive,
            maker.refusal,
        )
        if hidden := sorted(set(allocated) - set(attached)):
            maker.attach(hidden)
        return allocated

    def delete_all(self, maker: NamespaceMaker, allocated: Sequence[int], sizes: dict[int, int]) -> None:
        """Delete every namespace, the smallest first. Recreate that one as a proof before the others are deleted.

        :param sizes: the known sizes in blocks.
        """
        order = sorted(allocated, key=lambda nsid: sizes.get(nsid, 0))
        proved = len(order) < 2
        for nsid in order:
            maker.delete(nsid)
            if not proved and nsid in sizes:
                again = maker.create(sizes[nsid])
                if again is None:
                    raise EraseFailed(
                        f"{self._work.drive} does not create a namespace of {sizes[nsid]} blocks again that was just "
                        f"deleted ({maker.refusal}); {self.what_is_left()}: create it with nvme create-ns, or zero "
                        "the drive without Namespace Management"
                    )
                maker.delete(again)
                proved = True
        if left := self._nvme.list_namespaces(self._node, allocated=True):
            raise EraseFailed(f"{self._work.drive} still has the namespaces {left} after they were deleted")

    def what_is_left(self) -> str:
        """Describe the namespaces that the drive has now."""
        try:
            left = self._nvme.list_namespaces(self._node, allocated=True)
        except HardwareError as e:
            return f"its present namespaces are unknown ({e})"
        return f"it has the namespaces {left} now" if left else "it has no namespace now"

    def _granularity(self, identity: ControllerIdentity, index: int) -> int:
        """Return the bytes of which a namespace's size is a multiple; 0 if unknown."""
        if not identity.reports_granularity:
            return 0
        try:
            return self._nvme.granularity(self._node, index)
        except HardwareError as e:
            LOG.warning("%s reports no namespace granularity, although it claims to: %s", self._work.drive, e)
            return 0

    def _format(self, present: dict[int, NamespaceIdentity]) -> tuple[int, int, int]:
        """Return FLBAS, block size and index of the LBA format for a new namespace without metadata.

        It is the recorded format, or else that of the first namespace.
        """
        offered = next(iter(present.values()), None) or self._nvme.identify_namespace(self._node, COMMON_NAMESPACE)
        preferred = format_index(offered.formats, self._recorded[0]) if self._recorded else None
        if preferred is None:
            preferred = offered.format_index if offered.active else 0
        indices = sorted(range(len(offered.formats)), key=lambda index: index != preferred)
        for index in indices:
            lba_format = offered.formats[index]
            if lba_format.block_bytes and not lba_format.metadata_bytes:
                return flbas_of(index), lba_format.block_bytes, index
        raise EraseFailed(f"{self._work.drive} offers no LBA format without metadata for a new namespace")

    def with_block_devices(self, nsids: list[int], sizes: Mapping[int, int] | None = None) -> Controller:
        """Wait until sysfs shows the block devices of all *nsids*, and return the controller.

        :param sizes: the bytes that some namespaces must have by then, such as after a format.
        """
        patience = Deadline.after(min(NODE_TIMEOUT, self._work.control.deadline.remaining()))
        while True:
            now = controller_at(self._work.paths, self._work.controller.address)
            shown = [namespace.nsid for namespace in now.namespaces if namespace.path.exists()]
            late = [each for each in now.namespaces if each.size_bytes != (sizes or {}).get(each.nsid, each.size_bytes)]
            if sorted(shown) == nsids and not late:
                return now
            if patience.passed and late:
                raise HardwareError(
                    f"{self._work.drive}: this host shows {late[0].size_bytes} bytes of namespace {late[0].nsid}, "
                    f"which has {(sizes or {})[late[0].nsid]}; what it does not show cannot be zeroed"
                )
            if patience.passed:
                raise HardwareError(
                    f"{self._work.drive} has the namespaces {nsids}, but this host shows block devices for {shown}; "
                    "what it does not show cannot be zeroed"
                )
            self._work.pause()


@dataclass(frozen=True)
class _Held:
    """Hold one open disk.

    :param node: distinguishes the node of this block device from a later one with the same name.
    """

    disk: Disk
    node: tuple[int, int, int]


class HeldNamespaces:
    """Hold namespaces until the context ends, against mounts, volumes and other exclusive opens.

    A block device is a new one after its creation, a format or a reset, even under its old name. It must be held again.
    O_EXCL does not block programs that open without it. Global Data Erased and the read-back detect their writes.

    :param writable: also verify that they can be written; see :func:`~autoclave.hardware.block.open_block`.
    """

    def __init__(self, work: EraseWork, *, writable: bool) -> None:
        self._work = work
        self._writable = writable
        self._held: dict[str, _Held] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as stack:
            for held in self._held.values():
                stack.callback(held.disk.close)

    def take(self, namespaces: Sequence[Namespace]) -> list[Disk]:
        """Hold each of *namespaces*, reopen replaced block devices, and close those that are gone.

        :returns: their disks, in the order of *namespaces*.
        :raises DeviceVanished: one has no node.
        :raises DeviceInUse: another program on this host has one open exclusively.
        :raises HardwareError: one cannot be opened, or is read-only.
        """
        nodes = {namespace.block_name: _node(namespace) for namespace in namespaces}
        for name in [name for name, held in self._held.items() if nodes.get(name) != held.node]:
            self._held.pop(name).disk.close()
        for namespace in namespaces:
            if namespace.block_name not in self._held:
                disk = open_soon(self._work.paths, namespace.path, writable=self._writable)
                self._held[namespace.block_name] = _Held(disk, nodes[namespace.block_name])
        return [self._held[namespace.block_name].disk for namespace in namespaces]


def _node(namespace: Namespace) -> tuple[int, int, int]:
    try:
        found = namespace.path.stat()
    except OSError as e:
        raise DeviceVanished(f"there is no disk at {namespace.path}: {e.strerror}") from e
    return found.st_dev, found.st_ino, found.st_rdev
