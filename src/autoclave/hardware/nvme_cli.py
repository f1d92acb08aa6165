"""Run the ``nvme`` command: one method for each query or operation of Autoclave.

Only the common subset of nvme-cli 1.16 and 3.x is used: short option names, and numbers in place of names. The text of
a success is never parsed, because it varies between versions or is missing.
"""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn, TypeVar

from oslo_log import log as logging

from autoclave.exceptions import ToolFailed, ToolGarbage
from autoclave.hardware import nvme_json
from autoclave.hardware.command import Commands
from autoclave.hardware.host import Completed, Deadline, ToolSink
from autoclave.hardware.nvme_json import ControllerIdentity, NamespaceIdentity, SanitizeLog
from autoclave.rules.plain_text import excerpt

LOG = logging.getLogger(__name__)

COMMON_NAMESPACE = 0xFFFFFFFF
"""The namespace id for which Identify returns the common properties of all namespaces."""

IDS_PER_LIST = 1024
"""The most ids in an Identify namespace list; the next list begins after the last of them."""

INVALID_OPCODE, INVALID_FIELD = 0x001, 0x002
INVALID_LOG_PAGE, INVALID_FORMAT = 0x109, 0x10A
INSUFFICIENT_CAPACITY, NSID_UNAVAILABLE = 0x115, 0x116
SANITIZE_FAILED, SANITIZE_IN_PROGRESS = 0x01C, 0x01D

EXIT_MEDIA_VERIFICATION = 5
"""The Sanitize Action that ends Media Verification."""

_RETRY_PAUSE = 1.0
"""Seconds before a query is retried while the controller is being reset."""
_NOT_SENT = "Resource temporarily unavailable"
"""The kernel's error for a command that it does not send, because the controller is being reset."""
_CANCELLED = "Interrupted system call"
"""The kernel's error for a command sent before the reset: the drive may have executed it."""

_STATUS_MASK = 0x7FF  # without DNR and More
_STATUS_IN_TEXT = re.compile(r"NVMe status:.*\(0x([0-9a-fA-F]+)\)")
_STATUS_IN_KEY = re.compile(r"status: (\d+)")
_VERSION = re.compile(r"nvme version (\S+)")
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_REFUSED_BY_TOOL = re.compile(r"(?:erase|sanitize) action unsupported", re.IGNORECASE)

# The JSON of 2.x has the name of a status without its number.
_STATUS_OF = {
    "Invalid Command Opcode": INVALID_OPCODE,
    "Invalid Field in Command": INVALID_FIELD,
    "Invalid Log Page": INVALID_LOG_PAGE,
    "Sanitize In Progress": SANITIZE_IN_PROGRESS,
}

_Meaning = TypeVar("_Meaning")


