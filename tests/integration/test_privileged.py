"""An ordinary user's agent does what needs root through its helper: all of it, no more, and no longer than it lives."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from oslo_privsep.capabilities import CAPS_BYNAME
from processes import wait_until

from autoclave.hardware.host import HostPaths
from autoclave.hardware.pci_functions import card_serial
from autoclave.hardware.privileged import CAPABILITIES, context
from autoclave.hardware.sysfs import product_uuid
from autoclave.rules.pci_address import PCIAddress

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can make an ordinary user's process and its helper"
)

HELPER = str(Path(sys.executable).parent / "autoclave-privileged")
DOCUMENTED = sum(1 << CAPS_BYNAME[name] for name in CAPABILITIES)
MIB = 1 << 20
LONG_ENOUGH = 5.0
"""Seconds in which a tool has begun and said what it has to say, on a busy machine too."""


class Launcher:
    """Starts the helper as root for a process that may not: what sudo does, without being set-uid.

    :attr command: for ``helper_command``.
    """

    def __init__(self, directory: Path) -> None:
        directory.chmod(0o711)
        self._asked, self._answered = directory / "asked", directory / "answered"
        for fifo in (self._asked, self._answered):
            os.mkfifo(fifo)
            fifo.chmod(0o666)
        script = directory / "as-root"
        script.write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$*" > {self._asked}\nread status < {self._answered}\nexit $status\n'
        )
        script.chmod(0o755)
        self.command = str(script)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            arguments = self._asked.read_text().split()
            if arguments == ["stop"]:
                return
            status = subprocess.run([HELPER, *arguments], check=False).returncode
            self._answered.write_text(f"{status}\n")

    def stop(self) -> None:
        self._asked.write_text("stop\n")


class Agent:
    """A process of user nobody that speaks as ordinary_user.py does."""

    def __init__(self, helper_command: str, log: Path) -> None:
        with log.open("ab") as stderr:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).with_name("ordinary_user.py")), helper_command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self.said: list[dict[str, Any]] = []

    def tell(self, *order: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()

    def hear(self, *kinds: str) -> dict[str, Any]:
        """The next answer of one of these kinds."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            answer: dict[str, Any] = json.loads(line)
            self.said.append(answer)
            if answer.keys() & set(kinds):
                return answer
        raise AssertionError(f"the agent ended; it said {self.said}")

    def ask(self, *order: Any) -> Any:
        """The result of an order that must succeed."""
        self.tell(*order)
        answer = self.hear("result", "error")
        assert "result" in answer, answer
        return answer["result"]

    def refusal(self, *order: Any) -> dict[str, Any]:
        """The error of an order that must not."""
        self.tell(*order)
        answer = self.hear("result", "error")
        assert "error" in answer, answer
        return answer

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def launcher(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launcher]:
    # pytest's own directories are closed to other users
    directory = Path(tempfile.mkdtemp())
    made = Launcher(directory)
    yield made
    made.stop()
    shutil.rmtree(directory)


@pytest.fixture
def agent(launcher: Launcher, tmp_path: Path) -> Iterator[Agent]:
    made = Agent(launcher.command, tmp_path / "agent.log")
    assert made.hear("result", "error") == {"result": "started"}, (tmp_path / "agent.log").read_text()
    yield made
    made.kill()


