"""Restore the recorded layout of a drive before its erase, and compare it after the proof.

A tenant may have formatted the namespaces, to another block size or with metadata, or may have replaced them. An erase
alone keeps that. Format NVM restores formats, and Namespace Management restores namespaces. Both come before the erase,
so that the proof covers their result. After the proof, the layout is only read.
"""

from collections.abc import Sequence
from dataclasses import replace

from oslo_log import log as logging

from autoclave.exceptions import EraseFailed, ToolError, ToolFailed
from autoclave.hardware.erase.found_layout import FoundLayout, allocated_namespaces, flbas_of, format_index, read_layout
from autoclave.hardware.erase.namespaces import HeldNamespaces, NamespaceLayout, NamespaceMaker
from autoclave.hardware.erase.work import EraseWork
from autoclave.hardware.nvme import Controller, controller_at
from autoclave.hardware.nvme_cli import COMMON_NAMESPACE
from autoclave.hardware.nvme_json import ControllerIdentity, LBAFormat, NamespaceIdentity
from autoclave.rules.drive_layout import DriveLayout, NamespaceShape, difference, is_what_zeroing_makes

LOG = logging.getLogger(__name__)

STEP = "restoring the layout"
"""The name of the step for operators."""

_HALF_RESTORED = "its layout may be half restored, and nothing was erased"
_NO_SECURE_ERASE = 0


