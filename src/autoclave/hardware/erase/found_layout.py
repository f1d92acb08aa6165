"""Read the current layout of a drive by commands that change nothing."""

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
    """Hold the layout of a drive, with the current ids of its namespaces.

    :param nsids: ids of the attached namespaces.
    :param identities: Identify Namespace of each, in the same order.
    """

    layout: DriveLayout
    nsids: tuple[int, ...]
    identities: tuple[NamespaceIdentity, ...]


def read_layout(nvme: NvmeCli, controller: Path, identity: ControllerIdentity) -> FoundLayout:
    """Read the layout of a drive.

    :raises ToolError: the drive does not answer, or nvme-cli fails.
    """
    nsids = nvme.list_namespaces(controller)
    unattached = 0
    if identity.capabilities.namespace_management:
        # Without Namespace Management there is no list, so assume that all namespaces are attached.
        unattached = len(set(allocated_namespaces(nvme, controller, nsids)) - set(nsids))
    identities = tuple(nvme.identify_namespace(controller, nsid) for nsid in nsids)
    layout = DriveLayout(tuple(map(_shape, identities)), unattached, identity.unvmcap)
    return FoundLayout(layout, tuple(nsids), identities)


def allocated_namespaces(nvme: NvmeCli, controller: Path, attached: list[int]) -> list[int]:
    """Return all namespaces, attached or not, of a drive that has Namespace Management.

    :raises ToolError: the drive does not answer, or lists neither kind.
    """
    try:
        return nvme.list_namespaces(controller, allocated=True)
    except ToolFailed as e:
        if not attached or not refused_as_unsupported(e):
            raise
        LOG.warning("%s claims Namespace Management, but does not list what is not attached: %s", controller, e)
        return attached


def format_index(formats: Sequence[LBAFormat], shape: NamespaceShape) -> int | None:
    """Return the index of the LBA format of *shape* in a drive's *formats*, or None if it is missing."""
    wanted = LBAFormat(metadata_bytes=shape.metadata_bytes, block_bytes=shape.block_bytes)
    same = [index for index, each in enumerate(formats) if each == wanted]
    return shape.lba_format if shape.lba_format in same else next(iter(same), None)


def flbas_of(index: int, *, extended: bool = False) -> int:
    """Return FLBAS of the LBA format *index*. Since NVMe 2.0, bits 6:5 extend it beyond 16 formats."""
    return (index & 0xF) | (index >> 4) << 5 | extended << 4


def _shape(namespace: NamespaceIdentity) -> NamespaceShape:
    return NamespaceShape(
        blocks=namespace.nsze,
        block_bytes=namespace.lba_bytes,
        metadata_bytes=namespace.format.metadata_bytes,
        extended=namespace.extended and namespace.format.metadata_bytes > 0,  # without metadata the bit has no meaning
        dps=namespace.dps,
        write_protected=namespace.write_protected,
        without_storage=max(0, namespace.nsze - namespace.ncap),
        lba_format=namespace.format_index,
    )