@pytest.fixture
def tools() -> Iterator[Callable[[str], str]]:
    """Puts a script in the place of nvme; in a directory that is root's alone, which those of /tmp are not."""
    directory = Path(tempfile.mkdtemp(dir="/run"))

    def make(script: str) -> str:
        # Put there whole: one that is being executed cannot be written to.
        (directory / "new").write_text(f"#!/bin/sh\n{script}\n")
        (directory / "new").chmod(0o755)
        (directory / "new").rename(directory / "nvme")
        return str(directory)

    yield make
    shutil.rmtree(directory)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[str]:
    """The node of a real block device of 64 MiB that bears the name of a namespace."""
    file = tmp_path / "disk"
    file.touch()
    os.truncate(file, 64 * MIB)
    try:
        made = subprocess.run(["losetup", "--find", "--show", file], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no loop device: {error}")
    loop = made.stdout.strip()
    node = f"/dev/nvme{os.getpid()}n1"
    os.mknod(node, 0o600 | 0o060000, os.stat(loop).st_rdev)
    yield node
    os.unlink(node)
    subprocess.run(["losetup", "--detach", loop], check=True)


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def read(path: str) -> str:
    with contextlib.suppress(FileNotFoundError):
        return Path(path).read_text().strip()
    return ""


def alive(pid: int) -> bool:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return status(pid)["State"][0] not in "ZX"
    return False


def parent(pid: int) -> int:
    return int(status(pid)["PPid"])


def test_a_tool_runs_as_root_with_the_documented_capabilities_and_no_others(
    agent: Agent, tools: Callable[[str], str]
) -> None:
    where = tools("id -u; cat /proc/self/status; echo done >&2; exit 3")

    argv, returncode, stdout, stderr = agent.ask("run", where, ["nvme", "version"], 60)

    assert agent.ask("whoami") == 65534
    assert (argv, returncode, stderr) == ([f"{where}/nvme", "version"], 3, "done\n")
    uid, *lines = stdout.splitlines()
    seen = dict(line.split(":\t", 1) for line in lines)
    assert uid == "0"
    assert int(seen["CapBnd"], 16) == int(seen["CapPrm"], 16) == int(seen["CapEff"], 16) == DOCUMENTED
    assert int(seen["CapInh"], 16) == int(seen["CapAmb"], 16) == 0


def test_the_helper_itself_has_given_up_everything_else_for_good(agent: Agent, tools: Callable[[str], str]) -> None:
    agent.tell("run", tools("exec sleep 1000"), ["nvme", "version"], 60)

    helper = status(parent(agent.hear("started")["started"]))

    assert helper["Uid"].split() == ["0"] * 4
    assert {int(helper[name], 16) for name in ("CapPrm", "CapEff", "CapBnd")} == {DOCUMENTED}


def test_news_of_a_tool_come_in_order_and_while_it_runs(agent: Agent, tools: Callable[[str], str]) -> None:
    agent.tell("run", tools("echo one; echo two; while [ ! -e $0.go ]; do sleep 0.01; done; echo three"),
               ["nvme", "version"], 60)  # fmt: skip
    pid = agent.hear("started")["started"]
    assert [agent.hear("line")["line"] for _ in range(2)] == ["one", "two"]

    Path(f"{agent.said[-3]['argv'][0]}.go").touch()

    assert agent.hear("result")["result"][2] == "one\ntwo\nthree\n"
    assert agent.said[-3:-1] == [{"line": "three"}, {"ended": pid}]


def test_the_deadline_kills_a_tool_with_all_that_it_started_though_nobody_follows_it(
    agent: Agent, tools: Callable[[str], str]
) -> None:
    where = tools("sleep 1000 & echo $! > $0.child; wait")
    pid = agent.ask("start_and_forget", where, ["nvme", "version"], LONG_ENOUGH)
    assert alive(pid)
    child = int(wait_until("the tool's child", lambda: read(f"{where}/nvme.child")))

    # The agent cannot have a hand in it.
    agent.process.send_signal(signal.SIGSTOP)
    try:
        wait_until("the end of the tool and its child", lambda: not alive(pid) and not alive(child))
    finally:
        agent.process.send_signal(signal.SIGCONT)


def test_a_tool_past_its_deadline_is_the_agents_own_error_with_the_tools_last_words(
    agent: Agent, tools: Callable[[str], str]
) -> None:
    error = agent.refusal("run", tools("echo erasing; exec sleep 1000"), ["nvme", "version"], LONG_ENOUGH)

    assert error["error"] == "ToolTimeout"
    assert "ran past its deadline and was killed; its last words: erasing" in error["message"]
    assert agent.said[-2] == {"ended": agent.said[0 if len(agent.said) < 4 else 1]["started"]}


def test_a_tool_that_cannot_be_journalled_is_not_let_run(agent: Agent, tools: Callable[[str], str]) -> None:
    error = agent.refusal("run", tools("exec sleep 1000"), ["nvme", "version"], 60, True)

    assert error["message"] == "the journal is full"
    [pid] = [answer["started"] for answer in agent.said if "started" in answer]
    assert not alive(pid)
    assert {"ended": pid} in agent.said


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM])
def test_when_the_agent_dies_its_tool_with_all_that_it_started_and_its_helper_die(
    agent: Agent, tools: Callable[[str], str], end: signal.Signals
) -> None:
    agent.tell("run", tools("sleep 1000 >/dev/null 2>&1 & echo $!; wait"), ["nvme", "version"], 1000)
    tool = agent.hear("started")["started"]
    child = int(agent.hear("line")["line"])
    helper = parent(tool)

    agent.process.send_signal(end)

    wait_until("the end of them all", lambda: not any(alive(pid) for pid in (tool, child, helper)))


