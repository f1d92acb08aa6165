"""Manage the disk files of guests, in ``<data_dir>/instances/<uuid>/``.

A disk is a copy of ``<data_dir>/images/<uuid>``. The header of an image is checked before its use. A qcow2 image may
name other files, which QEMU opens as its own user: a tenant could read the host's files. So an image that names another
file is refused. So is a raw image that could be read as another format.
"""

import errno
import os
import shutil
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntFlag
from pathlib import Path

from autoclave.exceptions import AutoclaveError, GuestError, HardwareError
from autoclave.hardware.command import Commands
from autoclave.hardware.host import Deadline, HostPaths
from autoclave.rules.flavor_image import DiskFormat
from autoclave.rules.plain_text import excerpt
from autoclave.virt.guest import is_uuid

_MAGIC = b"QFI\xfb"
_HEADER = struct.Struct(">4sIQIIQI")
"""Magic, version, offset and size of the backing file's name, cluster bits, size, encryption."""
_FEATURES_AT = 72
_FEATURES = struct.Struct(">Q")


class _Incompatible(IntFlag):
    """List the features that a reader must support (qcow2 specification, incompatible_features)."""

    DIRTY = 1 << 0
    CORRUPT = 1 << 1
    EXTERNAL_DATA = 1 << 2
    COMPRESSION_TYPE = 1 << 3
    EXTENDED_L2 = 1 << 4


_HARMLESS = _Incompatible.DIRTY | _Incompatible.COMPRESSION_TYPE | _Incompatible.EXTENDED_L2


def virtual_size(image: Path, disk_format: DiskFormat) -> int:
    """Return the bytes of the disk that the guest sees.

    :raises ValueError: it has another format, or must not be used. The message follows the image's name.
    :raises OSError: it cannot be read.
    """
    with image.open("rb") as stream:
        head = stream.read(_FEATURES_AT + _FEATURES.size)
        size = stream.seek(0, 2)
    if disk_format is DiskFormat.QCOW2:
        return _qcow2_size(head)
    if head.startswith(_MAGIC):
        raise ValueError("has disk_format raw but is a qcow2 image: upload it with disk_format qcow2")
    return size


def _qcow2_size(head: bytes) -> int:
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        raise ValueError("has disk_format qcow2 but is not a qcow2 image: upload it with its own format")
    _, version, backing_file, _, _, size, encryption = _HEADER.unpack_from(head)
    if version not in (2, 3):
        raise ValueError(f"is a qcow2 image of version {version}; supported are 2 and 3")
    if backing_file:
        raise ValueError("has a backing file: flatten it with qemu-img convert")
    if encryption:
        raise ValueError("is encrypted, which is not supported: decrypt it with qemu-img convert")
    if version == 3:
        _judge_features(head)
    return int(size)


def _judge_features(head: bytes) -> None:
    if len(head) < _FEATURES_AT + _FEATURES.size:
        raise ValueError("is a qcow2 image with a truncated header: upload it again")
    (features,) = _FEATURES.unpack_from(head, _FEATURES_AT)
    if features & _Incompatible.EXTERNAL_DATA:
        raise ValueError("keeps its data in another file: flatten it with qemu-img convert")
    if features & _Incompatible.CORRUPT:
        raise ValueError("is marked corrupt: qemu-img check -r all may repair it")
    if unknown := features & ~int(_HARMLESS):
        raise ValueError(f"requires unsupported qcow2 features (0x{unknown:x}): convert it with qemu-img convert")


_PATIENCE = 60.0
"""Seconds for one resize, which only writes the image's tables."""
_LIMITS = ("prlimit", f"--as={1 << 30}", "--cpu=30", "--")
"""Limits of memory in bytes and of processor time in seconds: the tables that qemu-img reads come from a tenant."""


def grow(commands: Commands, disk: Path, size: int) -> None:
    """Grow a disk to *size* bytes, a multiple of 512. Its file grows only when it is written to.

    :param disk: a qcow2 image that :func:`autoclave.virt.disks.virtual_size` has accepted.
    :raises GuestError: the disk is unchanged, or broken.
    """
    arguments = ("resize", "-q", "-f", DiskFormat.QCOW2.value, str(disk.absolute()), str(size))
    try:
        done = commands.run((*_LIMITS, commands.find("qemu-img"), *arguments), deadline=Deadline.after(_PATIENCE))
    except HardwareError as error:
        raise GuestError(f"cannot resize {disk} to the size of its flavor: {error}") from error
    if done.returncode != 0:
        said = excerpt(done.stderr) or excerpt(done.stdout) or f"qemu-img ended with {done.returncode}"
        raise GuestError(f"cannot resize {disk} to the size of its flavor: {said}")


GIB = 1 << 30
_STEP = 4 << 20


