"""Define the ports to a host: its paths, disks, tools and processes.

The paths are the real roots, or the directory of a simulated host. A helper process does what needs root for an agent
without privileges.
"""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from oslo_log import log as logging

from autoclave.exceptions import ToolGarbage
from autoclave.rules.pci_address import PCIAddress

LOG = logging.getLogger(__name__)


LARGEST_STEP = 256 * 1024 * 1024
"""The most bytes that one request zeroes. A process that was killed leaves at most one such request in progress."""

MARKER_BYTES = 4096
"""The bytes of one marker; its offset must be a multiple of them."""


class Disk(Protocol):
    """Access a disk held open exclusively; :func:`autoclave.hardware.block.open_block` creates it.

    It never returns data of the disk: a caller that verifies the erase of tenant data need not read that data.
    """

    @property
    def path(self) -> Path:
        """Return its device node."""
        ...

    @property
    def size(self) -> int:
        """Return its size in bytes."""
        ...

    def nonzero_in(self, offset: int, length: int) -> int | None:
        """Return the offset of the first byte in the range that is not zero on the medium, or None.

        :raises ValueError: the disk has no such range.
        :raises DeviceVanished: the disk is gone.
        :raises EraseFailed: the range cannot be read.
        """
        ...

    def zero(self, offset: int, length: int) -> None:
        """Overwrite the range with zeroes. It cannot be interrupted, so it is limited to :data:`LARGEST_STEP`.

        :raises ValueError: the disk has no such range, or the range is too long.
        :raises DeviceVanished: the disk is gone.
        :raises EraseFailed: it cannot be overwritten; an unknown part of the range may have been.
        """
        ...

    def write_marker(self, offset: int, seed: bytes) -> None:
        """Write :data:`MARKER_BYTES` at *offset* that only *seed* can reproduce.

        :raises ValueError: the disk has no such range.
        :raises DeviceVanished: the disk is gone.
        :raises EraseFailed: the marker cannot be written.
        """
        ...

    def has_marker(self, offset: int, seed: bytes) -> bool:
        """Return whether the medium has the marker of *seed* at *offset*.

        :raises ValueError: the disk has no such range.
        :raises DeviceVanished: the disk is gone.
        :raises EraseFailed: the marker cannot be read.
        """
        ...

    def flush(self) -> None:
        """Flush the drive's volatile cache, so that a power cut does not undo the zeroes.

        :raises DeviceVanished: the disk is gone.
        :raises EraseFailed: the flush failed.
        """
        ...

    def close(self) -> None:
        """Close the disk."""
        ...


@dataclass(frozen=True)
class OpenFile:
    """Describe a program that has a node open.

    :param node: the open device node.
    :param writes: the program may write through it.
    """

    node: Path
    pid: int
    program: str
    writes: bool

    def __str__(self) -> str:
        return f"{self.program} (pid {self.pid})"


class ToolSink(Protocol):
    """Receive a notification when an external tool starts, and when it has ended.

    The agent journals the tools, so that a restarted agent can wait for a tool that outlived its parent. A tool that
    cannot be ended is never reported as ended.
    """

    def started(self, pid: int, argv: Sequence[str]) -> None: ...
    def ended(self, pid: int) -> None: ...


@dataclass(frozen=True)
class Completed:
    r"""Hold the result of a command that ended by itself, in time.

    :param argv: the command, with the resolved path of its executable.
    :param returncode: its exit code; if negative, the signal that ended it.
    :param stdout: its output, with each byte that is not UTF-8 as ``\xNN``.
    :param stderr: its error output, in the same form.
    """

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Deadline:
    """Represent a point in time on the monotonic clock by which work must end.

    :param at: seconds of :func:`time.monotonic`.
    """

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """Return the deadline *seconds* from now."""
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Return the seconds left; never negative."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at


OUTPUT_LIMIT = 16 * 1024 * 1024
"""The most bytes of output accepted from a tool; no regular answer reaches them."""
LINGER = 1.0
"""Seconds in which the children of an ended command may still finish their output."""
REAP = 5.0
"""Seconds after SIGKILL by which a process is gone, unless the kernel blocks it (state D)."""

Line = Callable[[str], None]


