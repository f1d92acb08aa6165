"""Format answers and parse command lines as each version of nvme-cli does.

Versions differ in number types, error texts, exit codes and streams. The command line is parsed by getopt_long_only. It
takes ``-o`` for the prefix of a long option if there is no such short option. So ``-o json`` is an error in some
commands of some versions.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from autoclave.simulator.nvme_status import CommandFailed, Status

_NAMES_1 = {
    Status.INVALID_OPCODE: "INVALID_OPCODE: The associated command opcode field is not valid",
    Status.INVALID_FIELD: "INVALID_FIELD: A reserved coded value or an unsupported value in a defined field",
    Status.INTERNAL_ERROR: "INTERNAL: The command was not completed successfully due to an internal error",
    Status.INVALID_FORMAT: "INVALID_FORMAT: The LBA Format specified is not supported. This may be due to various "
    "conditions",
    Status.INVALID_NAMESPACE: "INVALID_NS: The namespace or the format of that namespace is invalid",
    Status.SANITIZE_FAILED: "SANITIZE_FAILED: The most recent sanitize operation failed and no recovery actions has "
    "been successfully completed",
    Status.SANITIZE_IN_PROGRESS: "SANITIZE_IN_PROGRESS: The requested function is prohibited while a sanitize "
    "operation is in progress",
    Status.LBA_OUT_OF_RANGE: "LBA_RANGE: The command references a LBA that exceeds the size of the namespace",
    Status.INVALID_LOG_PAGE: "INVALID_LOG_PAGE: The log page indicated is invalid",
    Status.INSUFFICIENT_CAPACITY: "NS_INSUFFICIENT_CAPACITY: Creating the namespace requires more free space than is "
    "currently available",
    Status.NSID_UNAVAILABLE: "NS_ID_UNAVAILABLE: The number of namespaces supported has been exceeded",
    Status.ALREADY_ATTACHED: "NS_ALREADY_ATTACHED: The controller is already attached to the namespace specified",
    Status.NAMESPACE_IS_PRIVATE: "NS_IS_PRIVATE: The namespace is private and is already attached to one controller",
    Status.NOT_ATTACHED: "NS_NOT_ATTACHED: The controller is not attached to the namespace",
    Status.WRITE_FAULT: "WRITE_FAULT: The write data could not be committed to the media",
}
_NAMES_2 = {
    Status.INVALID_OPCODE: "Invalid Command Opcode: A reserved coded value or an unsupported value in the command "
    "opcode field",
    Status.INVALID_FIELD: "Invalid Field in Command: A reserved coded value or an unsupported value in a defined field",
    Status.INTERNAL_ERROR: "Internal Error: The command was not completed successfully due to an internal error",
    Status.INVALID_FORMAT: "Invalid Format: The LBA Format specified is not supported",
    Status.INVALID_NAMESPACE: "Invalid Namespace or Format: The namespace or the format of that namespace is invalid",
    Status.SANITIZE_FAILED: "Sanitize Failed: The most recent sanitize operation failed and no recovery action has "
    "been successfully completed",
    Status.SANITIZE_IN_PROGRESS: "Sanitize In Progress: The requested function is prohibited while a sanitize "
    "operation is in progress",
    Status.LBA_OUT_OF_RANGE: "LBA Out of Range: The command references an LBA that exceeds the size of the namespace",
    Status.INVALID_LOG_PAGE: "Invalid Log Page: The log page indicated is invalid",
    Status.INSUFFICIENT_CAPACITY: "Namespace Insufficient Capacity: Creating the namespace requires more free space "
    "than is currently available",
    Status.NSID_UNAVAILABLE: "Namespace Identifier Unavailable: The number of namespaces supported has been exceeded",
    Status.ALREADY_ATTACHED: "Namespace Already Attached: The controller is already attached to the namespace "
    "specified",
    Status.NAMESPACE_IS_PRIVATE: "Namespace Is Private: The namespace is private and is already attached to one "
    "controller",
    Status.NOT_ATTACHED: "Namespace Not Attached: The controller is not attached to the namespace",
    Status.WRITE_FAULT: "Write Fault: The write data could not be committed to the media",
}
# 1.x converts a status into an errno and exits with that.
_ERRNO_1 = {
    Status.SANITIZE_FAILED: 5,
    Status.SANITIZE_IN_PROGRESS: 115,
    Status.LBA_OUT_OF_RANGE: 121,
    Status.ALREADY_ATTACHED: 114,
    Status.NAMESPACE_IS_PRIVATE: 1,
    Status.NOT_ATTACHED: 28,
    Status.WRITE_FAULT: 5,
    Status.INTERNAL_ERROR: 5,
}
_EINVAL = 22
# 1.x prints control characters unescaped, which is not valid JSON.
_CONTROL = re.compile(r"(?<!\\)\\(?:u00[01][0-9a-f]|[bfnrt])")

_NEW_NAMES_3 = {
    "id-ctrl": "id ctrl",
    "id-ns": "id ns",
    "id-ns-granularity": "id ns-granularity",
    "list-ns": "id ns-list",
    "sanitize-log": "log sanitize",
    "create-ns": "ns create",
    "delete-ns": "ns delete",
    "attach-ns": "ns attach",
    "detach-ns": "ns detach",
}


@dataclass(frozen=True)
class Answer:
    """Hold the output and the exit code of a command."""

    out: str = ""
    err: str = ""
    code: int = 0


@dataclass(frozen=True)
class Dialect:
    """Format the output of one version.

    :param style: one of :data:`autoclave.simulator.host.STYLES`.
    """

    style: str

    @property
    def version(self) -> tuple[int, int]:
        major, minor = self.style.split(".")
        return int(major), int(minor)

    @property
    def version_text(self) -> str:
        """Return the output of ``nvme version``."""
        if self.version < (2, 0):
            return f"nvme version {self.style}\n"
        full = "3.0-rc1" if self.version >= (3, 0) else self.style
        library = {"2.3": "1.3", "2.13": "1.13", "2.16": "1.16.2"}.get(self.style, full)
        return f"nvme version {full} (git {full})\nlibnvme version {library} (git {library})\n"

    @property
    def usage_error_code(self) -> int:
        """Return the exit code for an error in the command line."""
        return 234 if self.version < (2, 0) else 1

    def error_code(self, errno: int) -> int:
        """Return the exit code for an error of the operating system."""
        return errno if self.version < (2, 0) else 1

    def u128(self, value: int) -> float | str | int:
        """Return a 128-bit number in its JSON type."""
        if self.version < (2, 0):
            return float(value)
        return str(value) if self.version < (2, 4) else value

    def u32(self, value: int) -> int:
        """Return a 32-bit number for JSON: 2.0 to 2.3 print it as signed."""
        return value - (1 << 32) if (2, 0) <= self.version < (2, 4) and value >= 1 << 31 else value

    def json(self, value: Any) -> str:
        """Format *value* as json-c does."""
        text = json.dumps(value, indent=2, separators=(",", ":"))
        if self.version < (2, 0):
            text = _CONTROL.sub(lambda found: json.loads(f'"{found[0]}"'), text.replace("/", "\\/"))
        if self.style in ("1.16", "2.3", "3.0"):
            lines = []
            for line in text.split("\n"):
                indent = " " * (len(line) - len(line.lstrip()))
                lines.append(line.replace("[]", f"[\n{indent}]") if ":[]" in line else line)
            text = "\n".join(lines)
        return f"{text}\n"

    def warning(self, command: str) -> str:
        """Return the warning that is printed first on stderr."""
        if self.version < (3, 0) or command not in _NEW_NAMES_3:
            return ""
        return (
            f"WARNING: '{command}' is deprecated and will be removed in the next major version, "
            f"use 'nvme {_NEW_NAMES_3[command]}' instead\n"
        )

    def usage(self, command: str) -> str:
        """Return the first line of the help text, which follows a usage error."""
        shown = _NEW_NAMES_3.get(command, command) if self.version >= (3, 0) else command
        return f"\x1b[1mUsage: nvme {shown} <device> [OPTIONS]\x1b[0m\n"

    def errors_as_json(self, *, as_json: bool) -> bool:
        """Return whether an error goes to stdout as JSON, if JSON was requested."""
        return as_json and self.version >= (2, 11)

    def failed(self, command: str, failure: CommandFailed, *, as_json: bool) -> Answer:
        """Return the answer for a command that the controller completed with an error.

        :param as_json: errors go to stdout as JSON.
        """
        code = 1
        if self.version < (2, 0):
            code = _ERRNO_1.get(failure.status, _EINVAL)
        text = (_NAMES_1 if self.version < (2, 0) else _NAMES_2)[failure.status]
        if not as_json:
            return Answer(err=f"NVMe status: {text}(0x{failure.code:x})\n", code=code)
        error: dict[str, Any] = {"error": text, "type": "nvme"}
        if self.version >= (3, 0) or command == "create-ns":
            error = {f"status: {failure.code}": [error]}
        if command == "create-ns" and self.style == "2.16":
            error["error"] = "NS management and attachment not supported"
        return Answer(out=self.json(error), code=code)

    def refused(self, message: str, *, as_json: bool, code: int = 1) -> Answer:
        """Return the answer for a refusal by nvme-cli itself.

        :param as_json: errors go to stdout as JSON.
        """
        if as_json:
            return Answer(out=self.json({"error": message}), code=code)
        return Answer(err=f"{message}\n", code=code)

    def done(self, command: str, verb: str, nsid: int, *, as_json: bool) -> Answer:
        """Return the answer of a successful namespace command.

        :param verb: ``created``, ``deleted`` or empty.
        """
        if self.version >= (3, 0):
            return Answer()
        if self.version < (2, 16):
            return Answer(out=f"{command}: Success, {verb + ' ' if verb else ''}nsid:{nsid}\n")
        if as_json:
            return Answer(out=self.json({command: "success", "nsid": str(nsid)}))
        return Answer(out=f"{command}: success\nnsid: {nsid}\n")


# name:letter is a flag, name=letter takes a value. Options that no agent needs are left out.
_OPTIONS = {
    "id-ctrl": "vendor-specific:V raw-binary:b human-readable:H",
    "id-ns": "namespace-id=n force: vendor-specific:V raw-binary:b human-readable:H",
    "list-ns": "namespace-id=n csi=y all:a",
    "id-ns-granularity": "",
    "sanitize": "no-dealloc:d oipbp:i owpass=n ause:u sanact=a ovrpat=p",
    "sanitize-log": "rae:r human-readable:H raw-binary:b",
    "create-ns": "nsze=s ncap=c flbas=f dps=d nmic=m anagrp-id=a nvmset-id=i block-size=b timeout=t csi=y",
    "format": "namespace-id=n timeout=t lbaf=l ses=s pi=i pil=p ms=m reset:r force: block-size=b",
    "delete-ns": "namespace-id=n timeout=t",
    "attach-ns": "namespace-id=n controllers=c",
    "detach-ns": "namespace-id=n controllers=c",
    "ns-rescan": "",
    "write-zeroes": "namespace-id=n start-block=s block-count=c dir-type=T deac:d limited-retry:l "
    "force-unit-access:f prinfo=p",
}
_REPORTS = frozenset({"id-ctrl", "id-ns", "id-ns-granularity", "list-ns", "sanitize-log"})


class UsageError(Exception):
    """Report an invalid command line. ``str()`` returns nvme-cli's own message."""


