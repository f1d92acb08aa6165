"""The journal of running tools: who still works on a drive after the agent has died."""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoclave.exceptions import HardwareError
from autoclave.hardware.host import Deadline
from autoclave.hardware.journal import ToolJournal

DRIVE = "0f2c7c2e-6a3e-4a58-9c39-3a7d3f4a4a10"
OTHER = "7b1e5d0c-93b5-4a3b-8a43-1e4e3a6f9d55"
ARGV = ("/usr/sbin/nvme", "sanitize", "/dev/nvme0")


@pytest.fixture
def tool() -> Iterator[subprocess.Popen[bytes]]:
    """A process that runs as long as it is left alone, in a session of its own as tools are."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Neither it nor its parent is there yet, as before the first tool of a host."""
    return tmp_path / "tools" / "host-1"


def test_a_tool_that_outlived_its_agent_is_known_to_the_next_one(
    directory: Path, tool: "subprocess.Popen[bytes]"
) -> None:
    ToolJournal(directory).for_device(DRIVE).started(tool.pid, ARGV)

    assert ToolJournal(directory).devices() == [DRIVE]
    assert ToolJournal(directory).survivors(DRIVE) == [(tool.pid, ARGV)]


def test_a_tool_that_ended_in_order_leaves_nothing(directory: Path, tool: "subprocess.Popen[bytes]") -> None:
    sink = ToolJournal(directory).for_device(DRIVE)
    sink.started(tool.pid, ARGV)
    sink.ended(tool.pid)

    assert ToolJournal(directory).survivors(DRIVE) == []
    assert list(directory.iterdir()) == []


def test_a_tool_ends_in_order_though_its_journal_was_removed(directory: Path, tool: "subprocess.Popen[bytes]") -> None:
    """An error about a journal that cannot be read asks the operator to remove it."""
    sink = ToolJournal(directory).for_device(DRIVE)
    sink.started(tool.pid, ARGV)
    (directory / f"{DRIVE}.json").unlink()
    sink.ended(tool.pid)

    assert ToolJournal(directory).devices() == []


def test_a_tool_that_died_with_its_agent_is_no_survivor(directory: Path, tool: "subprocess.Popen[bytes]") -> None:
    ToolJournal(directory).for_device(DRIVE).started(tool.pid, ARGV)
    tool.kill()
    os.waitid(os.P_PID, tool.pid, os.WEXITED | os.WNOWAIT)

    assert ToolJournal(directory).survivors(DRIVE) == [], "it is a zombie: dead, though its number is still taken"
    tool.wait()
    assert ToolJournal(directory).survivors(DRIVE) == []


@pytest.mark.parametrize("field", ["start_time", "boot_id"])
def test_a_stranger_with_the_same_process_number_is_no_survivor(
    directory: Path, tool: "subprocess.Popen[bytes]", field: str
) -> None:
    ToolJournal(directory).for_device(DRIVE).started(tool.pid, ARGV)
    file = directory / f"{DRIVE}.json"
    [entry] = json.loads(file.read_text())
    others = {"start_time": entry["start_time"] - 1, "boot_id": "an earlier boot"}
    file.write_text(json.dumps([entry | {field: others[field]}]))

    assert ToolJournal(directory).survivors(DRIVE) == []


def test_a_tool_with_an_odd_name_is_known(directory: Path, tmp_path: Path) -> None:
    """The kernel shows the name in parentheses, before the state: here as that of a dead process."""
    name = os.fsencode(tmp_path) + b"/x) Z 1 \xff"
    sleep = shutil.which("sleep")
    assert sleep is not None
    os.symlink(sleep, name)
    tool = subprocess.Popen([name, "1000"], start_new_session=True)
    try:
        ToolJournal(directory).for_device(DRIVE).started(tool.pid, ARGV)

        assert ToolJournal(directory).survivors(DRIVE) == [(tool.pid, ARGV)]
    finally:
        tool.kill()
        tool.wait()


def test_a_child_that_outlives_the_tool_still_works_on_the_drive(directory: Path) -> None:
    wrapper = subprocess.Popen(
        ["sh", "-c", "sleep 1000 & echo $!; read hold"],
        start_new_session=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert wrapper.stdout is not None
    child = int(wrapper.stdout.readline())
    ToolJournal(directory).for_device(DRIVE).started(wrapper.pid, ARGV)
    try:
        wrapper.kill()
        wrapper.wait()

        assert ToolJournal(directory).survivors(DRIVE) == [(wrapper.pid, ARGV)]
    finally:
        os.kill(child, 9)
        wrapper.stdout.close()


def test_devices_are_kept_apart(directory: Path, tool: "subprocess.Popen[bytes]") -> None:
    journal = ToolJournal(directory)
    journal.for_device(DRIVE).started(tool.pid, ARGV)
    journal.for_device(OTHER).started(os.getpid(), ("shred",))
    journal.for_device(OTHER).ended(os.getpid())

    assert journal.survivors(DRIVE) == [(tool.pid, ARGV)]
    assert journal.wait_out(OTHER, Deadline.after(0))


def test_a_new_tool_does_not_make_the_journal_forget_a_survivor(
    directory: Path, tool: "subprocess.Popen[bytes]"
) -> None:
    ToolJournal(directory).for_device(DRIVE).started(tool.pid, ARGV)
    sink = ToolJournal(directory).for_device(DRIVE)
    sink.started(os.getpid(), ("shred",))
    sink.ended(os.getpid())

    assert ToolJournal(directory).survivors(DRIVE) == [(tool.pid, ARGV)]


def test_waiting_out_a_tool_ends_when_the_tool_does(directory: Path, tool: "subprocess.Popen[bytes]") -> None:
    journal = ToolJournal(directory)
    journal.for_device(DRIVE).started(tool.pid, ARGV)
    threading.Timer(0.1, tool.kill).start()

    assert journal.wait_out(DRIVE, Deadline.after(30))


def test_waiting_out_a_tool_gives_up_at_the_deadline(directory: Path, tool: "subprocess.Popen[bytes]") -> None:
    journal = ToolJournal(directory)
    journal.for_device(DRIVE).started(tool.pid, ARGV)

    assert not journal.wait_out(DRIVE, Deadline.after(0.1))


def test_an_agent_that_never_ran_a_tool_has_no_survivors(directory: Path) -> None:
    assert ToolJournal(directory).devices() == []
    assert ToolJournal(directory).survivors(DRIVE) == []


@pytest.mark.parametrize("text", ["", "{", "[{}]", "[1]", "3", '[{"pid": 1}]'])
def test_a_journal_that_cannot_be_understood_is_not_taken_for_an_empty_one(directory: Path, text: str) -> None:
    directory.mkdir(parents=True)
    (directory / f"{DRIVE}.json").write_text(text)

    with pytest.raises(HardwareError, match=f"{DRIVE}.json.*remove the file"):
        ToolJournal(directory).survivors(DRIVE)


def test_a_tool_that_cannot_be_kept_in_mind_is_refused(tmp_path: Path, tool: "subprocess.Popen[bytes]") -> None:
    (tmp_path / "tools").write_text("a file where the directory belongs")

    with pytest.raises(HardwareError, match=r"cannot (read|write) the journal"):
        ToolJournal(tmp_path / "tools").for_device(DRIVE).started(tool.pid, ARGV)
