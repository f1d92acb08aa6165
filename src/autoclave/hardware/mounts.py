"""What this host has mounted, and what it swaps to."""

import re
from dataclasses import dataclass
from pathlib import Path

from autoclave.exceptions import HardwareError
from autoclave.hardware.host import HostPaths

_OCTAL = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """A line of ``/proc/self/mountinfo`` (proc(5)).

    :param device: major:minor as the file system sees it; an invented number for btrfs and the like.
    :param source: what was mounted, in the words of whoever mounted it.
    """

    device: str
    source: str
    target: str
    fstype: str


def mounts(paths: HostPaths) -> list[Mount]:
    """What is mounted in this process's mount namespace.

    A line that cannot be understood says of the device that it names, and of no other, that it is mounted.

    :raises HardwareError: the kernel does not say.
    """
    file = paths.proc / "self/mountinfo"
    found = []
    for line in _lines(file):
        left, separator, right = line.partition(" - ")
        fields, more = left.split(" "), right.split(" ")
        if separator and len(fields) >= 6 and len(more) >= 2:
            found.append(Mount(fields[2], _plain(more[1]), _plain(fields[4]), more[0]))
        elif len(fields) > 2:
            found.append(Mount(fields[2], "", f"an unknown place by the line {line[:120]!r} of {file}", "unknown"))
    return found


def swaps(paths: HostPaths) -> list[str]:
    """The devices and files that are swapped to.

    :raises HardwareError: the kernel does not say.
    """
    return [_plain(line.split()[0]) for line in _lines(paths.proc / "swaps")[1:]]


def _lines(file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8", errors="backslashreplace")
    except OSError as e:
        raise HardwareError(f"cannot tell what this host uses: {file} cannot be read: {e.strerror}") from e
    return [line for line in text.split("\n") if line.strip()]


def _plain(text: str) -> str:
    """Undo the octal escapes of blanks, line ends and backslashes."""
    return _OCTAL.sub(lambda found: chr(int(found[1], 8)), text)
