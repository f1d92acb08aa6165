"""Whether a ZFS label is on a disk. It does not mean that a pool is imported: a tenant may have left it."""

from pathlib import Path

from autoclave.hardware.host import HostPaths

_MAGIC = 0x00BAB10C
"""Of an uberblock ("ZFS On-Disk Specification", 1.3)."""
_ARRAY = range(128 * 1024, 256 * 1024, 1024)
"""Where the uberblocks of the first label may begin."""


def is_on(paths: HostPaths, node: Path) -> bool:
    """Whether *node* carries a label; False also where it cannot be read, since this only explains."""
    if paths.helper is not None:
        return paths.helper.has_zfs_label(node)
    try:
        with open(node, "rb") as disk:
            label = disk.read(_ARRAY.stop)
    except OSError:
        return False
    return any(
        label[offset : offset + 8] in (_MAGIC.to_bytes(8, "little"), _MAGIC.to_bytes(8, "big")) for offset in _ARRAY
    )