class Options:
    """Hold the parsed options of one command.

    :param values: by long name; a flag has an empty one.
    :param arguments: the positional arguments.
    """

    def __init__(self, values: dict[str, str], arguments: list[str]) -> None:
        self._values = values
        self.arguments = arguments

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def text(self, name: str) -> str | None:
        return self._values.get(name)

    def number(self, name: str, bits: int = 32) -> int | None:
        """Return the value of *name*, or None if it is not given.

        :raises UsageError: it is not a number of so many bits.
        """
        text = self._values.get(name)
        if text is None:
            return None
        try:
            value = int(text, 0)
        except ValueError:
            value = -1
        if not 0 <= value < 1 << bits:
            kind = {8: "byte", 16: "short", 32: "word", 64: "long suffixed"}[bits]
            raise UsageError(f"Expected {kind} argument for '{name}' but got '{text}'!")
        return value

    @property
    def as_json(self) -> bool:
        """Return whether JSON was requested."""
        return self._values.get("output-format") == "json"


def parse(dialect: Dialect, command: str, argv: Sequence[str]) -> Options:
    """Parse the arguments of *command*.

    :raises UsageError: an option is unknown, ambiguous, or lacks its value.
    """
    known = _known(dialect, command)
    by_letter = {letter: name for name, (letter, _) in known.items() if letter}
    values: dict[str, str] = {}
    arguments: list[str] = []
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("-") or word == "-":
            arguments.append(word)
            continue
        value: str | None
        if not word.startswith("--") and word[1] in by_letter and word[1:].partition("=")[0] not in known:
            name, value = by_letter[word[1]], word[2:] or None
        else:
            dashes = "--" if word.startswith("--") else "-"
            written, equals, text = word[len(dashes) :].partition("=")
            name, value = _complete(command, dashes, written, known), text if equals else None
        takes_value = known[name][1]
        if takes_value and value is None:
            if not rest:
                raise UsageError(f"{command}: option requires an argument -- '{name}'")
            value = rest.pop(0)
        values[name] = value or ""
    return Options(values, arguments)


