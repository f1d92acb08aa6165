"""The layout that a drive has now, read by commands that change nothing."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oslo_log import log as logging

from autoclave.exceptions import ToolFailed
from autoclave.hardware.nvme_cli import NvmeCli, refused_as_unsupported
from autoclave.hardware.nvme_json import ControllerIdentity, LBAFormat, NamespaceIdentity
from autoclave.rules.drive_layout import DriveLayout, NamespaceShape

LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class FoundLayout:
    """The layout of a drive, with the names that its parts have now.

    :param nsids: ids of the attached namespaces.
    :param identities: what Identify Namespace says of each, in the same order.
    """

    layout: DriveLayout
    nsids: tuple[int, ...]
    identities: tuple[NamespaceIdentity, ...]


def read_layout(nvme: NvmeCli, controller: Path, identity: ControllerIdentity) -> FoundLayout:
    """Ask a drive for its layout.

    :raises ToolError: it does not answer, or nvme-cli does not work.
    """
    nsids = nvme.list_namespaces(controller)
    unattached = 0
    if identity.capabilities.namespace_management:
        # Without the list, what is attached is taken for all that there is.
        unattached = len(set(allocated_namespaces(nvme, controller, nsids)) - set(nsids))
    identities = tuple(nvme.identify_namespace(controller, nsid) for nsid in nsids)
    layout = DriveLayout(tuple(map(_shape, identities)), unattached, identity.unvmcap)
    return FoundLayout(layout, tuple(nsids), identities)


def allocated_namespaces(nvme: NvmeCli, controller: Path, attached: list[int]) -> list[int]:
    """The namespaces that exist, attached or not, of a drive that has Namespace Management.

    :raises ToolError: it does not answer, or lists neither kind.
    """
    try:
        return nvme.list_namespaces(controller, allocated=True)
    except ToolFailed as e:
        if not attached or not refused_as_unsupported(e):
            raise
        LOG.warning("%s claims Namespace Management, but does not list what is not attached: %s", controller, e)
        return attached


def format_index(formats: Sequence[LBAFormat], shape: NamespaceShape) -> int | None:
    """The index of the LBA format of *shape* in a drive's list of *formats*; None: it has none with these bytes."""
    wanted = LBAFormat(metadata_bytes=shape.metadata_bytes, block_bytes=shape.block_bytes)
    same = [index for index, each in enumerate(formats) if each == wanted]
    return shape.lba_format if shape.lba_format in same else next(iter(same), None)


def flbas_of(index: int, *, extended: bool = False) -> int:
    """FLBAS of the LBA format *index*. Since NVMe 2.0, bits 6:5 extend it beyond 16 formats."""
    return (index & 0xF) | (index >> 4) << 5 | extended << 4


def _shape(namespace: NamespaceIdentity) -> NamespaceShape:
    return NamespaceShape(
        blocks=namespace.nsze,
        block_bytes=namespace.lba_bytes,
        metadata_bytes=namespace.format.metadata_bytes,
        extended=namespace.extended and namespace.format.metadata_bytes > 0,  # else the bit says nothing
        dps=namespace.dps,
        write_protected=namespace.write_protected,
        without_storage=max(0, namespace.nsze - namespace.ncap),
        lba_format=namespace.format_index,
    )