class _Stream:
    """Buffer the data read from one pipe, and count the bytes already passed on as lines."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.data = bytearray()
        self.handed_on = 0

    @property
    def text(self) -> str:
        return _text(self.data)

    def hand_on(self, on_line: Line, *, last: bool) -> None:
        # Tools that redraw their progress end a line with a bare carriage return.
        fresh = bytes(self.data[self.handed_on :]).replace(b"\r", b"\n")
        end = len(fresh) if last else fresh.rfind(b"\n") + 1
        self.handed_on += end
        for line in fresh[:end].split(b"\n"):
            if line.strip():
                on_line(_text(line))


def _text(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "backslashreplace")


class ProcessGroup:
    """Run one command in a session and process group of its own, without input.

    :param argv: the command; the first item is a path.
    :param prefix: the arguments before it, of a program that executes the command.
    :param env: its whole environment.
    :param program: a descriptor of the file to execute in place of the path, which may lead to another file by now.
    :param cwd: its working directory; by default that of this process.
    :param only_stdout: pass on the lines of its standard output, and not those of its error output.
    :raises OSError: it cannot be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        prefix: Sequence[str],
        env: Mapping[str, str],
        program: int | None = None,
        cwd: Path | None = None,
        only_stdout: bool = False,
    ) -> None:
        self.argv = tuple(argv)
        path = argv[0] if program is None else f"/proc/self/fd/{program}"
        self.ended = False
        """True after the end of the command itself; its children may still run."""
        self._process = subprocess.Popen(
            [*prefix, path, *argv[1:]],
            env=env,
            cwd=cwd,
            # The interpreter of a script opens it again, by the same descriptor.
            pass_fds=() if program is None else (program,),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out = _Stream(self._process.stdout.fileno())
        self._err = _Stream(self._process.stderr.fileno())
        self._passed_on = (self._out,) if only_stdout else (self._out, self._err)
        self._selector = selectors.DefaultSelector()
        for stream in (self._out, self._err):
            os.set_blocking(stream.fd, False)
            self._selector.register(stream.fd, selectors.EVENT_READ, stream)
        try:
            self._pidfd = os.pidfd_open(self.pid)
        except OSError:
            self._process.kill()
            self._process.wait()
            raise
        self._selector.register(self._pidfd, selectors.EVENT_READ)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int:
        """Return the exit code; if negative, the signal that ended it. It is known after :meth:`end`."""
        assert self._process.returncode is not None
        return self._process.returncode

    @property
    def stdout(self) -> str:
        return self._out.text

    @property
    def stderr(self) -> str:
        return self._err.text

    def follow(self, deadline: Deadline, on_line: Line | None) -> bool:
        """Collect the output until the command ends; return False if the deadline passes first.

        :raises ToolGarbage: the output exceeds :data:`OUTPUT_LIMIT`.
        """
        while not self.ended:
            if deadline.passed:
                return False
            self._step(deadline, on_line)
        linger = Deadline.after(LINGER)
        while not self._silent and not linger.passed:
            self._step(linger, on_line)
        return True

    def end(self) -> bool:
        """End all processes, by SIGKILL if necessary; return False if one survives.

        A process that still holds an output pipe counts as a survivor, even in another process group.
        """
        if self.ended and not self._silent:
            LOG.warning("%s (pid %d) left processes behind that hold its output; killing them", self.argv[0], self.pid)
        # The command has not been reaped yet, so its process number cannot be reused for another group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        reap = Deadline.after(REAP)
        while not (self.ended and self._silent) and not reap.passed:
            self._step(reap, None, keep=False)
        gone = self.ended and self._silent
        if self.ended:
            self._process.wait()
        self._selector.close()
        os.close(self._pidfd)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        return gone

    @property
    def _silent(self) -> bool:
        """Return whether no process can write to the pipes."""
        return all(key.fileobj == self._pidfd for key in self._selector.get_map().values())

    def _step(self, until: Deadline, on_line: Line | None, *, keep: bool = True) -> None:
        for key, _ in self._selector.select(until.remaining()):
            stream = key.data
            if stream is None:
                self.ended = True
                self._selector.unregister(self._pidfd)
                continue
            chunk = os.read(stream.fd, 65536)
            if not chunk:
                self._selector.unregister(stream.fd)
            elif keep:
                stream.data += chunk
                if len(self._out.data) + len(self._err.data) > OUTPUT_LIMIT:
                    raise ToolGarbage(f"{self.argv[0]} wrote more than {OUTPUT_LIMIT} bytes and was killed", self.argv)
            if on_line is not None and stream in self._passed_on:
                stream.hand_on(on_line, last=not chunk)


class Helper(Protocol):
    """Perform privileged operations for this host.

    Each method does the same as the function it refers to, and raises the same errors. In addition, it raises
    :class:`HardwareError` if the helper refuses the operation, or has ended.
    """

    def find(self, name: str, directories: Sequence[Path]) -> str:
        """Call :meth:`Commands.find`; *directories* take precedence over the system's."""
        ...

    def run(
        self,
        argv: Sequence[str],
        directories: Sequence[Path],
        *,
        deadline: Deadline,
        tools: ToolSink | None,
        on_line: Line | None,
    ) -> Completed:
        """Call :meth:`Commands.run`. The helper itself ends the tool at the deadline, and when the agent dies."""
        ...

    def open_block(self, path: Path, *, writable: bool) -> Disk:
        """Call :func:`block.hold`."""
        ...

    def programs_with_open(self, nodes: Sequence[Path]) -> list[OpenFile]:
        """Call :func:`block.programs_with_open`."""
        ...

    def has_zfs_label(self, node: Path) -> bool:
        """Call :func:`usage.is_on`."""
        ...

    def card_serial(self, address: PCIAddress, *, vital_product_data: bool) -> str | None:
        """Call :func:`pci_functions.card_serial`."""
        ...

    def product_uuid(self) -> str | None:
        """Call :func:`sysfs.product_uuid`."""
        ...

    def write_attribute(self, address: PCIAddress, name: str, text: str) -> None:
        """Call :func:`function_access.write_attribute`."""
        ...

    def check_program(self, path: str) -> None:
        """Call :func:`function_access.check_program`."""
        ...

    def run_program(
        self,
        argv: Sequence[str],
        address: PCIAddress,
        device_uuid: str,
        *,
        deadline: Deadline,
        tools: ToolSink | None,
        on_line: Line | None,
    ) -> Completed:
        """Call :meth:`OperatorPrograms.run`. The helper itself ends the program, as in :meth:`run`."""
        ...


class HoldDisk(Protocol):
    """Hold a disk open exclusively; see :func:`block.hold`."""

    def __call__(self, paths: "HostPaths", path: Path, *, writable: bool) -> Disk: ...


class AnswerTool(Protocol):
    """Answer a command of a simulated host inside this process."""

    def __call__(self, argv: Sequence[str]) -> Completed | None:
        """Return the result of the program, or None if the program has to be run."""
        ...


class WriteAttribute(Protocol):
    """Write an attribute of sysfs on a simulated host."""

    def __call__(self, path: Path, text: str) -> None:
        """Write *text*.

        :raises OSError: the simulated kernel refuses it.
        """
        ...


@dataclass(frozen=True)
class HostPaths:
    """Hold the roots under which the agent finds the kernel's interfaces.

    :param sysfs: normally ``/sys``.
    :param dev: normally ``/dev``.
    :param proc: normally ``/proc``.
    :param etc: normally ``/etc``; for the machine id, and settings of tools that could use guests' drives.
    :param tools: directories searched for external tools before ``PATH``.
    :param hold_disk: opens the nodes of disks; None for block devices.
    :param answer_tool: answers commands in place of external tools; None to run the tools.
    :param write_attribute: writes attributes of sysfs; None to write the files.
    :param helper: performs privileged operations; None for this process itself.
    """

    sysfs: Path = Path("/sys")
    dev: Path = Path("/dev")
    proc: Path = Path("/proc")
    etc: Path = Path("/etc")
    tools: tuple[Path, ...] = ()
    hold_disk: HoldDisk | None = None
    helper: Helper | None = None
    answer_tool: AnswerTool | None = None
    write_attribute: WriteAttribute | None = None


@dataclass(frozen=True)
class Progress:
    """Report the progress of an erase.

    :param percent: 0 to 100, or None if the tool has not reported it yet.
    :param step: the current step, in an operator's terms.
    :param stalled: the progress has not changed for ``[nvme] stall_timeout``.
    :param seconds_left: an estimate, or None.
    """

    percent: float | None
    step: str
    stalled: bool = False
    seconds_left: float | None = None


class ProgressSink(Protocol):
    """Receive progress; must not raise."""

    def __call__(self, progress: Progress) -> None: ...
