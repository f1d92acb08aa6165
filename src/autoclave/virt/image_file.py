"""What an image's file says of itself, read before anything trusts it.

A qcow2 image may name other files that QEMU then opens as its own user: with such an image a tenant would read the
host's files. So whatever names another file is refused, and so is a raw image that would be another format if it were
ever read as one.
"""

import struct
from enum import IntFlag
from pathlib import Path

from autoclave.rules.flavor_image import DiskFormat

_MAGIC = b"QFI\xfb"
_HEADER = struct.Struct(">4sIQIIQI")
"""Magic, version, offset and size of the backing file's name, cluster bits, size, encryption."""
_FEATURES_AT = 72
_FEATURES = struct.Struct(">Q")


class _Incompatible(IntFlag):
    """Features that a reader must know (qcow2 specification, incompatible_features)."""

    DIRTY = 1 << 0
    CORRUPT = 1 << 1
    EXTERNAL_DATA = 1 << 2
    COMPRESSION_TYPE = 1 << 3
    EXTENDED_L2 = 1 << 4


_HARMLESS = _Incompatible.DIRTY | _Incompatible.COMPRESSION_TYPE | _Incompatible.EXTENDED_L2


def virtual_size(image: Path, disk_format: DiskFormat) -> int:
    """The bytes of the disk that the guest sees.

    :raises ValueError: it is not of that format, or must not be used; in words that follow the image's name.
    :raises OSError: it cannot be read.
    """
    with image.open("rb") as stream:
        head = stream.read(_FEATURES_AT + _FEATURES.size)
        size = stream.seek(0, 2)
    if disk_format is DiskFormat.QCOW2:
        return _qcow2_size(head)
    if head.startswith(_MAGIC):
        raise ValueError("is told to be raw and is a qcow2 image: upload it with disk_format qcow2")
    return size


def _qcow2_size(head: bytes) -> int:
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        raise ValueError("is told to be qcow2 and is no qcow2 image")
    _, version, backing_file, _, _, size, encryption = _HEADER.unpack_from(head)
    if version not in (2, 3):
        raise ValueError(f"is a qcow2 image of version {version}; known are 2 and 3")
    if backing_file:
        raise ValueError("has a backing file: flatten it with qemu-img convert")
    if encryption:
        raise ValueError("is encrypted, and there is no key for it here")
    if version == 3:
        _judge_features(head)
    return int(size)


def _judge_features(head: bytes) -> None:
    if len(head) < _FEATURES_AT + _FEATURES.size:
        raise ValueError("is a qcow2 image that is cut off in its header")
    (features,) = _FEATURES.unpack_from(head, _FEATURES_AT)
    if features & _Incompatible.EXTERNAL_DATA:
        raise ValueError("keeps its data in another file: flatten it with qemu-img convert")
    if features & _Incompatible.CORRUPT:
        raise ValueError("is marked corrupt: qemu-img check -r all may repair it")
    if unknown := features & ~int(_HARMLESS):
        raise ValueError(f"needs qcow2 features that are not known here (0x{unknown:x})")