def test_when_the_helper_dies_its_tool_dies_and_the_agent_says_so_and_has_a_new_one(
    agent: Agent, tools: Callable[[str], str]
) -> None:
    where = tools("echo up; [ -e $0.again ] || exec sleep 1000")
    agent.tell("run", where, ["nvme", "version"], 1000)
    tool = agent.hear("started")["started"]
    agent.hear("line")  # it has its death signal
    helper = parent(tool)

    os.kill(helper, signal.SIGKILL)

    error = agent.hear("error")
    assert error["error"] == "HardwareError"
    assert "helper" in error["message"]
    wait_until("the end of the tool", lambda: not alive(tool))
    assert {"ended": tool} not in agent.said, "nobody has seen it end"
    Path(f"{where}/nvme.again").touch()
    assert agent.ask("run", where, ["nvme", "version"], 60)[1] == 0


def test_many_tools_run_at_a_time(agent: Agent, tools: Callable[[str], str]) -> None:
    where = tools("exec sleep 1000")
    began = time.monotonic()

    pids = [agent.ask("start_and_forget", where, ["nvme", "version"], 100.0) for _ in range(12)]

    assert all(alive(pid) for pid in pids)
    assert agent.ask("run", tools("echo quick"), ["nvme", "version"], 60)[2] == "quick\n"
    assert time.monotonic() - began < 90


@pytest.mark.parametrize(
    "argv", [["sh", "-c", "id"], ["/bin/sh"], ["nvme", "id-ctrl", "/dev/sda"], ["shred", "--zero", "/etc/passwd"]]
)
def test_what_is_no_part_of_erasing_is_refused(agent: Agent, argv: list[str]) -> None:
    error = agent.refusal("run", "/usr/sbin", argv, 60)

    assert error["error"] == "HardwareError"
    assert "the privileged helper refuses to run" in error["message"]


def test_a_tool_that_an_ordinary_user_can_change_is_refused(agent: Agent, tools: Callable[[str], str]) -> None:
    where = tools("id")
    os.chown(where, 65534, 65534)

    error = agent.refusal("run", where, ["nvme", "version"], 60)

    assert error["error"] == "ToolMissing"
    assert error["message"].endswith(f"a user other than root can change {where}")
    assert error["args"] == [error["message"], ["nvme"]]


def test_a_disk_is_zeroed_and_read_back_by_a_user_who_may_not_even_open_it(agent: Agent, disk: str) -> None:
    with open(disk, "r+b") as stream:
        stream.seek(40 * MIB + 5)
        stream.write(b"secret")
    assert agent.ask("read_back", disk) == [64 * MIB, 40 * MIB + 5]

    agent.ask("zero", disk, 0, 64 * MIB)

    assert agent.ask("read_back", disk) == [64 * MIB, None]


def test_when_the_agent_dies_no_more_is_zeroed_than_the_step_at_work_and_the_disk_is_let_go(
    agent: Agent, disk: str
) -> None:
    agent.tell("zero_on_and_on", disk, 4 * MIB)
    while agent.hear("line")["line"] < 40:
        pass

    agent.kill()

    def free() -> bool:
        with contextlib.suppress(OSError):
            os.close(os.open(disk, os.O_RDONLY | os.O_EXCL))
            return True
        return False

    wait_until("the disk is free", free)
    with open(disk, "r+b") as stream:
        stream.write(b"x" * 64 * MIB)
        os.fsync(stream.fileno())
        time.sleep(1)
        stream.seek(0)
        assert stream.read().count(b"x") == 64 * MIB


def test_more_than_a_step_at_once_is_refused(agent: Agent, disk: str) -> None:
    assert "exceed the limit of one zeroing call" in agent.refusal("zero", disk, 0, 1 << 40)["message"]


