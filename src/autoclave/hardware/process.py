"""A child process with everything it starts: its output, its end, its forced end."""

import contextlib
import os
import selectors
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence

from oslo_log import log as logging

from autoclave.exceptions import ToolGarbage
from autoclave.hardware.deadline import Deadline

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
