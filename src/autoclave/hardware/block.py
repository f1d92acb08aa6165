"""Open block devices exclusively, and find the programs that have them open.

Reads bypass the page cache, so that they return the data on the medium.
"""

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import re
import stat
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from autoclave.exceptions import DeviceInUse, DeviceVanished, EraseFailed, HardwareError
from autoclave.hardware import sysfs
from autoclave.hardware.host import LARGEST_STEP, MARKER_BYTES, Disk, HostPaths, OpenFile

_Number = tuple[int, int]
"""The kind of a device node, and its device number."""

_RING = "anon_inode:[io_uring]"
_ENTRY = re.compile(r"\s+\d+: (.+)")


def programs_with_open(paths: HostPaths, nodes: Sequence[Path]) -> list[OpenFile]:
    """Return the programs that have one of *nodes* open, without this process.

    Use it to name a culprit, not to prove that a node is free. Programs start and end at any time, and those of other
    users are hidden without CAP_SYS_PTRACE. Only the exclusive open shows whether a disk is free.
    """
    if paths.helper is not None:
        return paths.helper.programs_with_open(nodes)
    known = {str(node): node for node in nodes}
    known |= {str(Path("/dev") / os.path.relpath(node, paths.dev)): node for node in nodes}
    numbers = {number: node for node in nodes if (number := _device_number(node)) is not None}
    found: dict[tuple[Path, int], OpenFile] = {}
    for pid in _listed(paths.proc):
        if not pid.isdigit() or int(pid) == os.getpid():
            continue
        process = paths.proc / pid
        for descriptor in _listed(process / "fd"):
            for node, may_write in _nodes(process, descriptor, known, numbers):
                earlier = found.get((node, int(pid)))
                writes = may_write or (earlier is not None and earlier.writes)
                program = _text(process / "comm").strip() or "a program"
                found[node, int(pid)] = OpenFile(node, int(pid), program, writes)
    return list(found.values())


def hidden_program(paths: HostPaths) -> int | None:
    """Return the process number of a program whose open files this process may not list, or None.

    A privileged helper has CAP_SYS_PTRACE and may list all.

    :raises HardwareError: the programs cannot be listed.
    """
    for process in [] if paths.helper is not None else sysfs.entries(paths.proc):
        if process.name.isdigit():
            try:
                os.listdir(process / "fd")
            except (FileNotFoundError, ProcessLookupError):  # the process has ended
                continue
            except OSError:
                return int(process.name)
    return None


def _nodes(
    process: Path, descriptor: str, known: Mapping[str, Path], numbers: Mapping[_Number, Path]
) -> list[tuple[Path, bool]]:
    """Return the nodes to which a descriptor leads, and whether it may write to them."""
    link, fdinfo = process / "fd" / descriptor, process / "fdinfo" / descriptor
    try:
        target = os.readlink(link)
    except OSError:
        return []
    if target == _RING:
        # Files registered with a ring stay open after their descriptor is closed. Their access mode is not shown.
        return [(node, True) for file in _registered(_text(fdinfo)) for node in _named(file, known)]
    node = known.get(target)
    # Follow device nodes only: a stat of a file on a dead network mount would hang.
    if node is None and target.startswith("/dev/") and (number := _device_number(link)) is not None:
        node = numbers.get(number)
    return [] if node is None else [(node, _writes(_text(fdinfo)))]


def _registered(fdinfo: str) -> Iterator[str]:
    """Yield the files that are registered with an io_uring: an indented list below its heading."""
    _, _, after = fdinfo.partition("UserFiles:")
    for line in after.splitlines()[1:]:
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            return
        yield entry[1]


def _named(file: str, known: Mapping[str, Path]) -> list[Path]:
    """Return the nodes of a registered file, which kernels before 6.3 show without its directory."""
    return list(dict.fromkeys(node for path, node in known.items() if file in (path, node.name)))


def _device_number(path: Path) -> _Number | None:
    try:
        there = path.stat()
    except OSError:
        return None
    kind = stat.S_IFMT(there.st_mode)
    return (kind, there.st_rdev) if kind in (stat.S_IFBLK, stat.S_IFCHR) else None


def _writes(fdinfo: str) -> bool:
    found = re.search(r"^flags:\s*([0-7]+)$", fdinfo, re.MULTILINE)
    return found is not None and int(found[1], 8) & os.O_ACCMODE != os.O_RDONLY


