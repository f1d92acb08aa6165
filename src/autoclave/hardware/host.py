"""Define the ports to a host: its paths, disks, tools and processes.

Where a host's kernel interfaces are: the real roots, or a simulated host's directory.

The port to one disk: reading and zeroing it, whoever holds it open.

The port to a process that does what needs root, for an agent that is an ordinary user.

A device node that a program has open.

One run of an external tool: who is told of it, and what came of it.

A point in time by which work must be done.

How far a long piece of work on a drive is.

A child process with everything it starts: its output, its end, its forced end.
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

LARGEST_STEP = 256 * 1024 * 1024
"""Bytes that one request zeroes at most: whoever is killed meanwhile leaves no more than that to be done."""

MARKER_BYTES = 4096
"""Bytes of one marker, which is also what its offset must be a multiple of."""


class Disk(Protocol):
    """A disk held open exclusively. Made by :func:`autoclave.hardware.block.open_block`.

    What it holds is not handed out: who may ask whether a tenant's data is gone need not see it.
    """

    @property
    def path(self) -> Path:
        """Its device node."""
        ...

    @property
    def size(self) -> int:
        """Bytes."""
        ...

    def nonzero_in(self, offset: int, length: int) -> int | None:
        """The offset of the first byte in the range that is not zero on the medium; None: all are.

        :raises ValueError: there is no such range.
        :raises DeviceVanished: the disk is gone.
        :raises EraseFailed: it cannot be read there.
        """
        ...

    def zero(self, offset: int, length: int) -> None:
        """Overwrite the range with zeroes. It cannot be stopped, so it is not longer than :data:`LARGEST_STEP`.

        :raises ValueError: there is no such range, or it is longer.
        :raises DeviceVanished: the disk is gone.
        :raises EraseFailed: it cannot be overwritten there; how much of the range was, is not known.
        """
        ...

    def write_marker(self, offset: int, seed: bytes) -> None:
        """Write :data:`MARKER_BYTES` that only *seed* tells, at *offset*.

        :raises ValueError: there is no such range.
        :raises DeviceVanished: the disk is gone.
        :raises EraseFailed: it cannot be written there.
        """
        ...

    def has_marker(self, offset: int, seed: bytes) -> bool:
        """Whether what is on the medium at *offset* is the marker of *seed*.

        :raises ValueError: there is no such range.
        :raises DeviceVanished: the disk is gone.
        :raises EraseFailed: it cannot be read there.
        """
        ...

    def flush(self) -> None:
        """Have the drive write its volatile cache: zeroes that a power cut takes back are none.

        :raises DeviceVanished: the disk is gone.
        :raises EraseFailed: it does not.
        """
        ...

    def close(self) -> None:
        """Let go of the disk."""
        ...


@dataclass(frozen=True)
class OpenFile:
    """A program that has a node open.

    :param node: which.
    :param writes: it may write through it.
    """

    node: Path
    pid: int
    program: str
    writes: bool

    def __str__(self) -> str:
        return f"{self.program} (pid {self.pid})"


class ToolSink(Protocol):
    """Told of each external tool before it is waited for, and again when it has ended.

    The agent journals it, so that a restarted agent can wait out a tool that outlived its parent.
    A tool that cannot be ended is never reported as ended.
    """

    def started(self, pid: int, argv: Sequence[str]) -> None: ...
    def ended(self, pid: int) -> None: ...


@dataclass(frozen=True)
class Completed:
    """A command that ended by itself, in time.

    :param argv: the command, its first word resolved to the executable's path.
    :param returncode: its exit code; negative: the signal that ended it.
    :param stdout: what it wrote; bytes that are not UTF-8 stand as ``\\xNN``.
    :param stderr: likewise.
    """

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Deadline:
    """A moment on the monotonic clock.

    :param at: seconds of :func:`time.monotonic`.
    """

    at: float

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        """The moment *seconds* from now."""
        return cls(time.monotonic() + seconds)

    def remaining(self) -> float:
        """Seconds left; never negative."""
        return max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        return time.monotonic() >= self.at


LOG = logging.getLogger(__name__)

OUTPUT_LIMIT = 16 * 1024 * 1024
"""Bytes of output that no answer of a sane tool reaches."""
LINGER = 1.0
"""Seconds in which the children of a command that has ended may still finish their output."""
REAP = 5.0
"""Seconds after SIGKILL by which a process is gone, unless the kernel holds it (state D)."""

Line = Callable[[str], None]


class _Stream:
    """What was read of one pipe, and how much of it has been handed on as lines."""

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
    """One command in a session and process group of its own, without input.

    :param argv: the command; its first word is a path.
    :param prefix: the words before it, of a program that becomes the command.
    :param env: its whole environment.
    :raises OSError: it cannot be started.
    """

    def __init__(self, argv: Sequence[str], *, prefix: Sequence[str], env: Mapping[str, str]) -> None:
        self.argv = tuple(argv)
        self.ended = False
        """The command itself has ended; its children may not have."""
        self._process = subprocess.Popen(
            [*prefix, *argv],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._out = _Stream(self._process.stdout.fileno())
        self._err = _Stream(self._process.stderr.fileno())
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
        """The exit code; negative: the signal that ended it. Known after :meth:`end`."""
        assert self._process.returncode is not None
        return self._process.returncode

    @property
    def stdout(self) -> str:
        return self._out.text

    @property
    def stderr(self) -> str:
        return self._err.text

    def follow(self, deadline: Deadline, on_line: Line | None) -> bool:
        """Collect the output until the command ends; False: the deadline came first.

        :raises ToolGarbage: there is more of it than :data:`OUTPUT_LIMIT`.
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
        """End all of it, by force where something is left; False: something does not die.

        A process that still holds a pipe of ours counts as left, whatever group it has moved to.
        """
        if self.ended and not self._silent:
            LOG.warning("%s (pid %d) left processes behind that hold its output; killing them", self.argv[0], self.pid)
        # The command has not been reaped yet, so its number cannot be another group's.
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
        """Nobody can write to our pipes any more."""
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
            if on_line is not None:
                stream.hand_on(on_line, last=not chunk)