def _known(dialect: Dialect, command: str) -> dict[str, tuple[str, bool]]:
    """Return (letter, takes a value) by long name."""
    table = _OPTIONS[command]
    if dialect.version >= (2, 11) and command == "sanitize":
        table += " emvs:e"
    if dialect.version >= (2, 13) and command == "write-zeroes":
        table += " namespace-zeroes:Z"
    if dialect.version >= (3, 0):
        table = table.replace(" timeout=t", "") + " timeout= quiet: dry-run: no-retries:"
        if command == "sanitize":
            table += " ish:I wait:w repeat:r"
    elif dialect.version >= (2, 11) and "timeout" not in table:
        table += " timeout=t"
    if command in _REPORTS or dialect.version >= (2, 6):
        table += " output-format=o verbose:v"
    known = {}
    for entry in table.split():
        takes_value = "=" in entry
        name, _, letter = entry.partition("=" if takes_value else ":")
        known[name] = (letter, takes_value)
    return known


def _complete(command: str, dashes: str, written: str, known: dict[str, tuple[str, bool]]) -> str:
    if written in known:
        return written
    possible = [name for name in known if name.startswith(written)]
    if len(possible) == 1:
        return possible[0]
    if possible:
        names = " ".join(f"'{dashes}{name}'" for name in possible)
        raise UsageError(f"{command}: option '{dashes}{written}' is ambiguous; possibilities: {names}")
    raise UsageError(f"{command}: unrecognized option '{dashes}{written}'")
