"""Which programs of this host have a device node open."""

import os
import re
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

from autoclave.hardware.host import HostPaths
from autoclave.hardware.open_file import OpenFile


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
            node = _node(process / "fd" / descriptor, known, numbers)
            if node is None:
                continue
            earlier = found.get((node, int(pid)))
            writes = _writes(process / "fdinfo" / descriptor) or (earlier is not None and earlier.writes)
            program = _text(process / "comm").strip() or "a program"
            found[node, int(pid)] = OpenFile(node, int(pid), program, writes)
    return list(found.values())


def _node(descriptor: Path, known: Mapping[str, Path], numbers: Mapping[int, Path]) -> Path | None:
    """Which node a descriptor leads to."""
    try:
        target = os.readlink(descriptor)
    except OSError:
        return None
    # Only device nodes are followed: looking at a file on a dead network mount would hang.
    if target in known or not target.startswith("/dev/"):
        return known.get(target)
    number = _device_number(descriptor)
    return None if number is None else numbers.get(number)


def _device_number(path: Path) -> int | None:
    try:
        there = path.stat()
    except OSError:
        return None
    return there.st_rdev if stat.S_ISBLK(there.st_mode) else None


def _writes(fdinfo: Path) -> bool:
    found = re.search(r"^flags:\s*([0-7]+)$", _text(fdinfo), re.MULTILINE)
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