def _listed(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


CHUNK = 16 * 1024 * 1024
"""The bytes of the largest single read, enough to keep the drive busy."""
_LOOKS = (0.1, 0.4)
"""Seconds between attempts to open a disk that another process has open exclusively."""
_ALIGNMENT = 4096
"""The alignment that direct I/O accepts on every drive: a multiple of any logical block size."""
_BLKGETSIZE64 = 0x80081272
_BLKZEROOUT = 0x127F
_GONE = frozenset({errno.ENOENT, errno.ENODEV, errno.ENXIO})
_NOT_WRITABLE = frozenset({errno.EROFS, errno.EPERM, errno.EACCES, errno.EBADF})


class BlockDevice:
    """Access a disk that this process itself holds open; see :class:`Disk`."""

    def __init__(self, path: Path, fd: int, size: int) -> None:
        self.path = path
        self.size = size
        self._fd = fd
        self._piece = _Piece()

    def nonzero_in(self, offset: int, length: int) -> int | None:
        """Implement :meth:`Disk.nonzero_in`."""
        for start, stop in self._ranges(offset, length):
            self._read_into_piece(start, stop)
            found = self._piece.first_nonzero(max(offset - start, 0), stop - start)
            if found is not None:
                return start + found
        return None

    def zero(self, offset: int, length: int) -> None:
        """Implement :meth:`Disk.zero`."""
        if length > LARGEST_STEP:
            raise ValueError(f"{length} bytes of {self.path} exceed the limit of one zeroing call, {LARGEST_STEP}")
        self._check_range(offset, length)
        try:
            self._zero_out(offset, length)
        except OSError as e:
            raise self._failure(e, f"overwritten at offset {offset}") from e

    def _zero_out(self, offset: int, length: int) -> None:
        # The kernel sends Write Zeroes without deallocation, in the largest size that the controller accepts. If the
        # drive has no such command, the kernel writes the zeroes.
        fcntl.ioctl(self._fd, _BLKZEROOUT, struct.pack("=QQ", offset, length))

    def write_marker(self, offset: int, seed: bytes) -> None:
        """Implement :meth:`Disk.write_marker`."""
        self._check_range(offset, MARKER_BYTES)
        try:
            with memoryview(self._piece.memory) as buffer, buffer[:MARKER_BYTES] as marker:
                marker[:] = _marker(offset, seed)
                written = os.pwritev(self._fd, [marker], offset)
        except OSError as e:
            raise self._failure(e, f"written at offset {offset}") from e
        if written != MARKER_BYTES:
            raise EraseFailed(f"{self.path} took {written} of {MARKER_BYTES} bytes at offset {offset}")

    def has_marker(self, offset: int, seed: bytes) -> bool:
        """Implement :meth:`Disk.has_marker`."""
        self._check_range(offset, MARKER_BYTES)
        self._read_into_piece(offset, offset + MARKER_BYTES)
        return self._piece.memory[:MARKER_BYTES] == _marker(offset, seed)

    def flush(self) -> None:
        """Implement :meth:`Disk.flush`."""
        try:
            os.fsync(self._fd)
        except OSError as e:
            raise self._failure(e, "flushed to the medium") from e

    def _ranges(self, offset: int, length: int) -> list[tuple[int, int]]:
        """Split the range for direct I/O. The first piece begins aligned, so perhaps before the range."""
        self._check_range(offset, length)
        end = offset + length
        return [(start, min(end, start + CHUNK)) for start in range(offset - offset % _ALIGNMENT, end, CHUNK)]

    def _check_range(self, offset: int, length: int) -> None:
        if not 0 <= offset <= offset + length <= self.size:
            raise ValueError(f"{self.path} has {self.size} bytes, fewer than {length} from offset {offset}")
        self._check_still_there()

    def _read_into_piece(self, start: int, stop: int) -> None:
        """Perform one direct read from the aligned offset *start* to at least *stop*."""
        whole = -(-(stop - start) // _ALIGNMENT) * _ALIGNMENT
        try:
            # Release both views here: the traceback of a failed read would keep them, and with them the memory.
            with memoryview(self._piece.memory) as buffer, buffer[:whole] as target:
                got = os.preadv(self._fd, [target], start)
        except OSError as e:
            raise self._failure(e, f"read at offset {start}") from e
        if got < stop - start:
            raise EraseFailed(
                f"{self.path} ends at offset {start + got}, although it reported a size of {self.size} bytes"
            )

    def _failure(self, error: OSError, done: str) -> HardwareError:
        """Convert an error of the kernel; *done* names the failed operation."""
        self._check_still_there()
        if error.errno in _GONE:
            return DeviceVanished(f"{self.path} went away while it was being {done}")
        reason = f"it is read-only: {error.strerror}" if error.errno in _NOT_WRITABLE else error.strerror
        return EraseFailed(f"{self.path} cannot be {done}: {reason}")

    def _check_still_there(self) -> None:
        """Check that the path still leads to the open disk.

        A removed drive may still answer with EIO, and an unlinked file even with data.
        """
        try:
            there, ours = os.stat(self.path), os.fstat(self._fd)
        except OSError as e:
            raise DeviceVanished(f"{self.path} is no longer there: {e.strerror}") from e
        same = there.st_rdev == ours.st_rdev if stat.S_ISBLK(ours.st_mode) else os.path.samestat(there, ours)
        if not same:
            raise DeviceVanished(f"{self.path} is no longer the device that was opened")

    def close(self) -> None:
        """Close the disk."""
        os.close(self._fd)
        self._piece.close()


def _marker(offset: int, seed: bytes) -> bytes:
    """Return bytes that a drive cannot contain by chance; they differ for each offset."""
    return hashlib.shake_256(seed + offset.to_bytes(8)).digest(MARKER_BYTES)


class _Piece:
    """Hold the memory for one read, aligned to pages as direct I/O requires."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, CHUNK)
        self._pinned = ctypes.c_char.from_buffer(self.memory)
        self._address = ctypes.addressof(self._pinned)

    def first_nonzero(self, begin: int, end: int) -> int | None:
        """Return the first position from *begin* to *end* that is not zero, or None."""
        first = min(begin + _ALIGNMENT, end)
        # The first page must be zero, and every byte must equal the byte one page before. This takes one pass over the
        # memory. The C library's comparison copies nothing. The bytes are searched only if one of them differs.
        if self.memory[begin:first] == bytes(first - begin) and not _memcmp(
            self._address + begin, self._address + first, end - first
        ):
            return None
        return next(n for n in range(begin, end) if self.memory[n])

    def close(self) -> None:
        """Free the memory."""
        del self._pinned
        self.memory.close()


_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t
_memcmp.restype = ctypes.c_int


@contextmanager
def open_block(paths: HostPaths, path: Path, *, writable: bool = True) -> Iterator[Disk]:
    """Hold the disk at *path* open exclusively, against mounts, swap, volumes and other exclusive opens.

    A simulated host has disks of its own (:attr:`HostPaths.hold_disk`).

    :param writable: also verify that the disk can be written. Read-only checks leave it out: udev takes the close of a
        writable descriptor for a change, and probes the disk again.
    :raises DeviceVanished: the disk does not exist.
    :raises DeviceInUse: another program or the kernel has it open exclusively.
    :raises HardwareError: it is read-only, or cannot be opened for another reason.
    """
    disk = _open(paths, path, writable=writable)
    try:
        yield disk
    finally:
        disk.close()


def open_soon(paths: HostPaths, path: Path, *, writable: bool) -> Disk:
    """Open the disk as :func:`open_block` does, until it is closed, and retry while it is in use.

    Other programs may hold it for a short check only, as this function does.
    """
    for patience in (*_LOOKS, None):
        try:
            return _open(paths, path, writable=writable)
        except DeviceInUse:
            if patience is None:
                raise
            time.sleep(patience)
    raise AssertionError("the last look returns or raises")


def _open(paths: HostPaths, path: Path, *, writable: bool) -> Disk:
    if paths.helper is not None:
        return paths.helper.open_block(path, writable=writable)
    return (paths.hold_disk or hold)(paths, path, writable=writable)


def hold(paths: HostPaths, path: Path, *, writable: bool) -> BlockDevice:
    """Open the disk as :func:`open_block` does, in this process, until it is closed."""
    return BlockDevice(path, *claim(paths, path, stat.S_ISBLK, _claimed, writable=writable))


def _claimed(path: Path, access: int) -> tuple[int, int]:
    fd = os.open(path, access | os.O_EXCL | os.O_DIRECT)
    try:
        return fd, struct.unpack("=Q", fcntl.ioctl(fd, _BLKGETSIZE64, b"\0" * 8))[0]
    except OSError:
        os.close(fd)
        raise


def claim(
    paths: HostPaths,
    path: Path,
    is_disk: Callable[[int], bool],
    claimed: Callable[[Path, int], tuple[int, int]],
    *,
    writable: bool,
) -> tuple[int, int]:
    """Return a descriptor that holds the disk at *path*, and the disk's size.

    :param is_disk: return whether a file mode is that of a disk.
    :param claimed: open the path with the given access flags; return the descriptor and the size.
    :raises HardwareError: as :func:`open_block`.
    """
    try:
        if not is_disk(os.stat(path).st_mode):
            raise HardwareError(f"{path} is not a block device")
        return claimed(path, os.O_CLOEXEC | (os.O_RDWR if writable else os.O_RDONLY))
    except OSError as e:
        raise _refusal(paths, path, e) from e


def _refusal(paths: HostPaths, path: Path, error: OSError) -> HardwareError:
    if error.errno in _GONE:
        return DeviceVanished(f"there is no disk at {path}: {error.strerror}")
    if error.errno in (errno.EBUSY, errno.EWOULDBLOCK):
        programs = ", ".join(map(str, programs_with_open(paths, [path])))
        who = programs or "the kernel or a program that cannot be identified (a mount elsewhere, ZFS, LVM, RAID)"
        line = f"{path} is open exclusively by {who}"
        return DeviceInUse(line, [line])
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return HardwareError(f"{path} is read-only or may not be opened: {error.strerror}")
    return HardwareError(f"{path} cannot be opened: {error.strerror}")