class InstanceFiles:
    """Manage the files of the guests of one host.

    Every method raises :class:`~autoclave.exceptions.GuestError` if the file system refuses.

    :param data_dir: ``[agent] data_dir``.
    :param commands: runs qemu-img as this process's user; by default on this machine.
    """

    def __init__(self, data_dir: Path, commands: Commands | None = None) -> None:
        self._commands = commands or Commands(HostPaths())
        self._images = data_dir / "images"
        self.directory = data_dir / "instances"

    def disk(self, uuid: str) -> Path:
        """Return the path of the instance's disk."""
        return self._of(uuid) / "disk"

    def console_log(self, uuid: str) -> Path:
        """Return the path of the log of the guest's first serial port."""
        return self._of(uuid) / "console.log"

    def nvram(self, uuid: str) -> Path:
        """Return the path of the variables of its UEFI firmware, such as the boot order."""
        return self._of(uuid) / "nvram.fd"

    def remove_nvram(self, uuid: str) -> None:
        """Remove these variables, if any."""
        nvram = self.nvram(uuid)
        with _told(f"remove {nvram}"):
            nvram.unlink(missing_ok=True)

    def make_directory(self, uuid: str) -> None:
        """Create the instance's directory. QEMU, as another user, may traverse it, but only its owner may list it."""
        directory = self._of(uuid)
        with _told(f"make {directory}"):
            for path in (self.directory, directory):
                path.mkdir(mode=0o711, parents=True, exist_ok=True)

    def make_disk(
        self,
        uuid: str,
        image_uuid: str,
        disk_format: DiskFormat,
        size_gb: int = 0,
        before_replacing: Callable[[], None] = lambda: None,
    ) -> Path:
        """Create the instance's disk as a fresh copy of the image in its format, and return its path.

        The disk is replaced atomically. After a crash, the former disk is still there, and a running guest keeps its
        disk. The new one is durable when this method returns.

        :param size_gb: the size of the flavor's disk, to which the disk is grown; 0 for the image's size.
        :param before_replacing: called when the fresh disk is complete and the former one is still in place. If it
            raises, the former one is kept.
        :raises GuestError: also if the image is missing, refused, larger than *size_gb*, or cannot be grown.
        """
        image = self._images / _safe(image_uuid)
        size = self._size_of(image, disk_format)
        if size_gb and size > size_gb * GIB:
            raise GuestError(
                f"image {image_uuid} is a disk of {-(-size // GIB)} GiB, and the flavor has {size_gb}: use a flavor "
                "with a larger disk"
            )
        wanted = max(size, size_gb * GIB)
        self.make_directory(uuid)
        disk, fresh = self.disk(uuid), self._fresh(uuid)
        with _told(f"copy image {image_uuid} to {disk}"):
            try:
                _copy(image, fresh, wanted if disk_format is DiskFormat.RAW else None)
                if disk_format is DiskFormat.QCOW2 and wanted > size:
                    grow(self._commands, fresh, wanted)
                    _sync(fresh)
                before_replacing()
                fresh.replace(disk)
            except (OSError, AutoclaveError):
                fresh.unlink(missing_ok=True)
                raise
            for directory in (disk.parent, self.directory):
                _sync(directory)
        return disk

    def remove_unfinished(self, uuid: str) -> None:
        """Remove the incomplete disk of an interrupted :meth:`make_disk`, if any."""
        fresh = self._fresh(uuid)
        with _told(f"remove {fresh}"):
            fresh.unlink(missing_ok=True)

    def remove(self, uuid: str) -> None:
        """Remove all files of the instance, if any."""
        directory = self._of(uuid)
        with _told(f"remove {directory}"):
            try:
                shutil.rmtree(directory)
            except FileNotFoundError:
                return
            _sync(self.directory)

    def total_gb(self) -> int:
        """Return the size in GiB of the disks' file system, used or not."""
        with _told(f"measure {self.directory}"):
            self.directory.mkdir(mode=0o711, parents=True, exist_ok=True)
            return shutil.disk_usage(self.directory).total // GIB

    def _fresh(self, uuid: str) -> Path:
        return self._of(uuid) / "disk.new"

    def _of(self, uuid: str) -> Path:
        return self.directory / _safe(uuid)

    def _size_of(self, image: Path, disk_format: DiskFormat) -> int:
        try:
            return virtual_size(image, disk_format)
        except FileNotFoundError as error:
            raise GuestError(f"image {image.name} is not on this host: there is no {image}") from error
        except OSError as error:
            raise GuestError(f"cannot read the image {image}: {error.strerror}") from error
        except ValueError as error:
            raise GuestError(f"image {image.name} {error}") from error


def _safe(uuid: str) -> str:
    """Return *uuid* after verifying that it is safe as a file name."""
    if not is_uuid(uuid):
        raise GuestError(f"{uuid!r:.60} is not a UUID")
    return uuid


@contextmanager
def _told(deed: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = ": free space, or move [agent] data_dir to a larger file system" if full else ""
        raise GuestError(f"cannot {deed}: {error.strerror}{remedy}") from error


def _copy(source: Path, target: Path, size: int | None) -> None:
    """Copy *source* durably, without its holes; the copy has *size* bytes, by default as many as *source*."""
    with source.open("rb") as reader, open(target, "wb", opener=_private) as writer:
        length = os.fstat(reader.fileno()).st_size
        for begin, end in _extents(reader.fileno(), length):
            while begin < end:
                block = os.pread(reader.fileno(), min(_STEP, end - begin), begin)
                if not block:
                    raise OSError(errno.EIO, "the image became shorter while it was copied")
                writer.seek(begin)
                writer.write(block)
                begin += len(block)
        writer.truncate(length if size is None else size)
        writer.flush()
        os.fsync(writer.fileno())


def _extents(descriptor: int, length: int) -> Iterator[tuple[int, int]]:
    """Yield begin and end of each data extent of the file."""
    end = 0
    while end < length:
        try:
            begin = os.lseek(descriptor, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # only a hole follows
                return
            raise
        end = os.lseek(descriptor, begin, os.SEEK_HOLE)
        yield begin, end


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _sync(path: Path) -> None:
    """Flush a file, or the names in a directory, to the medium."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
