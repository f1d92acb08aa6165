"""The stand-in for nvme-cli answers without a process what its program answers."""

import subprocess
from pathlib import Path

import pytest

from autoclave.simulator.drive_spec import default_drives
from autoclave.simulator.faults import Fault, FaultKind
from autoclave.simulator.host import STYLES, SimulatedHost, ToolAnswers

READING = [
    ["version"],
    ["id-ctrl", "{dev}/nvme0", "-o", "json"],
    ["id-ns", "{dev}/nvme0n1", "-o", "json"],
    ["list-ns", "{dev}/nvme0", "-o", "json"],
    ["sanitize-log", "{dev}/nvme0", "-o", "json"],
    ["id-ctrl", "{dev}/nvme9", "-o", "json"],
    ["id-ctrl"],
]
WRITING = [
    ["detach-ns", "{dev}/nvme0", "--namespace-id=1", "--controllers=0"],
    ["delete-ns", "{dev}/nvme0", "--namespace-id=1"],
    ["create-ns", "{dev}/nvme0", "--nsze=2048", "--ncap=2048"],
    ["attach-ns", "{dev}/nvme0", "--namespace-id=1", "--controllers=0"],
    ["sanitize", "{dev}/nvme0", "--sanact=4"],
    ["sanitize", "{dev}/nvme0", "--sanact=4"],
    ["id-ns", "{dev}/nvme0n1", "-o", "json"],
]
"""The second sanitize is refused, since the first goes on."""
TAKE_TIME = [["sanitize", "{dev}/nvme0", "--sanact=4", "--wait"], ["format", "{dev}/nvme0"], []]


def host_in(directory: Path, style: str = "2.13") -> SimulatedHost:
    return SimulatedHost.create(directory / "host", "h1", default_drives(1), style=style)


def command(host: SimulatedHost, words: list[str]) -> list[str]:
    return [str(host.root / "bin" / "nvme"), *(word.format(dev=host.dev) for word in words)]


@pytest.mark.parametrize("style", STYLES)
def test_answer_is_that_of_the_program(tmp_path: Path, style: str) -> None:
    host = host_in(tmp_path, style)
    for words in READING:
        argv = command(host, words)
        answered = ToolAnswers(host.root)(argv)
        ran = subprocess.run(argv, capture_output=True, text=True, errors="backslashreplace", check=False)
        assert answered is not None
        assert (answered.returncode, answered.stdout, answered.stderr) == (ran.returncode, ran.stdout, ran.stderr)


def test_command_that_writes_leaves_the_drive_as_the_program_does(tmp_path: Path) -> None:
    answering, running = host_in(tmp_path / "a"), host_in(tmp_path / "b")
    for words in WRITING:
        answered = ToolAnswers(answering.root)(command(answering, words))
        ran = subprocess.run(command(running, words), capture_output=True, text=True, check=False)
        assert answered is not None
        assert answered.stdout.replace(str(answering.root), "") == ran.stdout.replace(str(running.root), "")
        assert answered.stderr.replace(str(answering.root), "") == ran.stderr.replace(str(running.root), "")
        assert answered.returncode == ran.returncode


@pytest.mark.parametrize("words", TAKE_TIME, ids=str)
def test_command_that_takes_time_is_run(tmp_path: Path, words: list[str]) -> None:
    host = host_in(tmp_path)
    assert ToolAnswers(host.root)(command(host, words)) is None


def test_program_is_run_where_commands_are_slow_or_it_is_another_program(tmp_path: Path) -> None:
    host = host_in(tmp_path)
    answers, argv = ToolAnswers(host.root), command(host, ["version"])
    host.set_fault("*", Fault(FaultKind.NVME_SLOW, 0.1))
    assert answers(argv) is None
    host.clear_faults()
    assert answers(argv) is not None
    (host.root / "bin" / "nvme").write_text("#!/bin/sh\n")
    assert answers(argv) is None
    assert answers(["/usr/sbin/nvme", "version"]) is None


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (None, ""),
        ("", 'global_filter=["a|.*|"]\nfilter=["a|.*|"]\nuse_devicesfile=0\n'),
        (
            'devices {\n  global_filter = [ "r|a\\.b|" ]\n  use_devicesfile = 1\n}\n',
            'global_filter=[ "r|a\\\\.b|" ]\nfilter=["a|.*|"]\nuse_devicesfile=1\n',
        ),
    ],
)
def test_lvmconfig_prints_the_settings_of_the_host(tmp_path: Path, settings: str | None, said: str) -> None:
    host = host_in(tmp_path)
    file = host.root / "etc/lvm/lvm.conf"
    file.unlink() if settings is None else file.write_text(settings)
    names = [f"devices/{name}" for name in ("global_filter", "filter", "use_devicesfile")]
    argv = [str(host.root / "bin" / "lvmconfig"), "--typeconfig", "full", *names]

    answered = ToolAnswers(host.root)(argv)
    ran = subprocess.run(argv, capture_output=True, text=True, check=False)

    assert answered is not None
    assert (answered.returncode, answered.stdout, answered.stderr) == (ran.returncode, ran.stdout, ran.stderr)
    assert answered.stdout == said
    assert (answered.returncode != 0) == (settings is None)
