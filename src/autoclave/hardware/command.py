"""Run external commands without a shell and within a deadline."""

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

from oslo_log import log as logging

from autoclave.exceptions import ToolError, ToolMissing, ToolTimeout
from autoclave.hardware.host import Completed, Deadline, HostPaths, Line, ProcessGroup, ToolSink
from autoclave.rules.plain_text import excerpt

LOG = logging.getLogger(__name__)

_SYSTEM_DIRECTORIES = ("/usr/sbin", "/sbin", "/usr/bin", "/bin")
_PACKAGES = {
    "lvmconfig": "lvm2",
    "nvme": "nvme-cli",
    "prlimit": "util-linux",
    "qemu-img": "qemu-utils",
    "setpriv": "util-linux",
    "shred": "coreutils",
    "vgchange": "lvm2",
    "vgs": "lvm2",
}
_LAST_WORDS = 500


class Commands:
    """Run the tools of one host, directly or through its helper.

    :param paths: the host; its ``tools`` are searched before ``PATH``.
    :param environment: the environment of the tools; by default that of this process.
    """

    def __init__(self, paths: HostPaths, environment: Mapping[str, str] | None = None) -> None:
        self.paths = paths
        self._inherited = os.environ if environment is None else environment

    def find(self, name: str) -> str:
        """Return the path of the executable *name*, which may already be a path.

        :raises ToolMissing: it does not exist, or may not be executed.
        """
        if self.paths.helper is not None:
            return self.paths.helper.find(name, self.paths.tools)
        if os.sep in name:
            if shutil.which(name) is None:
                raise ToolMissing(f"{name} does not exist or is not executable", [name])
            return name
        for directory in self.paths.tools:
            # The operator's directory takes precedence: never fall back to a tool of that name elsewhere on PATH.
            chosen = directory / name
            if chosen.exists() and not os.access(chosen, os.X_OK):
                raise ToolMissing(f"{chosen} is not executable", [name])
        directories = self._directories()
        found = shutil.which(name, path=os.pathsep.join(directories))
        if found is None:
            raise ToolMissing(
                f"there is no executable {name} in {', '.join(directories)}: "
                f"install the package {_PACKAGES.get(name, name)}",
                [name],
            )
        return found

    def run(
        self,
        argv: Sequence[str],
        *,
        deadline: Deadline,
        tools: ToolSink | None = None,
        on_line: Line | None = None,
    ) -> Completed:
        """Run *argv* and return its result, whatever its exit code.

        The command gets no shell, no input, the C locale, and its own process group. It dies with the calling thread:
        on Linux the death signal follows the parent thread, which waits here.

        :param on_line: called in this thread with each line of either stream as it arrives.
        :raises ToolMissing: the executable does not exist or may not be run.
        :raises ToolTimeout: the deadline passed; the whole process group was killed.
        :raises ToolGarbage: it exceeded the output limit and was killed.
        :raises ToolError: it ended, but left a process behind that cannot be killed.
        """
        if self.paths.helper is not None:
            return self.paths.helper.run(argv, self.paths.tools, deadline=deadline, tools=tools, on_line=on_line)
        command = (self.find(argv[0]), *argv[1:])
        name = os.path.basename(argv[0])
        if deadline.passed:
            raise ToolTimeout(f"{name} was not started: no time was left", command)
        answered = None if self.paths.answer_tool is None else self.paths.answer_tool(command)
        if answered is not None:
            return answered
        return self.execute(command, self._environment(), deadline=deadline, tools=tools, on_line=on_line)

    def execute(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        deadline: Deadline,
        tools: ToolSink | None = None,
        on_line: Line | None = None,
        program: int | None = None,
        cwd: Path | None = None,
        only_stdout: bool = False,
    ) -> Completed:
        """Run a command in this process with its whole *environment*; see :meth:`run`.

        :param command: begins with the path of the executable.
        :param program: see :class:`ProcessGroup`, also for *cwd* and *only_stdout*.
        """
        command, name = tuple(command), os.path.basename(command[0])
        try:
            group = ProcessGroup(
                command, prefix=self._lifeline, env=environment, program=program, cwd=cwd, only_stdout=only_stdout
            )
        except OSError as e:
            raise ToolMissing(f"{command[0]} cannot be started: {e.strerror or e}", command) from e
        try:
            if tools is not None:
                tools.started(group.pid, command)
            in_time = group.follow(deadline, on_line)
        finally:
            gone = group.end()
            if not gone:
                LOG.error("%s (pid %d) or a process that it started survives SIGKILL", name, group.pid)
            if gone and tools is not None:
                tools.ended(group.pid)
        if not group.ended:
            raise ToolTimeout(
                f"{name} (pid {group.pid}) ran past its deadline and does not die when killed: the kernel holds it, "
                f"most likely in I/O to the drive; it may go on until the host is restarted{_last_words(group)}",
                command,
            )
        if not in_time:
            left = "" if gone else "; a process that it started is still there"
            raise ToolTimeout(
                f"{name} (pid {group.pid}) ran past its deadline and was killed{left}{_last_words(group)}", command
            )
        if not gone:
            raise ToolError(f"{name} (pid {group.pid}) ended, but a process that it started cannot be ended", command)
        if group.returncode in (126, 127) and group.stderr.startswith("setpriv: failed to execute"):
            raise ToolMissing(f"{command[0]} cannot be started: {excerpt(group.stderr)}", command)
        return Completed(command, group.returncode, group.stdout, group.stderr)

    def _directories(self) -> list[str]:
        inherited = [entry for entry in self._inherited.get("PATH", "").split(os.pathsep) if os.path.isabs(entry)]
        return list(dict.fromkeys([*map(str, self.paths.tools), *inherited, *_SYSTEM_DIRECTORIES]))

    def _environment(self) -> dict[str, str]:
        return {**self._inherited, "LC_ALL": "C", "PATH": os.pathsep.join(self._directories())}

    @cached_property
    def _lifeline(self) -> tuple[str, ...]:
        """Return the command prefix that makes a tool die with this process.

        A preexec hook does not suffice: a program that gains capabilities on execution loses a death signal set before.
        Not every setpriv has the option, so it is tried once.
        """
        try:
            prefix = (self.find("setpriv"), "--pdeathsig", "KILL", "--")
            subprocess.run([*prefix, "true"], check=True, capture_output=True, timeout=10, env=self._environment())
        except (ToolMissing, OSError, subprocess.SubprocessError) as e:
            LOG.warning(
                "External tools may outlive this process if it is killed: setpriv --pdeathsig cannot be used (%s)", e
            )
            return ()
        return prefix


def _last_words(group: ProcessGroup) -> str:
    words = excerpt((group.stderr.strip() or group.stdout.strip())[-_LAST_WORDS:], _LAST_WORDS)
    return f"; its last words: {words}" if words else ""
