"""Execute the agent's requests in the privileged process: disks and tools.

A request must not wait for the end of a tool, and callbacks cannot cross the process boundary. So each tool has a
thread that runs it with its deadline. The thread buffers the output until the agent fetches it.
"""

import contextlib
import os
import secrets
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Protocol

from autoclave.exceptions import HardwareError
from autoclave.hardware import block, function_access, sysfs, usage
from autoclave.hardware import pci_functions as card_serials
from autoclave.hardware.block import BlockDevice, hold
from autoclave.hardware.command import Commands
from autoclave.hardware.function_access import OperatorPrograms
from autoclave.hardware.host import LINGER, REAP, Completed, Deadline, HostPaths, Line, ToolSink
from autoclave.hardware.privileged import admission, entrypoint

_PATHS = HostPaths()

_held: dict[str, tuple[BlockDevice, threading.Lock]] = {}
"""Held disks by token. The lock protects the shared buffer, and the descriptor from use after its close."""


@contextmanager
def _disk(token: str) -> Iterator[BlockDevice]:
    device, lock = _held.get(token, (None, None))
    if device is not None and lock is not None:
        with lock:
            if token in _held:
                yield device
                return
    raise HardwareError("the privileged helper does not hold this disk: it was restarted in the meantime")


@entrypoint
def hold_disk(path: str, writable: bool) -> tuple[str, int]:
    """Hold a disk exclusively; return a token for other requests, and its size in bytes."""
    device = hold(_PATHS, admission.disk(path), writable=writable)
    token = secrets.token_hex(16)
    _held[token] = device, threading.Lock()
    return token, device.size


@entrypoint
def nonzero_in(token: str, offset: int, length: int) -> int | None:
    """Call :meth:`Disk.nonzero_in`."""
    with _disk(token) as device:
        return device.nonzero_in(offset, length)


@entrypoint
def zero(token: str, offset: int, length: int) -> None:
    """Call :meth:`Disk.zero`."""
    with _disk(token) as device:
        device.zero(offset, length)


@entrypoint
def write_marker(token: str, offset: int, seed: bytes) -> None:
    """Call :meth:`Disk.write_marker`."""
    with _disk(token) as device:
        device.write_marker(offset, seed)


@entrypoint
def has_marker(token: str, offset: int, seed: bytes) -> bool:
    """Call :meth:`Disk.has_marker`."""
    with _disk(token) as device:
        return device.has_marker(offset, seed)


@entrypoint
def flush(token: str) -> None:
    """Call :meth:`Disk.flush`."""
    with _disk(token) as device:
        device.flush()


@entrypoint
def let_go(token: str) -> None:
    """Close a disk that is held."""
    with _disk(token) as device:
        del _held[token]
        device.close()


@entrypoint
def programs_with_open(nodes: Sequence[str]) -> list[tuple[str, int, str, bool]]:
    """Return the fields of each :class:`OpenFile`."""
    found = block.programs_with_open(_PATHS, admission.nodes(nodes))
    return [(str(file.node), file.pid, file.program, file.writes) for file in found]


@entrypoint
def has_zfs_label(node: str) -> bool:
    """Call :func:`usage.is_on`."""
    return usage.is_on(_PATHS, admission.nodes([node])[0])


@entrypoint
def card_serial(address: str, vital_product_data: bool) -> str | None:
    """Call :func:`pci_functions.card_serial`. The agent gets only the serial, not the data it is read from."""
    return card_serials.card_serial(_PATHS, admission.function(address), vital_product_data=vital_product_data)


@entrypoint
def product_uuid() -> str | None:
    """Call :func:`sysfs.product_uuid`."""
    return sysfs.product_uuid(_PATHS)


@entrypoint
def write_attribute(address: str, name: str, text: str) -> None:
    """Call :func:`function_access.write_attribute`."""
    admission.attribute(name, text)
    function_access.write_attribute(_PATHS, admission.function(address), name, text)


@entrypoint
def check_program(path: str) -> None:
    """Call :func:`function_access.check_program`."""
    admission.program([path])
    function_access.check_program(_PATHS, path)


WAIT = 1.0
"""The most seconds that a request waits for output."""


class _Runner(Protocol):
    """Run a command as :meth:`Commands.run` does."""

    def run(
        self, argv: Sequence[str], *, deadline: Deadline, tools: ToolSink | None = None, on_line: Line | None = None
    ) -> Completed: ...