def test_a_disk_is_held_exclusively_until_it_is_let_go(agent: Agent, disk: str) -> None:
    agent.tell("hold", disk)
    agent.hear("line")
    with pytest.raises(OSError, match="busy"):
        os.open(disk, os.O_RDONLY | os.O_EXCL)
    agent.tell("let it go")
    agent.hear("result")
    os.close(os.open(disk, os.O_RDONLY | os.O_EXCL))


@pytest.mark.parametrize("user", [0, 1000], ids=["root with all capabilities", "another user"])
def test_who_holds_a_disk_is_named_whoever_it_is(agent: Agent, disk: str, user: int) -> None:
    os.chmod(disk, 0o666)
    # A process that has changed its user counts as root's in /proc until it is dumpable again.
    become = f"os.setgid({user}); os.setuid({user}); ctypes.CDLL(None).prctl(4, 1, 0, 0, 0); " if user else ""
    script = f"import ctypes, os; {become}os.open('{disk}', os.O_RDWR | os.O_EXCL); print(1, flush=True); input()"
    holder = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert holder.stdout is not None
        holder.stdout.readline()

        error = agent.refusal("read_back", disk)

        program = Path(f"/proc/{holder.pid}/comm").read_text().strip()
        named = f"{disk} is open exclusively by {program} (pid {holder.pid})"
        assert (error["error"], error["message"], error["args"]) == ("DeviceInUse", named, [named, [named]])
        assert agent.ask("users", disk) == [[program, holder.pid, True]]
    finally:
        holder.communicate(b"\n")


def test_a_disk_that_is_not_there_has_vanished_and_another_is_not_touched(agent: Agent) -> None:
    assert agent.refusal("read_back", "/dev/nvme99999n1")["error"] == "DeviceVanished"
    assert "not a device node of this kind" in agent.refusal("read_back", "/dev/sda")["message"]


@pytest.mark.parametrize("command", ["/no/such/sudo privsep-helper", "/bin/false", "'unbalanced", "/etc/passwd"])
def test_a_helper_that_cannot_be_started_is_an_error_that_names_the_option(tmp_path: Path, command: str) -> None:
    agent = Agent(command, tmp_path / "agent.log")
    try:
        error = agent.hear("error", "result")
        assert error["error"] == "InvalidConfiguration"
        assert error["message"].startswith("[autoclave_privileged] helper_command: ")
        assert command in error["message"]
    finally:
        agent.kill()


def test_a_helper_that_is_started_as_an_ordinary_user_does_not_serve(tmp_path: Path) -> None:
    """The daemon dies of what it may not do, and the agent says which option is wrong."""
    agent = Agent(HELPER, tmp_path / "agent.log")
    try:
        assert agent.hear("error", "result")["error"] == "InvalidConfiguration"
    finally:
        agent.kill()


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--config-file", "/tmp/mine", "--privsep_context", context.pypath, "--privsep_sock_path", "/tmp/s"],
        ["--privsep_context", context.pypath, "--privsep_sock_path", "/tmp/s", "--config-file", "/tmp/mine"],
        ["--privsep_context", context.pypath, "--privsep_sock_path", "--config-file=/tmp/mine"],
        ["--privsep_context", "somebody.elses.context", "--privsep_sock_path", "/tmp/s"],
    ],
)
def test_the_helper_takes_no_configuration_and_no_code_from_its_caller(arguments: list[str]) -> None:
    done = subprocess.run([HELPER, *arguments], check=False, capture_output=True, text=True)

    assert done.returncode == 1
    assert done.stderr.startswith("autoclave-privileged is started by the agent")


def test_an_ordinary_user_learns_what_tells_the_machine_and_its_cards(agent: Agent) -> None:
    """As much as root does. A function that is not there has no serial, as for root."""
    here = HostPaths()
    addresses = [entry.name for entry in (here.sysfs / "bus/pci/devices").glob("*")] or ["0000:00:00.0"]
    for address in addresses[:4]:
        assert agent.ask("serial", address) == card_serial(here, PCIAddress.parse(address), vital_product_data=True)
    assert agent.ask("uuid") == product_uuid(here)
