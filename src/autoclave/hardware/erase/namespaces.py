"""Before zeroing: the whole storage of a drive made visible to the host.

What lies in a namespace that is not attached, or in none, cannot be reached by a write.
"""

from collections.abc import Mapping, Sequence

from oslo_log import log as logging

from autoclave.exceptions import EraseFailed, HardwareError, ToolFailed
from autoclave.hardware.deadline import Deadline
from autoclave.hardware.erase.found_layout import allocated_namespaces, flbas_of, format_index
from autoclave.hardware.erase.work import EraseWork
from autoclave.hardware.namespace_maker import NO_ROOM, NamespaceMaker
from autoclave.hardware.nvme import Controller, controller_at
from autoclave.hardware.nvme_cli import COMMON_NAMESPACE, INSUFFICIENT_CAPACITY, INVALID_OPCODE, NvmeCli
from autoclave.hardware.nvme_json import ControllerIdentity, NamespaceIdentity
from autoclave.rules.drive_layout import NamespaceShape

LOG = logging.getLogger(__name__)

NODE_TIMEOUT = 60.0
"""Seconds that the kernel may take to show the block device of an attached namespace."""


def lacks_storage(nvme: NvmeCli, controller: Controller, identity: ControllerIdentity) -> str | None:
    """Return why the drive has no storage that could be overwritten, or None.

    :raises HardwareError: the drive does not answer.
    """
    if nvme.list_namespaces(controller.path) or identity.capabilities.namespace_management:
        return None
    return "it has no namespace, and no Namespace Management (OACS bit 3) to create one: nothing to zero"


class NamespaceLayout:
    """The namespaces of a drive that is to be zeroed.

    :param recorded: those on record, of which the first has the wanted format; empty: there is no record.
    """

    def __init__(self, work: EraseWork, recorded: Sequence[NamespaceShape] = ()) -> None:
        self._work = work
        self._recorded = recorded
        self._nvme = work.nvme
        self._node = work.controller.path

    def expose_everything(self) -> tuple[Controller, bool]:
        """Make sure that all storage is in attached namespaces.

        With Namespace Management that is one namespace, as large as the drive grants; it is created where it is not
        there already, and nothing is deleted before the drive is known to create namespaces. Without it, the
        namespaces are what they are, and every one of them is returned.

        :returns: the controller with its namespaces as they are then, and whether they were made anew.
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
        """The namespaces that have everything, attached, and whether they were made anew."""
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
                    f"{self._work.drive} was asked for a namespace with storage for each of its blocks, and made one "
                    f"of {made.nsze} blocks with capacity for {made.ncap}"
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
        """Whether one attached namespace has all that the drive gives to namespaces.

        :param index: of the LBA format for a new namespace.
        """
        if len(present) != 1:
            return False
        [only] = present.values()
        if only.ncap != only.nsze or not self._is_wanted(only, index):
            return False
        # Controllers that do not report capacity (QEMU's) say 0 here, which leaves nothing to doubt.
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
        # Only a lack of capacity tells that the drive keeps the rest to itself. Without an id to spare, or with an
        # answer such as Invalid Field, a tenant's deleted namespace may lie there.
        if refused != INSUFFICIENT_CAPACITY or identity.nn == 1:
            return False
        LOG.info(
            "%s: %d bytes belong to no namespace, and the drive gives them to none", self._work.drive, identity.unvmcap
        )
        return True

    def _is_wanted(self, namespace: NamespaceIdentity, index: int) -> bool:
        """Whether a namespace has the recorded format, or that of a new one, and the bytes of those on record.

        Without a record any will do.
        """
        if not self._recorded:
            return True
        if namespace.size_bytes < sum(shape.blocks * shape.block_bytes for shape in self._recorded):
            return False
        return namespace.format_index in (index, format_index(namespace.formats, self._recorded[0]))

    def _check_rest(self, maker: NamespaceMaker, least: int) -> None:
        """Refuse what is left after a new namespace, unless the drive has no capacity or no id for it.

        :param least: fewer bytes than these make no namespace.
        :raises EraseFailed: the drive refuses the rest for another reason, so its storage is not reached.
        """
        rest = self._nvme.identify(self._node).unvmcap
        if rest >= least and (maker.refusal is None or maker.refusal.status not in NO_ROOM):
            raise EraseFailed(
                f"{self._work.drive} has {rest} bytes in no namespace, and creates none for them ({maker.refusal}), so "
                "they cannot be reached"
            )

    def _as_it_is(self, maker: NamespaceMaker, attached: list[int], allocated: list[int], unreached: int) -> list[int]:
        """All namespaces of a drive that does not create any, attached.

        :param unreached: bytes that belong to none. Without the command, no later user of the drive reaches them.
        """
        if unreached and maker.refusal is not None and maker.refusal.status != INVALID_OPCODE:
            raise EraseFailed(
                f"{self._work.drive} has {unreached} bytes in no namespace, and creates none for them "
                f"({maker.refusal}), so they cannot be reached; nothing was deleted"
            )
        LOG.warning(
            "%s claims Namespace Management, but does not create namespaces (%s): they are zeroed as they are",
            self._work.drive,
            maker.refusal,
        )
        if hidden := sorted(set(allocated) - set(attached)):
            maker.attach(hidden)
        return allocated

    def delete_all(self, maker: NamespaceMaker, allocated: Sequence[int], sizes: dict[int, int]) -> None:
        """Delete every namespace, the smallest first, which is created again for a proof before the others go.

        :param sizes: blocks of those whose size is known.
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
        """Which namespaces the drive has now, in words."""
        try:
            left = self._nvme.list_namespaces(self._node, allocated=True)
        except HardwareError as e:
            return f"which namespaces it has now is not known ({e})"
        return f"it has the namespaces {left} now" if left else "it has no namespace now"

    def _granularity(self, identity: ControllerIdentity, index: int) -> int:
        """Bytes of which a namespace has a whole multiple; 0: not known."""
        if not identity.reports_granularity:
            return 0
        try:
            return self._nvme.granularity(self._node, index)
        except HardwareError as e:
            LOG.warning("%s reports no namespace granularity, although it claims to: %s", self._work.drive, e)
            return 0

    def _format(self, present: dict[int, NamespaceIdentity]) -> tuple[int, int, int]:
        """FLBAS, block size and index of the LBA format for a new namespace, which has no metadata.

        It is the recorded one, or else that of the first namespace.
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
        """The controller as sysfs shows it, once every one of *nsids* has its block device.

        :param sizes: bytes that those of some namespaces must have by then, as after a format.
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