class Helper(Protocol):
    """What root does for this host.

    Each method does what its namesake in this package does and raises the same; and it raises
    :class:`HardwareError` where the helper refuses to do it, or has ended.
    """

    def find(self, name: str, directories: Sequence[Path]) -> str:
        """:meth:`Commands.find`; *directories* come before the system's."""
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
        """:meth:`Commands.run`. The tool is ended in time, and when the agent dies, by the helper itself."""
        ...

    def open_block(self, path: Path, *, writable: bool) -> Disk:
        """:func:`block.hold`."""
        ...

    def programs_with_open(self, nodes: Sequence[Path]) -> list[OpenFile]:
        """:func:`open_files.programs_with_open`."""
        ...

    def has_zfs_label(self, node: Path) -> bool:
        """:func:`zfs_label.is_on`."""
        ...

    def card_serial(self, address: PCIAddress, *, vital_product_data: bool) -> str | None:
        """:func:`card_serial.card_serial`."""
        ...

    def product_uuid(self) -> str | None:
        """:func:`host_hints.product_uuid`."""
        ...


class HoldDisk(Protocol):
    """Holds a disk open exclusively; see :func:`block.hold`."""

    def __call__(self, paths: "HostPaths", path: Path, *, writable: bool) -> Disk: ...


class AnswerTool(Protocol):
    """Answers a command of a simulated host in this process."""

    def __call__(self, argv: Sequence[str]) -> Completed | None:
        """Return what the program would say; None: it has to be run."""
        ...


@dataclass(frozen=True)
class HostPaths:
    """Roots under which the agent looks for the kernel's interfaces.

    :param sysfs: normally ``/sys``.
    :param dev: normally ``/dev``.
    :param proc: normally ``/proc``.
    :param etc: normally ``/etc``; the machine id, and settings of the tools that could take guests' drives.
    :param tools: directories searched for external tools before ``PATH``.
    :param hold_disk: what the nodes of disks stand for; None: block devices.
    :param answer_tool: what answers external tools instead of their programs; None: they are run.
    :param helper: who does what needs root; None: this process does it itself.
    """

    sysfs: Path = Path("/sys")
    dev: Path = Path("/dev")
    proc: Path = Path("/proc")
    etc: Path = Path("/etc")
    tools: tuple[Path, ...] = ()
    hold_disk: HoldDisk | None = None
    helper: Helper | None = None
    answer_tool: AnswerTool | None = None


@dataclass(frozen=True)
class Progress:
    """How far an erase is.

    :param percent: 0 to 100, or None while the tool has not said.
    :param step: what is being done, in words an operator knows.
    :param stalled: progress has stood still for long, see ``[nvme] stall_timeout``.
    :param seconds_left: estimate, or None.
    """

    percent: float | None
    step: str
    stalled: bool = False
    seconds_left: float | None = None


class ProgressSink(Protocol):
    """Receives progress; must not raise."""

    def __call__(self, progress: Progress) -> None: ...