@dataclass(frozen=True)
class NvmeCli:
    """Run nvme-cli.

    :param command_timeout: seconds that a query may take.
    :param deadline: the end of all work, also for queries. Without it, commands that change the drive get
        ``command_timeout`` as well.
    :param tools: notified of every process.

    Every method but :meth:`version` takes the device node of the controller, and raises

    * :class:`ToolMissing`: nvme-cli is not installed;
    * :class:`ToolTimeout`: it did not end in time and was killed;
    * :class:`ToolFailed`: it, or the drive, refused; ``status`` is the NVMe status if it was given;
    * :class:`ToolGarbage`: it succeeded, but its output is not understood.
    """

    commands: Commands
    command_timeout: float
    deadline: Deadline | None = None
    tools: ToolSink | None = None

    def within(self, deadline: Deadline, tools: ToolSink) -> "NvmeCli":
        """Return a copy for one operation that must end by *deadline*."""
        return replace(self, deadline=deadline, tools=tools)

    def version(self) -> str:
        """Return its version, such as ``2.13``."""
        completed = self._run("version")
        found = _VERSION.match(completed.stdout)
        if found is None:
            _garbage(completed, f"it does not begin with 'nvme version'; {_printed(completed)}")
        return found[1]

    def identify(self, controller: Path) -> ControllerIdentity:
        """Run Identify Controller."""
        return self._query(nvme_json.controller_identity, "id-ctrl", controller)

    def identify_namespace(self, controller: Path, nsid: int) -> NamespaceIdentity:
        """Run Identify Namespace; for an id that is not attached, the identity is not ``active``."""
        return self._query(nvme_json.namespace_identity, "id-ns", controller, "-n", str(nsid))

    def granularity(self, controller: Path, format_index: int) -> int:
        """Return the bytes of which a namespace's capacity in this LBA format is a multiple; 0 if not reported."""
        reported = self._query(nvme_json.granularities, "id-ns-granularity", controller)
        if len(reported) == 1:
            return reported[0]
        return reported[format_index] if format_index < len(reported) else 0

    def list_namespaces(self, controller: Path, *, allocated: bool = False) -> list[int]:
        """Return the ids of the attached namespaces in ascending order.

        :param allocated: return all existing ids, attached or not; needs Namespace Management.
        """
        which = ["-a"] if allocated else []
        ids: list[int] = []
        while True:
            start = ids[-1] + 1 if ids else 1
            page = self._query(nvme_json.namespace_ids, "list-ns", controller, *which, "-n", str(start))
            if page != sorted(set(page)) or (page and page[0] < start):
                raise ToolGarbage(
                    f"nvme list-ns {controller}, asked for ids from {start} on, answered with ids out of order",
                    ["nvme", "list-ns", str(controller)],
                )
            ids += page
            if len(page) < IDS_PER_LIST:
                return ids

    def sanitize(self, controller: Path, sanact: int) -> str:
        """Start a sanitize; return when the drive has accepted it, long before its end.

        :param sanact: the Sanitize Action field (CDW10 bits 2:0): 2 block erase, 4 crypto erase.
        :returns: additional output of the tool; all known versions print nothing.
        """
        completed = self._run("sanitize", str(controller), f"--sanact={sanact}")
        return _reason([*completed.stdout.splitlines(), *completed.stderr.splitlines()])

    def exit_media_verification(self, controller: Path) -> None:
        """End the Media Verification state of a sanitize; nvme-cli supports this action since 2.11."""
        self._run("sanitize", str(controller), f"--sanact={EXIT_MEDIA_VERIFICATION}")

    def sanitize_log(self, controller: Path) -> SanitizeLog:
        """Read the Sanitize Status log page."""
        return self._query(nvme_json.sanitize_log, "sanitize-log", controller)

    def create_namespace(self, controller: Path, blocks: int, flbas: int, dps: int = 0) -> int:
        """Create an unattached namespace of *blocks* logical blocks, and return its id.

        :param flbas: LBA format and metadata setting, encoded as in Identify Namespace.
        :param dps: protection information, encoded as in Identify Namespace.
        """
        before = set(self.list_namespaces(controller, allocated=True))
        protection = [f"--dps={dps}"] if dps else []
        completed = self._run(
            "create-ns", str(controller), f"--nsze={blocks}", f"--ncap={blocks}", f"--flbas={flbas}", *protection,
            changes=True,
        )  # fmt: skip
        # 3.x does not print the id, so compare the drive's lists.
        new = set(self.list_namespaces(controller, allocated=True)) - before
        if len(new) != 1:
            _garbage(completed, f"it created one namespace, but the drive shows {len(new)} new ones")
        return new.pop()

    def attach_namespace(self, controller: Path, nsid: int, cntlid: int) -> None:
        """Attach a namespace to the controller *cntlid*."""
        self._run("attach-ns", str(controller), "-n", str(nsid), "-c", str(cntlid), changes=True)

    def delete_namespace(self, controller: Path, nsid: int) -> None:
        """Delete a namespace, attached or not."""
        self._run("delete-ns", str(controller), "-n", str(nsid), changes=True)

    def format(self, controller: Path, nsid: int, lba_format: int, *, erase: int, extended: bool, dps: int) -> None:
        """Run Format NVM on one namespace, or on all with :data:`COMMON_NAMESPACE`, and wait for its end.

        The kernel aborts the command at the deadline, instead of after the tool's default of ten minutes.

        :param lba_format: the index of the LBA format.
        :param erase: Secure Erase Settings (SES): 0 none, 1 user data erase, 2 cryptographic erase.
        :param extended: metadata follows the data of each block in the same buffer.
        :param dps: protection information, encoded as in Identify Namespace.
        """
        milliseconds = max(1, int(self._deadline(changes=True).remaining() * 1000))
        self._run(
            "format", str(controller), "-n", str(nsid), f"--lbaf={lba_format}", f"--ses={erase}",
            f"--ms={int(extended)}", f"--pi={dps & 7}", f"--pil={dps >> 3 & 1}", f"--timeout={milliseconds}", "--force",
            changes=True,
        )  # fmt: skip

    def rescan(self, controller: Path) -> None:
        """Make the kernel rescan the controller's namespaces."""
        self._run("ns-rescan", str(controller))

    def _query(self, read: Callable[[object], _Meaning], command: str, controller: Path, *options: str) -> _Meaning:
        completed = self._run(command, str(controller), *options, "-o", "json", query=True)
        try:
            data = nvme_json.parse(completed.stdout)
        except (ValueError, RecursionError) as e:  # RecursionError: nested without end
            _garbage(completed, f"{e}; {_printed(completed)}")
        if isinstance(data, dict) and any(key == "error" or _STATUS_IN_KEY.fullmatch(key) for key in data):
            raise _failure(completed)
        try:
            return read(data)
        except (nvme_json.Unintelligible, RecursionError) as e:
            _garbage(completed, str(e))

    def _run(self, *arguments: str, changes: bool = False, query: bool = False) -> Completed:
        while True:
            completed = self.commands.run(["nvme", *arguments], deadline=self._deadline(changes), tools=self.tools)
            # Success together with an NVMe status in the text is a contradiction; treat it as a failure.
            if completed.returncode == 0 and not _STATUS_IN_TEXT.search(completed.stderr):
                return completed
            failure = _failure(completed)
            # Retry without a limit of attempts: a reset has no fixed duration.
            reset = _NOT_SENT in str(failure) or (query and _CANCELLED in str(failure))
            if failure.status is not None or not reset or not self._time_for_another():
                raise failure
            LOG.warning("%s; retrying", failure)
            time.sleep(_RETRY_PAUSE)

    def _time_for_another(self) -> bool:
        return self.deadline is not None and self.deadline.remaining() > _RETRY_PAUSE

    def _deadline(self, changes: bool) -> Deadline:
        own = Deadline.after(self.command_timeout)
        if self.deadline is None:
            return own
        return self.deadline if changes or self.deadline.at < own.at else own


