"""Judge the settings and the identity of a host.

The settings decide whether the host's own tools would use the disk of a drive that a guest returned. Identity hints
prove nothing alone: images are cloned, and firmware has defaults.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

from autoclave.rules.pci_address import PCIAddress

SOME_DISK = "nvme99n1"
"""A possible name of the returned disk: the kernel numbers drives anew each time."""

_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_SHORTEST_KEYWORD = 3
_COMMENT = re.compile(r'("[^"]*")|[#!].*')
_RULE_KEY = re.compile(r'(\w+(?:\{[^}]*\})?)\s*(==|!=|[-+:]?=)\s*"([^"]*)"')


def names_of(address: PCIAddress) -> list[str]:
    """Return the names that udev and the kernel give to the first disk of the drive in a slot."""
    return [f"/dev/disk/by-path/pci-{address}-nvme-1", f"/dev/{SOME_DISK}"]


def lvm_accepts(filter_text: str, names: Sequence[str]) -> bool:
    """Return whether a filter, as lvmconfig prints it, lets LVM use a device of these names.

    The first pattern that finds a name decides about that name, and one accepted name is enough.

    :raises ValueError: the filter is not understood.
    """
    try:
        found = json.loads(filter_text)
    except ValueError as error:
        raise ValueError(f"the filter {filter_text!r:.60} is not understood: {error}") from None
    patterns = [_lvm_pattern(text) for text in (found if isinstance(found, list) else [found])]
    decided = [accepts for name in names if (accepts := _first(patterns, name)) is not None]
    return any(decided) or not decided


def md_assembles(text: str) -> bool:
    """Return whether mdadm.conf lets mdadm assemble arrays that it does not list.

    Only ``-all`` before every allowed word prevents this: a guest can use any metadata version and host name.
    """
    for words in _md_lines(text):
        keyword = words[0].lower()
        if len(keyword) >= _SHORTEST_KEYWORD and "auto".startswith(keyword):
            allowed = next((word for word in words[1:] if not word.startswith("-") or word == "-all"), None)
            return allowed != "-all"
    return True


def multipath_takes(text: str) -> bool:
    """Return whether multipath.conf lets multipath use NVMe disks.

    It does without a blacklist by node for them, or with an exception from it.

    :raises ValueError: a pattern is not understood.
    """
    plain = "\n".join(_COMMENT.sub(lambda found: found[1] or "", line) for line in text.splitlines())
    return not _devnode_in(plain, "blacklist") or _devnode_in(plain, "blacklist_exceptions")


def udisks_ignores(rules: str, address: PCIAddress) -> bool:
    """Return whether a udev rule sets ``UDISKS_IGNORE`` for disks of the slot, or for all NVMe disks.

    A rule with other conditions, such as a serial number, does not count: it may match only the host's own disk.
    """
    ours = {"KERNELS": str(address), "KERNEL": SOME_DISK, "SUBSYSTEM": "block", "SUBSYSTEMS": "pci", "ACTION": "add"}
    for line in rules.replace("\\\n", " ").splitlines():
        keys = [] if line.lstrip().startswith("#") else _RULE_KEY.findall(line)
        if any(name == "ENV{UDISKS_IGNORE}" and value == "1" for name, operator, value in keys if "==" not in operator):
            asked = [each for each in keys if each[1] in ("==", "!=")]
            named = any(name in ("KERNELS", "KERNEL") and operator == "==" for name, operator, _ in asked)
            if named and all(_holds(ours.get(name), operator, value) for name, operator, value in asked):
                return True
    return False


def _holds(found: str | None, operator: str, patterns: str) -> bool:
    """Return whether a key of a udev rule matches; False if its value *found* is unknown."""
    if found is None:
        return False
    return any(fnmatchcase(found, pattern) for pattern in patterns.split("|")) == (operator == "==")


def _lvm_pattern(text: object) -> tuple[bool, re.Pattern[str]]:
    if not isinstance(text, str) or len(text) < len("a||") or text[0] not in "ar":
        raise ValueError(f"{text!r} is no pattern of a filter")
    if text[-1] != _BRACKETS.get(text[1], text[1]):
        raise ValueError(f"the pattern {text!r} of a filter does not end as it begins")
    return text[0] == "a", _compiled(text[2:-1])


def _first(patterns: Sequence[tuple[bool, re.Pattern[str]]], name: str) -> bool | None:
    return next((accepts for accepts, pattern in patterns if pattern.search(name)), None)


def _md_lines(text: str) -> Iterator[list[str]]:
    """Yield the words of each line, joined with those of its indented continuation lines."""
    words: list[str] = []
    for line in text.splitlines():
        found = line.partition("#")[0].split()
        if found and not line[0].isspace():
            if words:
                yield words
            words = found
        else:
            words += found
    if words:
        yield words


def _devnode_in(text: str, section: str) -> bool:
    # Sections of devices inside a section have braces of their own.
    bodies = re.findall(rf"(?<!\w){section}\s*\{{((?:[^{{}}]|\{{[^{{}}]*\}})*)\}}", text)
    for body in bodies:
        for pattern in re.findall(r'\bdevnode\s+"?([^"\s}]+)"?', re.sub(r"\{[^{}]*\}", "", body)):
            inverted = pattern.startswith("!")
            wanted = ".*" if pattern == "*" else pattern.removeprefix("!")
            if (_compiled(wanted).search(SOME_DISK) is None) == inverted:
                return True
    return False


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"the pattern {pattern!r} is not understood: {error}") from None


_DIGITS = re.compile(r"[0-9a-f]{32}")


class HostHints(NamedTuple):
    """Hold the machine id of the operating system and the product UUID of the firmware; None if unknown."""

    machine_id: str | None
    product_uuid: str | None


NO_HINTS = HostHints(None, None)


def hint(text: str) -> str | None:
    """Return the 32 hexadecimal digits of a hint, or None if it is empty, malformed, or one repeated digit."""
    digits = text.strip().replace("-", "").lower()
    return digits if _DIGITS.fullmatch(digits) and len(set(digits)) > 1 else None


def former_name(host: str, hints: HostHints, known: Mapping[str, HostHints]) -> str | None:
    """Return the other name under which this machine is on record, if both hints agree.

    A hint that several hosts share is ignored.

    :param known: the hints of all hosts on record, by name.
    """
    if None in hints:
        return None
    by_machine_id = {name for name, other in known.items() if other.machine_id == hints.machine_id}
    by_product_uuid = {name for name, other in known.items() if other.product_uuid == hints.product_uuid}
    if len(by_machine_id) != 1 or by_machine_id != by_product_uuid:
        return None
    (name,) = by_machine_id
    return None if name == host else name
