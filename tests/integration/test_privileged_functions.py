"""The helper runs the operator's programs, and writes attributes of PCI functions, for an agent without privileges."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from processes import wait_until
from test_privileged import DOCUMENTED, LONG_ENOUGH, Agent, Launcher, alive, parent, read

from autoclave.exceptions import HardwareError
from autoclave.hardware.function_access import function_users
from autoclave.hardware.host import HostPaths
from autoclave.hardware.sysfs import BRIDGE_CLASS, pci_functions
from autoclave.rules.reclaim import CLEAR_PROGRAMS

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can make an ordinary user's process and its helper"
)

Program = Callable[[str], str]


@pytest.fixture
def launcher() -> Iterator[Launcher]:
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
def program() -> Iterator[Program]:
    """Install a program of the operator in the real directory; it is removed afterwards."""
    directory = Path(CLEAR_PROGRAMS)
    new = [each for each in (directory, directory.parent) if not each.exists()]
    directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = directory / f"test-{os.getpid()}"

    def make(script: str) -> str:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return str(path)

    yield make
    for left in directory.glob(f"{path.name}*"):
        left.unlink()
    for each in new:
        each.rmdir()


@pytest.fixture
def idle() -> str:
    """A PCI function of this machine that nothing uses. It is never written to."""
    paths = HostPaths()
    try:
        for function in pci_functions(paths)[0]:
            if not function_users(paths, function):
                return str(function.address)
    except HardwareError as error:
        pytest.skip(str(error))
    pytest.skip("this machine has no unused PCI function")


def test_a_program_runs_as_root_with_documented_capabilities(agent: Agent, program: Program, idle: str) -> None:
    path = program('id -u; env; grep Cap /proc/self/status; printf "%s|" "$@"; pwd; cat; exit 3')

    argv, returncode, stdout, _ = agent.ask("clear", idle, [path, "a b", "$(id)"], 60)

    assert (argv, returncode) == ([path, "a b", "$(id)"], 3)
    uid, *lines, last = stdout.splitlines()
    seen = dict(line.replace(":\t", "=").split("=", 1) for line in lines)
    assert (uid, last) == ("0", "a b|$(id)|/")
    assert {int(seen[name], 16) for name in ("CapBnd", "CapPrm", "CapEff")} == {DOCUMENTED}
    ours = {name: text for name, text in seen.items() if name.startswith("AUTOCLAVE_")}
    vendor, product = (
        Path(f"/sys/bus/pci/devices/{idle}/{name}").read_text().strip()[2:] for name in ("vendor", "device")
    )
    assert ours.pop("AUTOCLAVE_TIMEOUT") in ("58", "59")
    assert ours == {
        "AUTOCLAVE_PCI_ADDRESS": idle,
        "AUTOCLAVE_VENDOR_ID": vendor,
        "AUTOCLAVE_PRODUCT_ID": product,
        "AUTOCLAVE_DEVICE_UUID": "5d0e64c1-6a1c-4a3b-8b53-0d7c1f2a9e44",
    }
    assert (seen["PATH"], seen["LANG"]) == ("/usr/sbin:/usr/bin:/sbin:/bin", "C.UTF-8")


def test_lines_of_a_program_arrive_while_it_runs(agent: Agent, program: Program, idle: str, tmp_path: Path) -> None:
    go = tmp_path / "go"
    path = program(f"echo progress 10; while [ ! -e {go} ]; do sleep 0.01; done; echo progress 20")
    agent.tell("clear", idle, [path], 60)
    pid = agent.hear("started")["started"]
    assert agent.hear("line")["line"] == "progress 10"

    go.touch()

    assert agent.hear("result")["result"][1:3] == [0, "progress 10\nprogress 20\n"]
    assert {"ended": pid} in agent.said


def test_the_deadline_kills_a_program_that_nothing_follows(
    agent: Agent, program: Program, idle: str, tmp_path: Path
) -> None:
    """With all that it started, while the agent is stopped."""
    path = program(f"sleep 1000 & echo $! > {tmp_path}/child; wait")
    pid = agent.ask("clear_and_forget", idle, [path], LONG_ENOUGH)
    assert alive(pid)
    child = int(wait_until("the program's child", lambda: read(f"{tmp_path}/child")))

    agent.process.send_signal(signal.SIGSTOP)
    try:
        wait_until("the end of the program and its child", lambda: not alive(pid) and not alive(child))
    finally:
        agent.process.send_signal(signal.SIGCONT)


def test_a_program_dies_with_its_agent(agent: Agent, program: Program, idle: str) -> None:
    agent.tell("clear", idle, [program("sleep 1000 >/dev/null 2>&1 & echo $!; wait")], 1000)
    tool = agent.hear("started")["started"]
    child = int(agent.hear("line")["line"])
    helper = parent(tool)

    agent.kill()

    wait_until("the end of them all", lambda: not any(alive(pid) for pid in (tool, child, helper)))


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["/bin/sh", "-c", "id"],
        ["sh"],
        [f"{CLEAR_PROGRAMS}/../../../bin/sh"],
        [f"{CLEAR_PROGRAMS}/x/../../../../bin/sh"],
        [CLEAR_PROGRAMS],
    ],
)
def test_another_program_is_refused(agent: Agent, idle: str, argv: list[str]) -> None:
    error = agent.refusal("clear", idle, argv, 60)
    assert error["error"] == "HardwareError"
    assert "the privileged helper does not run" in error["message"]
    if argv:
        assert "does not run" in agent.refusal("check", argv[0])["message"]


def _writable(path: Path) -> None:
    path.chmod(0o757)


def _foreign(path: Path) -> None:
    os.chown(path, 65534, -1)


def _linked(path: Path) -> None:
    path.rename(f"{path}.other")
    path.symlink_to(f"{path}.other")


def _missing(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (_writable, "a user other than root can change"),
        (_foreign, "a user other than root can change"),
        (_linked, "it is a symbolic link"),
        (_missing, "No such file or directory"),
    ],
)
def test_a_program_that_others_can_change_is_refused(
    agent: Agent, program: Program, idle: str, damage: Callable[[Path], None], words: str
) -> None:
    """The check right before the execution finds what the check before did not."""
    path = program("id")
    agent.ask("check", path)
    damage(Path(path))
    for order in (("check", path), ("clear", idle, [path], 60)):
        error = agent.refusal(*order)
        assert error["error"] == "ToolMissing"
        assert words in error["message"]


def test_a_directory_that_others_can_change_is_refused(agent: Agent, program: Program, idle: str) -> None:
    path = program("id")
    directory = Path(CLEAR_PROGRAMS)
    before = directory.stat().st_mode & 0o7777
    directory.chmod(0o777)
    try:
        assert f"can change {directory}" in agent.refusal("clear", idle, [path], 60)["message"]
    finally:
        directory.chmod(before)


def test_a_device_without_a_uuid_is_refused(agent: Agent, program: Program, idle: str) -> None:
    error = agent.refusal("clear", idle, [program("id")], 60, "x\nLD_PRELOAD=/tmp/x")
    assert "does not take" in error["message"]


def test_a_program_is_refused_while_something_uses_the_function(agent: Agent, program: Program, tmp_path: Path) -> None:
    paths = HostPaths()
    used = [each for each in pci_functions(paths)[0] if each.driver and function_users(paths, each)]
    if not used:
        pytest.skip("this machine uses no PCI function")
    path = program(f"touch {tmp_path}/ran")
    assert agent.refusal("clear", str(used[0].address), [path], 60)["error"] == "DeviceInUse"
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [("remove", "1"), ("reset", "0"), ("reset", "1\n"), ("reset_method", ""), ("../rescan", "1"), ("", "1")],
)
def test_another_attribute_is_not_written(agent: Agent, idle: str, name: str, text: str) -> None:
    assert "the privileged helper does not write" in agent.refusal("write", idle, name, text)["message"]


def test_a_bridge_is_not_reset(agent: Agent) -> None:
    bridges = [each for each in pci_functions(HostPaths())[0] if each.class_code.startswith(BRIDGE_CLASS)]
    if not bridges:
        pytest.skip("this machine shows no PCI bridge")
    assert "is not written" in agent.refusal("write", str(bridges[0].address), "reset", "1")["message"]
