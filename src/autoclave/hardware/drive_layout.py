"""The layout that a drive has now, as the drive itself tells it."""

from dataclasses import dataclass
from pathlib import Path

from autoclave.hardware.nvme_cli import NvmeCli
from autoclave.hardware.nvme_json import ControllerIdentity, NamespaceIdentity
from autoclave.rules.drive_layout import DriveLayout, NamespaceShape


@dataclass(frozen=True)
class FoundLayout:
    """What a look at a drive has shown.

    :param nsids: ids of the attached namespaces.
    :param identities: what Identify Namespace says of each, in the same order.
    """

    layout: DriveLayout
    nsids: tuple[int, ...]
    identities: tuple[NamespaceIdentity, ...]


def read_layout(nvme: NvmeCli, controller: Path, identity: ControllerIdentity) -> FoundLayout:
    """Ask a drive for its layout.

    :param identity: what Identify Controller says of it.
    :raises ToolError: it does not say.
    """
    nsids = tuple(nvme.list_namespaces(controller))
    unattached = 0
    if identity.capabilities.namespace_management:
        unattached = len(set(nvme.list_namespaces(controller, allocated=True)) - set(nsids))
    identities = tuple(nvme.identify_namespace(controller, nsid) for nsid in nsids)
    return FoundLayout(DriveLayout(tuple(map(_shape, identities)), unattached), nsids, identities)


def format_index(namespace: NamespaceIdentity, shape: NamespaceShape) -> int | None:
    """Return the index of the LBA format that *shape* has; None: the namespace does not offer it."""
    wanted = (shape.metadata_bytes, shape.block_bytes)
    formats = enumerate((each.metadata_bytes, each.block_bytes) for each in namespace.formats)
    return next((index for index, offered in formats if offered == wanted), None)


def _shape(namespace: NamespaceIdentity) -> NamespaceShape:
    return NamespaceShape(
        blocks=namespace.nsze,
        block_bytes=namespace.lba_bytes,
        metadata_bytes=namespace.format.metadata_bytes,
        extended=namespace.extended,
        dps=namespace.dps,
        write_protected=namespace.write_protected,
    )