class RecordedLayout:
    """Apply the recorded layout of one drive during one erase.

    :param recorded: None without a record; then the layout stays as it is.
    :param identity: the controller's.
    :param replaces_namespaces: the erase may recreate the namespaces.
    """

    def __init__(
        self,
        work: EraseWork,
        recorded: DriveLayout | None,
        identity: ControllerIdentity,
        *,
        replaces_namespaces: bool,
    ) -> None:
        self._work = work
        self._recorded = recorded
        self._identity = identity
        self._node = work.controller.path
        self._replaces = replaces_namespaces
        self._made_anew = False
        self._obstacles: list[str] = []

    @property
    def differs(self) -> bool:
        """Return whether the layout must be restored.

        :raises HardwareError: the drive does not answer.
        """
        if self._recorded is None:
            return False
        with self._work.bounded("nothing was started"):
            return not self._is_right(self._look().layout)

    def restored(self) -> EraseWork:
        """Restore the recorded layout, and return the work with the current controller.

        :raises EraseFailed: the layout cannot be restored, or the drive refuses a part of it.
        :raises DeviceInUse: another program on this host has a namespace open exclusively.
        :raises HardwareError: another error keeps the layout from being restored.
        """
        if self._recorded is None:
            return self._work
        with self._work.bounded(_HALF_RESTORED), self._work.meter(STEP) as meter:
            found = self._formatted(self._look(), self._recorded)
            if found.layout != self._recorded:
                found = self._remade(found, self._recorded)
            self._require(found.layout)
            controller = self._shown(found)
            meter.update(100.0)
        LOG.info("%s has its recorded layout again: %s", self._work.drive, found.layout)
        return replace(self._work, controller=controller)

    def expose_everything(self) -> tuple[Controller, bool]:
        """Restore the recorded formats, then return the result of :meth:`NamespaceLayout.expose_everything`.

        :raises EraseFailed: that is impossible, or the drive refuses a part of it.
        :raises DeviceInUse: another program on this host has a namespace open exclusively.
        :raises HardwareError: another error keeps all storage from being exposed.
        """
        if self._recorded is None:
            return NamespaceLayout(self._work).expose_everything()
        if self.differs:
            with self._work.bounded(_HALF_RESTORED), self._work.meter(STEP) as meter:
                self._formatted(self._look(), self._recorded)
                meter.update(100.0)
        exposed = NamespaceLayout(self._work, self._recorded.namespaces).expose_everything()
        _, self._made_anew = exposed
        with self._work.bounded("nothing was overwritten"):
            self._require(self._look().layout)
        return exposed

    def proved(self) -> DriveLayout | None:
        """Return the layout after the erase; None if it cannot be read and there is no record.

        :raises EraseFailed: it is neither the recorded layout, nor what zeroing makes of that.
        :raises HardwareError: there is a record, and the layout cannot be read.
        """
        try:
            with self._work.bounded("it is erased, but its layout was not read"):
                found = self._look().layout
        except ToolError as e:
            if self._recorded is not None:
                raise
            LOG.info("The layout of %s is not recorded: %s", self._work.drive, e)
            return None
        self._work.must_be_same_drive()
        self._require(found)
        return found

    def _look(self) -> FoundLayout:
        self._identity = self._work.nvme.identify(self._node)
        return read_layout(self._work.nvme, self._node, self._identity)

    def _is_right(self, found: DriveLayout) -> bool:
        if self._recorded is None or found == self._recorded:
            return True
        return self._replaces and is_what_zeroing_makes(self._recorded, found, made_anew=self._made_anew)

    def _require(self, found: DriveLayout) -> None:
        """Verify that the drive may be offered with the layout *found*.

        :raises EraseFailed: it may not.
        """
        if self._recorded is None or self._is_right(found):
            return
        why = f" It was not restored: {'; '.join(self._obstacles)}." if self._obstacles else ""
        raise EraseFailed(
            f"{self._work.drive} does not have its recorded layout: {difference(self._recorded, found)}.{why} Restore "
            "it with nvme-cli and clean the drive again, or accept the present layout by `autoclave device accept`"
        )

    def _shown(self, found: FoundLayout) -> Controller:
        """Return the controller once the host shows the sizes of its namespaces, except of those with metadata."""
        pairs = zip(found.nsids, found.identities, strict=True)
        sizes = {nsid: each.size_bytes for nsid, each in pairs if not each.format.metadata_bytes}
        return NamespaceLayout(self._work).with_block_devices(list(found.nsids), sizes)

    def _hold(self, held: HeldNamespaces) -> None:
        shown = controller_at(self._work.paths, self._work.controller.address).namespaces
        held.take([namespace for namespace in shown if namespace.path.exists()])
        self._work.must_be_same_drive()

    def _formatted(self, found: FoundLayout, recorded: DriveLayout) -> FoundLayout:
        """Format each namespace to its recorded format, as far as Format NVM can, and return the layout."""
        wanted = self._formats_wanted(found, recorded)
        if not wanted:
            return found
        if not self._identity.capabilities.format_nvm:
            self._obstacles.append("it has no Format NVM (OACS bit 1)")
            return found
        if self._identity.formats_all and not recorded.one_format:
            self._obstacles.append("formatting one namespace formats all (FNA bit 0), and the recorded formats differ")
            return found
        if self._identity.formats_all:
            nsid, identity, shape = wanted[0]
            wanted = [(COMMON_NAMESPACE if self._identity.takes_broadcast else nsid, identity, shape)]
        with HeldNamespaces(self._work, writable=False) as held:
            self._hold(held)
            for nsid, identity, shape in wanted:
                if not self._format(nsid, identity, shape):
                    break
            self._work.nvme.rescan(self._node)
            now = self._look()
            self._shown(now)
        return now

    @staticmethod
    def _formats_wanted(
        found: FoundLayout, recorded: DriveLayout
    ) -> list[tuple[int, NamespaceIdentity, NamespaceShape]]:
        """Return the namespaces whose format differs from the recorded one, each with the recorded shape."""
        if len(found.nsids) == len(recorded.namespaces):
            targets: Sequence[NamespaceShape] = recorded.namespaces
        elif recorded.one_format:
            targets = [recorded.namespaces[0]] * len(found.nsids)
        else:
            return []
        each = zip(found.nsids, found.identities, found.layout.namespaces, targets, strict=True)
        return [(nsid, identity, shape) for nsid, identity, now, shape in each if not now.same_format(shape)]

    def _format(self, nsid: int, identity: NamespaceIdentity, shape: NamespaceShape) -> bool:
        """Send one format; return whether the drive succeeded."""
        index = format_index(identity.formats, shape)
        if index is None:
            self._obstacles.append(f"it has no LBA format of {shape.block_bytes}+{shape.metadata_bytes} bytes now")
            return False
        self._work.must_be_same_drive()
        LOG.info("%s: formatting namespace %d to LBA format %s", self._work.drive, nsid, shape.format_words)
        try:
            self._work.nvme.format(
                self._node, nsid, index, erase=_NO_SECURE_ERASE, extended=shape.extended, dps=shape.dps
            )
        except ToolFailed as e:
            self._work.must_be_there(e)
            self._obstacles.append(str(e))
            return False
        return True

    def _remade(self, found: FoundLayout, recorded: DriveLayout) -> FoundLayout:
        """Replace all namespaces by the recorded ones, if the drive proves that it can; return the layout."""
        formats = self._formats(found)
        if (why_not := self._why_not_remade(recorded, formats)) is not None:
            self._obstacles.append(why_not)
            return found
        makers = [self._maker(shape, formats) for shape in recorded.namespaces]
        layout = NamespaceLayout(self._work)
        try:
            with HeldNamespaces(self._work, writable=False) as held:
                self._hold(held)
                allocated = allocated_namespaces(self._work.nvme, self._node, list(found.nsids))
                if allocated and not makers[0].has_command([shape.blocks for shape in recorded.namespaces]):
                    self._obstacles.append(f"it does not create namespaces ({makers[0].refusal})")
                    return found
                LOG.info("%s: replacing its namespaces %s by the recorded ones", self._work.drive, allocated)
                unit = recorded.namespaces[0].block_bytes
                sizes = zip(found.nsids, found.identities, strict=True)
                layout.delete_all(makers[0], allocated, {nsid: each.size_bytes // unit for nsid, each in sizes})
                nsids = self._created(makers, recorded.namespaces)
                if nsids is None:
                    self._obstacles.append("; ".join(str(maker.refusal) for maker in makers if maker.refusal))
                    former = found.layout.namespaces
                    nsids = self._created([self._maker(shape, formats) for shape in former], former) or []
                makers[0].attach(nsids)
        except ToolFailed as e:
            self._work.must_be_there(e)
            raise EraseFailed(
                f"{self._work.drive} does not have its recorded layout: {difference(recorded, found.layout)}. It "
                f"refused a step of restoring it: {e}; {layout.what_is_left()}"
            ) from e
        return self._look()

    def _formats(self, found: FoundLayout) -> Sequence[LBAFormat]:
        if found.identities:
            return found.identities[0].formats
        return self._work.nvme.identify_namespace(self._node, COMMON_NAMESPACE).formats

    def _why_not_remade(self, recorded: DriveLayout, formats: Sequence[LBAFormat]) -> str | None:
        """Return why the recorded namespaces cannot be created, or None if no reason is known."""
        if not self._identity.capabilities.namespace_management:
            return "it has no Namespace Management (OACS bit 3)"
        if recorded.unattached:
            return "unattached namespaces are on record without their sizes"
        if any(shape.write_protected for shape in recorded.namespaces):
            return "a write-protected namespace is on record"
        if any(shape.without_storage for shape in recorded.namespaces):
            return "a namespace with less capacity than its size is on record"
        if any(format_index(formats, shape) is None for shape in recorded.namespaces):
            return "it no longer has every recorded LBA format"
        if 0 < self._identity.tnvmcap < recorded.bytes:
            return f"it has {self._identity.tnvmcap} bytes (TNVMCAP), and {recorded.bytes} are on record"
        return None

    def _maker(self, shape: NamespaceShape, formats: Sequence[LBAFormat]) -> NamespaceMaker:
        flbas = flbas_of(format_index(formats, shape) or 0, extended=shape.extended)
        return NamespaceMaker(self._work, self._identity, flbas=flbas, dps=shape.dps)

    @staticmethod
    def _created(makers: Sequence[NamespaceMaker], shapes: Sequence[NamespaceShape]) -> list[int] | None:
        """Create namespaces of *shapes* and return their ids; None if the drive refuses one, after deleting all of
        them.
        """
        created: list[int] = []
        for maker, shape in zip(makers, shapes, strict=True):
            nsid = maker.create(shape.blocks)
            if nsid is None:
                for each in created:
                    maker.delete(each)
                return None
            created.append(nsid)
        return created
