"""Creating namespaces on a drive, in the sizes that it grants.

TNVMCAP is no size that a drive must grant: firmware keeps a part to itself, rounds to a granularity that it need not
report, or refuses a size that does not fit it. Only a try shows which sizes it grants.
"""

from collections.abc import Iterator, Sequence

from oslo_log import log as logging

from autoclave.exceptions import EraseFailed, ToolFailed
from autoclave.hardware.erase.work import EraseWork
from autoclave.hardware.nvme_cli import (
    INSUFFICIENT_CAPACITY,
    INVALID_FIELD,
    INVALID_FORMAT,
    INVALID_OPCODE,
    NSID_UNAVAILABLE,
)
from autoclave.hardware.nvme_json import ControllerIdentity

LOG = logging.getLogger(__name__)

NO_ROOM = frozenset({INSUFFICIENT_CAPACITY, NSID_UNAVAILABLE})
"""How a drive refuses to create a namespace although it has the command."""

_NOT_GRANTED = NO_ROOM | {INVALID_FIELD, INVALID_FORMAT}
"""How drives refuse a size. The last two stand for a size that does not fit the granularity."""


class NamespaceMaker:
    """Creates and deletes namespaces of one drive.

    :param identity: the controller's.
    :param flbas: the LBA format of what is created.
    :param dps: protection information of what is created.
    :param step: blocks of which a size must be a multiple, where the drive reports it.
    :attr refusal: the drive's latest refusal of a size.
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
        """Create a namespace, attached to nothing, and return its id; None: the drive does not grant this size.

        :raises ToolFailed: the drive refuses for another reason, such as not having the command.
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
        """Attach namespaces to the controller, and have the kernel look at them."""
        for nsid in nsids:
            self._work.must_be_same_drive()
            self._nvme.attach_namespace(self._node, nsid, self._identity.cntlid)
        self._nvme.rescan(self._node)

    def delete(self, nsid: int) -> None:
        """Delete a namespace."""
        self._work.must_be_same_drive()
        self._nvme.delete_namespace(self._node, nsid)

    def has_command(self, sizes: Sequence[int]) -> bool:
        """Whether the drive can create namespaces at all, found out without deleting any that there is.

        :param sizes: in blocks; those tried.
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
        """Whether the drive grants any namespace within *blocks* that belong to none. What was tried is deleted."""
        for size in (blocks, *_halving(blocks, self._step)):
            created = self.create(size)
            if created is not None:
                self.delete(created)
                return True
        return False

    def create_largest(self, blocks: int, *, known: Sequence[int] = ()) -> int:
        """Create the largest namespace that the drive grants, and return its id.

        :param blocks: more than these it cannot have.
        :param known: sizes that it has granted before.
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
        """Create namespaces in *blocks* that belong to none, until the drive grants no further one; their ids."""
        created: list[int] = []
        left = blocks
        for size in (blocks, *_halving(blocks, self._step)):
            if 0 < size <= left and (nsid := self.create(size)) is not None:
                created.append(nsid)
                left -= size
        return created

    def _largest_granted(self, blocks: int) -> int:
        """The largest size granted, found bit by bit from the highest: so each try is as aligned as it can be."""
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
    """Sizes within *blocks*: *step* times each power of two, the largest first."""
    power = (blocks // step).bit_length() - 1
    while power >= 0:
        yield step << power
        power -= 1
