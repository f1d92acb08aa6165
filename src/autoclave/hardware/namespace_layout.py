"""Before zeroing: the whole storage of a drive made visible to the host.

What lies in a namespace that is not attached, or in none, cannot be reached by a write.
"""

from typing import NoReturn

from oslo_log import log as logging

from autoclave.exceptions import EraseFailed, HardwareError, ToolFailed
from autoclave.hardware.deadline import Deadline
from autoclave.hardware.erase_work import EraseWork
from autoclave.hardware.nvme import Controller, controller_at
from autoclave.hardware.nvme_cli import COMMON_NAMESPACE
from autoclave.hardware.nvme_json import ControllerIdentity

LOG = logging.getLogger(__name__)

NODE_TIMEOUT = 60.0
"""Seconds that the kernel may take to show the block device of an attached namespace."""


class NamespaceLayout:
    """The namespaces of a drive that is to be zeroed."""

    def __init__(self, work: EraseWork) -> None:
        self._work = work
        self._nvme = work.nvme
        self._node = work.controller.path

    def expose_everything(self) -> tuple[Controller, bool]:
        """Make sure that all storage is in attached namespaces.

        With Namespace Management that is one namespace of full size; one is made where it is not so already.
        Without it, the namespaces are what they are, and every one of them is returned.

        :returns: the controller with its namespaces as they are then, and whether they were made anew.
        :raises EraseFailed: the drive refuses, has no namespace, or one without a block device.
        """
        with self._work.bounded("its namespaces may be half rebuilt"):
            identity = self._nvme.identify(self._node)
            attached = self._nvme.list_namespaces(self._node)
            made_anew = identity.capabilities.namespace_management and not self._is_whole(identity, attached)
            if made_anew:
                attached = [self._rebuild(identity, attached)]
            elif not attached:
                raise EraseFailed(
                    f"{self._work.drive} has no namespace and does not support Namespace Management (OACS bit 3), "
                    "so its storage cannot be reached"
                )
            return self._with_block_devices(attached), made_anew

    def _is_whole(self, identity: ControllerIdentity, attached: list[int]) -> bool:
        """Whether one attached namespace has everything."""
        if len(attached) != 1 or self._nvme.list_namespaces(self._node, allocated=True) != attached:
            return False
        only = self._nvme.identify_namespace(self._node, attached[0])
        # Controllers that do not report capacity (QEMU's) say 0 here, which leaves nothing to doubt.
        return only.ncap == only.nsze and identity.unvmcap < only.lba_bytes

    def _rebuild(self, identity: ControllerIdentity, attached: list[int]) -> int:
        """Replace all namespaces by one that has everything, attach it, and return its id."""
        flbas, lba_bytes = self._format(attached)
        blocks = identity.tnvmcap // lba_bytes
        if not blocks:
            raise EraseFailed(
                f"{self._work.drive} claims Namespace Management, but reports no total capacity (TNVMCAP), so a "
                "namespace of full size cannot be made; nothing was deleted"
            )
        LOG.info("%s: replacing its namespaces by one of %d blocks of %d bytes", self._work.drive, blocks, lba_bytes)
        step = "delete its namespaces"
        try:
            for nsid in self._nvme.list_namespaces(self._node, allocated=True):
                step = f"delete namespace {nsid}"
                self._work.must_be_same_drive()
                self._nvme.delete_namespace(self._node, nsid)
            if left := self._nvme.list_namespaces(self._node, allocated=True):
                raise EraseFailed(f"{self._work.drive} still has the namespaces {left} after they were deleted")
            step = f"create a namespace of {blocks} blocks"
            nsid = self._nvme.create_namespace(self._node, blocks, flbas)
            step = f"attach namespace {nsid}"
            self._nvme.attach_namespace(self._node, nsid, identity.cntlid)
            step = "rescan its namespaces"
            self._nvme.rescan(self._node)
        except ToolFailed as e:
            self._refused(step, e)
        self._check_size(nsid, blocks, lba_bytes)
        return nsid

    def _format(self, attached: list[int]) -> tuple[int, int]:
        """FLBAS and block size for the new namespace: those of the first that there is."""
        if attached:
            first = self._nvme.identify_namespace(self._node, attached[0])
            return first.flbas, first.lba_bytes
        common = self._nvme.identify_namespace(self._node, COMMON_NAMESPACE)
        for index, lba_format in enumerate(common.formats):
            if lba_format.block_bytes and not lba_format.metadata_bytes:
                return (index & 0xF) | (index >> 4) << 5, lba_format.block_bytes
        raise EraseFailed(f"{self._work.drive} offers no LBA format without metadata for a new namespace")

    def _check_size(self, nsid: int, blocks: int, lba_bytes: int) -> None:
        made = self._nvme.identify_namespace(self._node, nsid)
        left = self._nvme.identify(self._node).unvmcap
        if made.nsze != blocks or made.ncap != blocks or left >= lba_bytes:
            raise EraseFailed(
                f"{self._work.drive} was asked for one namespace of {blocks} blocks, and made one of {made.nsze} "
                f"(capacity {made.ncap}) with {left} bytes left over"
            )

    def _refused(self, step: str, error: ToolFailed) -> NoReturn:
        self._work.must_be_there(error)
        raise EraseFailed(f"{self._work.drive} claims Namespace Management, but refused to {step}: {error}") from error

    def _with_block_devices(self, nsids: list[int]) -> Controller:
        """The controller as sysfs shows it, once every one of *nsids* has its block device."""
        patience = Deadline.after(min(NODE_TIMEOUT, self._work.control.deadline.remaining()))
        while True:
            now = controller_at(self._work.paths, self._work.controller.address)
            shown = [namespace.nsid for namespace in now.namespaces if namespace.path.exists()]
            if sorted(shown) == nsids:
                return now
            if patience.passed:
                raise HardwareError(
                    f"{self._work.drive} has the namespaces {nsids}, but this host shows block devices for {shown}; "
                    "what it does not show cannot be zeroed"
                )
            self._work.pause()
