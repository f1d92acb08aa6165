"""External tools: found or named, heard, ended in time with all that they started, and never left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from autoclave.exceptions import ToolError, ToolGarbage, ToolMissing, ToolTimeout
from autoclave.hardware import host
from autoclave.hardware.command import Commands
from autoclave.hardware.host import Deadline, HostPaths

PATIENCE = 60.0
"""Seconds after which a test gives up; nothing here takes that long."""


class Heard:
    """A sink that notes what it is told."""

    def __init__(self) -> None:
        self.news: list[tuple[str, int]] = []

    def started(self, pid: int, argv: Sequence[str]) -> None:
        self.news.append((f"started {os.path.basename(argv[0])}", pid))

    def ended(self, pid: int) -> None:
        self.news.append(("ended", pid))


@pytest.fixture
def tools(tmp_path: Path) -> Callable[[str, str], Path]:
    """Makes an executable shell script in the host's tools directory."""
    (tmp_path / "tools").mkdir()

    def make(name: str, script: str) -> Path:
        tool = tmp_path / "tools" / name
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(0o755)
        return tool

    return make


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(HostPaths(tools=(tmp_path / "tools",)))


def soon() -> Deadline:
    return Deadline.after(PATIENCE)


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that other processes do."""
    deadline = soon()
    while not condition():
        assert not deadline.passed, f"waited in vain: {what}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return text.rpartition(")")[2].split()[0] not in ("Z", "X")


def pid_in(file: Path) -> int:
    until(lambda: file.exists() and file.read_text().endswith("\n"), f"{file} to be written")
    return int(file.read_text())


def test_both_streams_and_the_exit_code_are_returned_and_a_failure_is_no_exception(
    commands: Commands, tools: Callable[[str, str], Path]
) -> None:
    tool = tools("nvme", 'echo "got $1"; echo oops >&2; exit 3')

    done = commands.run(["nvme", "a b; $HOME *"], deadline=soon())

    assert done.argv == (str(tool), "a b; $HOME *")
    assert (done.returncode, done.stdout, done.stderr) == (3, "got a b; $HOME *\n", "oops\n")


def test_a_signal_shows_as_a_negative_exit_code(commands: Commands, tools: Callable[[str, str], Path]) -> None:
    tools("nvme", "kill -TERM $$")

    assert commands.run(["nvme"], deadline=soon()).returncode == -signal.SIGTERM


def test_a_tool_gets_no_input_and_speaks_english(
    commands: Commands, tools: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    tools("nvme", 'cat; echo "$LC_ALL"')

    assert commands.run(["nvme"], deadline=soon()).stdout == "C\n"


def test_bytes_that_are_no_text_are_kept_apart_and_not_lost(
    commands: Commands, tools: Callable[[str, str], Path]
) -> None:
    tools("nvme", r"printf 'S\377\376N'")

    assert commands.run(["nvme"], deadline=soon()).stdout == r"S\xff\xfeN"


def test_the_hosts_own_tools_come_before_those_of_the_path(
    commands: Commands, tools: Callable[[str, str], Path]
) -> None:
    before = commands.find("sh")
    own = tools("sh", "exit 0")

    assert before != str(own)
    assert commands.find("sh") == str(own)


def test_system_directories_are_searched_even_if_the_path_lacks_them(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")

    assert commands.find("sh") in ("/usr/bin/sh", "/bin/sh")


def test_nothing_is_run_from_the_working_directory(
    commands: Commands, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    impostor = tmp_path / "no-such-tool"
    impostor.write_text("#!/bin/sh\n")
    impostor.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ":.:/usr/bin")

    with pytest.raises(ToolMissing):
        commands.find("no-such-tool")


def test_a_missing_tool_is_named_with_the_package_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("autoclave.hardware.command._SYSTEM_DIRECTORIES", ())
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ToolMissing, match=f"no executable nvme in {tmp_path}: install the package nvme-cli"):
        Commands(HostPaths()).run(["nvme", "version"], deadline=soon())


def test_a_path_that_may_not_be_executed_is_missing(commands: Commands, tmp_path: Path) -> None:
    (tmp_path / "nvme").write_text("#!/bin/sh\n")

    with pytest.raises(ToolMissing, match="not executable"):
        commands.run([str(tmp_path / "nvme")], deadline=soon())


@pytest.mark.parametrize("with_setpriv", [True, False])
def test_a_script_without_its_interpreter_cannot_be_started(
    commands: Commands, tools: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch, with_setpriv: bool
) -> None:
    if not with_setpriv:
        tools("setpriv", "exit 1")
    tools("nvme", "").write_text("#!/no/such/interpreter\n")

    with pytest.raises(ToolMissing, match="nvme cannot be started"):
        commands.run(["nvme"], deadline=soon())


def test_lines_of_both_streams_come_while_the_tool_runs(
    commands: Commands, tools: Callable[[str, str], Path], tmp_path: Path
) -> None:
    # The tool waits until the line has been seen; without streaming the deadline passes.
    tools("shred", f"echo 10% >&2; while [ ! -e {tmp_path}/seen ]; do sleep 0.01; done; printf '50%%\\r99%%\\rdone'")
    lines: list[str] = []

    def on_line(line: str) -> None:
        lines.append(line)
        (tmp_path / "seen").touch()

    done = commands.run(["shred"], deadline=soon(), on_line=on_line)

    assert lines == ["10%", "50%", "99%", "done"]
    assert (done.stdout, done.stderr) == ("50%\r99%\rdone", "10%\n")


def test_the_sink_hears_of_a_tool_before_it_is_waited_for_and_when_it_has_ended(
    commands: Commands, tools: Callable[[str, str], Path], tmp_path: Path
) -> None:
    tools("nvme", f"echo $$ > {tmp_path}/pid")
    sink = Heard()

    commands.run(["nvme"], deadline=soon(), tools=sink)

    pid = pid_in(tmp_path / "pid")
    assert sink.news == [("started nvme", pid), ("ended", pid)]


def test_a_tool_that_cannot_be_journalled_is_not_let_run(commands: Commands, tools: Callable[[str, str], Path]) -> None:
    tools("nvme", "sleep 1000")
    pids = []

    class Full(Heard):
        def started(self, pid: int, argv: Sequence[str]) -> None:
            pids.append(pid)
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        commands.run(["nvme"], deadline=soon(), tools=Full())

    assert not alive(pids[0])


def test_a_hanging_tool_is_killed_with_its_grandchildren_though_they_ignore_sigterm(
    commands: Commands, tools: Callable[[str, str], Path], tmp_path: Path
) -> None:
    tools(
        "nvme",
        f"trap '' TERM; (trap '' TERM; sh -c 'echo $$ > {tmp_path}/grandchild; exec sleep 1000') & echo erasing; wait",
    )
    sink = Heard()

    with pytest.raises(ToolTimeout, match=r"nvme \(pid \d+\) ran past its deadline and was killed.*erasing") as caught:
        commands.run(["nvme", "sanitize"], deadline=Deadline.after(5.0), tools=sink)

    assert caught.value.argv[1:] == ("sanitize",)
    assert [word for word, _ in sink.news] == ["started nvme", "ended"]
    assert not alive(sink.news[0][1])
    grandchild = pid_in(tmp_path / "grandchild")
    until(lambda: not alive(grandchild), "the grandchild to die")


def test_a_tool_is_not_started_when_no_time_is_left(
    commands: Commands, tools: Callable[[str, str], Path], tmp_path: Path
) -> None:
    tools("nvme", f"touch {tmp_path}/ran")

    with pytest.raises(ToolTimeout, match="not started"):
        commands.run(["nvme"], deadline=Deadline.after(0))

    assert not (tmp_path / "ran").exists()


def test_a_tool_that_never_stops_talking_is_killed(
    commands: Commands, tools: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "OUTPUT_LIMIT", 100_000)
    tools("nvme", "exec yes garbage")
    sink = Heard()

    with pytest.raises(ToolGarbage, match="nvme wrote more than 100000 bytes"):
        commands.run(["nvme"], deadline=soon(), tools=sink)

    assert not alive(sink.news[0][1])


def test_what_an_ended_tool_left_running_is_ended_too(
    commands: Commands, tools: Callable[[str, str], Path], tmp_path: Path
) -> None:
    tools("nvme", f"sleep 1000 >/dev/null 2>&1 & echo $! > {tmp_path}/left; echo fine")

    done = commands.run(["nvme"], deadline=soon())

    assert (done.returncode, done.stdout) == (0, "fine\n")
    left = pid_in(tmp_path / "left")
    until(lambda: not alive(left), "the process left behind to die")


def test_success_is_not_believed_while_a_process_of_the_tool_escapes(
    commands: Commands, tools: Callable[[str, str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "LINGER", 0.05)
    monkeypatch.setattr(host, "REAP", 0.2)
    # In a session of its own it is out of reach of the group's signal, but it holds our pipe.
    tools(
        "nvme",
        f"cd {tmp_path}; setsid sh -c 'echo $$ > escaped; exec sleep 1000' & "
        f"while [ ! -s {tmp_path}/escaped ]; do sleep 0.01; done",
    )
    sink = Heard()

    try:
        with pytest.raises(ToolError, match="a process that it started cannot be ended"):
            commands.run(["nvme"], deadline=soon(), tools=sink)
        assert [word for word, _ in sink.news] == ["started nvme"]
    finally:
        os.kill(pid_in(tmp_path / "escaped"), signal.SIGKILL)


def test_a_tool_that_even_sigkill_does_not_end_blocks_nobody_for_ever(
    commands: Commands, tools: Callable[[str, str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # State D cannot be had without a broken drive; to us it is a process on which SIGKILL has no effect.
    monkeypatch.setattr(host, "REAP", 0.1)
    monkeypatch.setattr(host.os, "killpg", lambda pid, signal: None)
    tools("nvme", "exec sleep 1000")
    sink = Heard()

    try:
        with pytest.raises(ToolTimeout, match=r"pid \d+\) ran past its deadline and does not die when killed"):
            commands.run(["nvme"], deadline=Deadline.after(1.0), tools=sink)
        assert [word for word, _ in sink.news] == ["started nvme"]
    finally:
        os.kill(sink.news[0][1], signal.SIGKILL)


def test_a_tool_dies_with_an_agent_that_is_killed(tools: Callable[[str, str], Path], tmp_path: Path) -> None:
    tools("nvme", f"echo $$ > {tmp_path}/tool; exec sleep 1000")
    agent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from pathlib import Path\n"
            "from autoclave.hardware.command import Commands\n"
            "from autoclave.hardware.host import Deadline\n"
            "from autoclave.hardware.host import HostPaths\n"
            f"Commands(HostPaths(tools=(Path({str(tmp_path / 'tools')!r}),)))"
            ".run(['nvme'], deadline=Deadline.after(1000))\n",
        ]
    )
    tool = pid_in(tmp_path / "tool")
    assert alive(tool)

    agent.kill()
    agent.wait()

    until(lambda: not alive(tool), "the tool to die with its parent")


def test_without_a_usable_setpriv_tools_run_all_the_same_and_it_is_said(
    commands: Commands, tools: Callable[[str, str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    tools("setpriv", "echo 'unrecognized option --pdeathsig' >&2; exit 1")
    tools("nvme", "echo fine")

    assert commands.run(["nvme"], deadline=soon()).stdout == "fine\n"
    assert "may outlive this process" in caplog.text


def test_a_chosen_tool_that_may_not_be_executed_is_not_replaced_by_the_systems(tmp_path):
    (tmp_path / "true").write_text("#!/bin/sh\n")  # and no execute bit; /bin/true has one
    with pytest.raises(ToolMissing, match="is not executable"):
        Commands(HostPaths(tools=(tmp_path,))).find("true")