def refused_as_unsupported(error: ToolFailed) -> bool:
    """Return whether the drive, or the tool itself, reports that it lacks the command or the action."""
    if error.status is not None:
        return error.status in (INVALID_OPCODE, INVALID_FIELD, INVALID_LOG_PAGE)
    # 3.x checks SANICAP itself, and then reports no NVMe status.
    return _REFUSED_BY_TOOL.search(str(error)) is not None


def _failure(completed: Completed) -> ToolFailed:
    text, status = _words(completed)
    command = " ".join(["nvme", *completed.argv[1:]])
    return ToolFailed(
        f"{command} failed with exit status {completed.returncode}: {excerpt(text) or _printed(completed)}",
        completed.argv,
        completed.returncode,
        status,
    )


def _garbage(completed: Completed, why: str) -> NoReturn:
    command = " ".join(["nvme", *completed.argv[1:]])
    raise ToolGarbage(f"the output of {command} cannot be parsed: {why}", completed.argv)


def _printed(completed: Completed) -> str:
    """Return the output of the tool for the operator."""
    said = excerpt(_ESCAPE.sub("", " ".join((completed.stderr, completed.stdout))))
    return f"it printed: {said}" if said else "it printed nothing"


def _words(completed: Completed) -> tuple[str, int | None]:
    """Return the tool's error text, and the NVMe status, from either stream."""
    try:
        data = nvme_json.parse(completed.stdout)
    except (ValueError, RecursionError):
        data = None
    if isinstance(data, dict):
        for key, value in data.items():
            if key == "error":
                return str(value), _STATUS_OF.get(str(value).partition(":")[0].strip())
            if (number := _STATUS_IN_KEY.fullmatch(key)) and isinstance(value, list):
                errors = [str(item.get("error")) for item in value if isinstance(item, dict)]
                return "; ".join(errors), int(number[1]) & _STATUS_MASK
    text = _reason(_ESCAPE.sub("", completed.stderr).splitlines())
    number = _STATUS_IN_TEXT.search(text)
    return text, int(number[1], 16) & _STATUS_MASK if number else None


def _reason(lines: Sequence[str]) -> str:
    said = []
    for line in lines:
        if line.startswith("Usage:"):
            break
        if line.strip() and not line.startswith("WARNING: "):
            said.append(line.strip())
    return " ".join(said)
