"""Which programs of this host have a device node open."""

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from autoclave.hardware import attribute
from autoclave.hardware.host import HostPaths
from autoclave.hardware.open_file import OpenFile

_Number = tuple[int, int]
"""Kind of a device node, and its device number."""

_RING = "anon_inode:[io_uring]"
_ENTRY = re.compile(r"\s+\d+: (.+)")


def programs_with_open(paths: HostPaths, nodes: Sequence[Path]) -> list[OpenFile]:
    """The programs that have one of *nodes* open, the process that looks left out.

    For naming a culprit, not for ruling one out: programs come and go, and those of other users are
    not shown without CAP_SYS_PTRACE. Whether a disk is free is for the exclusive open.
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
    """The process number of a program whose open files this process may not list; None: it may list those of all.

    A privileged helper has CAP_SYS_PTRACE, and may.

    :raises HardwareError: the programs cannot be listed.
    """
    for process in [] if paths.helper is not None else attribute.entries(paths.proc):
        if process.name.isdigit():
            try:
                os.listdir(process / "fd")
            except (FileNotFoundError, ProcessLookupError):  # it has ended
                continue
            except OSError:
                return int(process.name)
    return None


def _nodes(
    process: Path, descriptor: str, known: Mapping[str, Path], numbers: Mapping[_Number, Path]
) -> list[tuple[Path, bool]]:
    """Which nodes a descriptor leads to, and whether they may be written by it."""
    link, fdinfo = process / "fd" / descriptor, process / "fdinfo" / descriptor
    try:
        target = os.readlink(link)
    except OSError:
        return []
    if target == _RING:
        # What is registered with a ring stays open when its descriptor is closed. How it was opened is not shown.
        return [(node, True) for file in _registered(_text(fdinfo)) for node in _named(file, known)]
    node = known.get(target)
    # Only device nodes are followed: looking at a file on a dead network mount would hang.
    if node is None and target.startswith("/dev/") and (number := _device_number(link)) is not None:
        node = numbers.get(number)
    return [] if node is None else [(node, _writes(_text(fdinfo)))]


def _registered(fdinfo: str) -> Iterator[str]:
    """The files that are registered with an io_uring: a list, indented, below its heading."""
    _, _, after = fdinfo.partition("UserFiles:")
    for line in after.splitlines()[1:]:
        entry = _ENTRY.fullmatch(line)
        if entry is None:
            return
        yield entry[1]


def _named(file: str, known: Mapping[str, Path]) -> list[Path]:
    """The node of a registered file, which kernels before 6.3 show without its directory."""
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
