"""Read and check the policy files: ``[oslo_policy] policy_file``, and those in ``policy_dirs``.

oslo.policy does not read them, because it accepts an empty rule as "every caller" and an unknown rule as a rule. It
also reports a broken file as a fault of each request.
"""

import os
import stat
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from autoclave.conf import is_set
from autoclave.exceptions import InvalidConfiguration
from autoclave.objects.base import RequestContext
from autoclave.rules.policy_text import FileRule, faults_of, rules_of

OPTION = "[oslo_policy] policy_file"
_DIRECTORIES = "[oslo_policy] policy_dirs"

LARGEST_FILE = 1 << 20
"""Limit the bytes of one policy file."""

_SHOWN_FAULTS = 10

Stamps = tuple[tuple[str, tuple[int, ...] | None], ...]
"""Map each file, policy_file first, to a stamp that changes with the file; None: there is no such file."""


class PolicyFiles:
    """Read the operator's policy files.

    :param defaults: every rule that requests are checked against, with its default.
    """

    def __init__(self, conf: Any, defaults: Mapping[str, str]) -> None:
        self._conf = conf
        self._defaults = defaults
        self._kinds = {"rule", "role", *RequestContext().to_policy_values()}
        self._kinds |= _installed_kinds()
        self._required = is_set(conf, "oslo_policy", "policy_file")

    def stamps(self) -> Stamps:
        """Return the stamps of the files. Equal stamps mean unchanged files.

        :raises InvalidConfiguration: a directory of policy files cannot be read.
        """
        return tuple((path, _stamp(path)) for path in self._paths())

    def read(self, stamps: Stamps) -> dict[str, str]:
        """Return the rules that the files of *stamps* change, by name.

        :raises InvalidConfiguration: a file is missing, cannot be read, or has a rule that cannot be used; names the
            file and the line.
        """
        rules: list[FileRule] = []
        faults: list[str] = []
        (main, there), *others = stamps
        if there is not None:
            self._required = True  # without it, the defaults would apply silently
        elif self._required:
            raise InvalidConfiguration(f"{main} does not exist; create it, or remove the option", option=OPTION)
        for path in (*([main] if there is not None else []), *(path for path, _ in others)):
            found, wrong = rules_of(path, _text(path))
            rules += found
            faults += wrong
        faults += faults_of(rules, self._defaults, self._kinds)
        if faults:
            more = f"; and {len(faults) - _SHOWN_FAULTS} more" if len(faults) > _SHOWN_FAULTS else ""
            raise InvalidConfiguration("; ".join(faults[:_SHOWN_FAULTS]) + more, option=OPTION)
        return {rule.name: rule.text for rule in rules}

    def _paths(self) -> Sequence[str]:
        """List the files; rules of a later one count."""
        name = str(self._conf.oslo_policy.policy_file)
        paths = [self._conf.find_file(name) or name]
        for each in self._conf.oslo_policy.policy_dirs:
            directory = self._conf.find_file(each)
            if directory is not None:
                paths += _files_in(directory)
        return paths


@cache
def _installed_kinds() -> frozenset[str]:
    """Return the kinds of checks that other packages bring. Looking for them reads the records of every package."""
    return frozenset(point.name for point in entry_points(group="oslo.policy.rule_checks"))


def _files_in(directory: str) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(each.path for each in entries if not each.name.startswith(".") and not each.is_dir())
    except OSError as error:
        raise InvalidConfiguration(f"{directory} cannot be read: {error.strerror}", option=_DIRECTORIES) from error


def _stamp(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None  # read() raises the reason
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


def _text(path: str) -> str:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise InvalidConfiguration(f"{path} is not a file", option=OPTION)
        with Path(path).open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InvalidConfiguration(f"{path} cannot be read: {error.strerror}", option=OPTION) from error
    if len(data) > LARGEST_FILE:
        raise InvalidConfiguration(f"{path} has more than {LARGEST_FILE} bytes", option=OPTION)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidConfiguration(
            f"{path}, line {line}: is not UTF-8; convert the file to UTF-8", option=OPTION
        ) from None