class _Job:
    """Run one tool in a thread that is its parent.

    The tool's death signal follows that thread, so it is also sent when this process is killed.
    """

    def __init__(self, runner: _Runner, argv: Sequence[str], deadline: Deadline, *, listened: bool) -> None:
        self._runner = runner
        self._argv = argv
        self._deadline = deadline
        self._listened = listened
        self._news = threading.Condition()
        self._command: tuple[str, ...] | None = None
        self._pid = 0
        self._pidfd = -1
        self._lines: list[str] = []
        self._outcome: Completed | BaseException | None = None
        self._gone = False
        self._thread = threading.Thread(target=self._run, name=f"tool-{argv[0]}", daemon=True)

    def start(self) -> tuple[int, tuple[str, ...]]:
        """Start the tool; return its pid and the resolved command."""
        self._thread.start()
        with self._news:
            self._news.wait_for(lambda: self._command is not None or self._outcome is not None)
            if self._command is None:
                assert isinstance(self._outcome, BaseException)
                raise self._outcome
            return self._pid, self._command

    def follow(self, seconds: float) -> tuple[list[str], bool]:
        """Return new lines, after waiting for some if necessary, and whether the tool's run is over."""
        with self._news:
            self._news.wait_for(lambda: self._lines or self._outcome is not None, seconds)
            lines, self._lines = self._lines, []
            return lines, self._outcome is not None

    def result(self) -> Completed:
        """Return the result of :meth:`Commands.run`, or raise its error."""
        with self._news:
            if isinstance(self._outcome, BaseException):
                raise self._outcome
            if self._outcome is None:
                raise HardwareError(f"{self._argv[0]} (pid {self._pid}) still runs")
            return self._outcome

    def end(self) -> bool:
        """End the tool if it still runs; return whether no process of it is left."""
        with self._news:
            if self._outcome is None and self._pid:
                # Signal through the descriptor: the process number may have been reused. The thread then ends the
                # group.
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        self._thread.join(LINGER + 2 * REAP)
        with self._news:
            if self._pid:
                os.close(self._pidfd)
            return self._gone

    def started(self, pid: int, argv: Sequence[str]) -> None:
        """Implement :meth:`ToolSink.started`."""
        with self._news:
            self._pid, self._pidfd, self._command = pid, os.pidfd_open(pid), tuple(argv)
            self._news.notify_all()

    def ended(self, pid: int) -> None:  # noqa: ARG002
        """Implement :meth:`ToolSink.ended`."""
        with self._news:
            self._gone = True

    def _heard(self, line: str) -> None:
        with self._news:
            self._lines.append(line)
            self._news.notify_all()

    def _run(self) -> None:
        outcome: Completed | BaseException
        try:
            outcome = self._runner.run(
                self._argv,
                deadline=self._deadline,
                tools=self,
                on_line=self._heard if self._listened else None,
            )
        except BaseException as error:  # report every error to the agent
            outcome = error
        with self._news:
            self._outcome = outcome
            self._news.notify_all()


_jobs: dict[str, _Job] = {}


@cache
def _commands(directories: tuple[str, ...]) -> Commands:
    return admission.RootsCommands(HostPaths(tools=tuple(map(Path, directories))), environment={})


def _job(token: str) -> _Job:
    try:
        return _jobs[token]
    except KeyError:
        raise HardwareError("the privileged helper does not know this tool: it was restarted in the meantime") from None


@entrypoint
def find(name: str, directories: Sequence[str]) -> str:
    """Return the path of a tool; see :meth:`Commands.find`."""
    admission.tool(name)
    return _commands(tuple(directories)).find(name)


@entrypoint
def start(
    argv: Sequence[str], directories: Sequence[str], seconds: float, listened: bool
) -> tuple[str, int, tuple[str, ...]]:
    """Start a tool that is ended after *seconds*, even if no request follows it.

    :param directories: searched before the system's.
    :param listened: the agent wants its lines.
    :returns: a token for other requests, the tool's pid, and the resolved command.
    """
    admission.command(argv)
    return _started(_Job(_commands(tuple(directories)), argv, Deadline.after(seconds), listened=listened))


@entrypoint
def start_program(
    argv: Sequence[str], address: str, device_uuid: str, seconds: float, listened: bool
) -> tuple[str, int, tuple[str, ...]]:
    """Start a program of the operator for a device, as :func:`start` does; see :meth:`OperatorPrograms.run`."""
    admission.program(argv)
    programs = OperatorPrograms(_commands(()), admission.function(address), admission.device(device_uuid))
    return _started(_Job(programs, argv, Deadline.after(seconds), listened=listened))


def _started(job: _Job) -> tuple[str, int, tuple[str, ...]]:
    token = secrets.token_hex(16)
    _jobs[token] = job
    try:
        return token, *job.start()
    except BaseException:
        del _jobs[token]
        raise


@entrypoint
def follow(token: str) -> tuple[list[str], bool]:
    """Return new lines, within :data:`WAIT`, and whether the tool's run is over."""
    return _job(token).follow(WAIT)


@entrypoint
def result(token: str) -> tuple[tuple[str, ...], int, str, str]:
    """Return the fields of :class:`Completed` after the run, or raise the error of :meth:`Commands.run`."""
    completed = _job(token).result()
    return completed.argv, completed.returncode, completed.stdout, completed.stderr


@entrypoint
def end(token: str) -> bool:
    """End the tool if it still runs, and remove its token; return whether no process of it is left."""
    job = _job(token)
    if _jobs.pop(token, None) is None:
        raise HardwareError("the privileged helper was asked twice to end a tool")
    return job.end()


def end_all() -> None:
    """End every tool that still runs, with all processes that it started."""
    for token in list(_jobs):
        if (job := _jobs.pop(token, None)) is not None:
            job.end()
