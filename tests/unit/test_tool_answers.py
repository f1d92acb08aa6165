"""The stand-in for nvme-cli answers without a process what its program answers."""

import subprocess
from pathlib import Path

import pytest

from autoclave.simulator.drive_spec import default_drives
from autoclave.simulator.faults import Fault, FaultKind
from autoclave.simulator.host import STYLES, SimulatedHost
from autoclave.simulator.tool_answers import ToolAnswers

READING = [
    ["version"],
    ["id-ctrl", "{dev}/nvme0", "-o", "json"],
    ["id-ns", "{dev}/nvme0n1", "-o", "json"],
    ["list-ns", "{dev}/nvme0", "-o", "json"],
    ["sanitize-log", "{dev}/nvme0", "-o", "json"],
    ["id-ctrl", "{dev}/nvme9", "-o", "json"],
    ["id-ctrl"],
]
OTHERS = [["sanitize", "{dev}/nvme0", "--sanact=4"], ["format", "{dev}/nvme0"], ["create-ns", "{dev}/nvme0"], []]


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


@pytest.mark.parametrize("words", OTHERS, ids=str)
def test_command_that_writes_is_run(tmp_path: Path, words: list[str]) -> None:
    host = host_in(tmp_path)
    assert ToolAnswers(host.root)(command(host, words)) is None


def test_program_is_run_where_things_go_wrong(tmp_path: Path) -> None:
    host = host_in(tmp_path)
    answers, argv = ToolAnswers(host.root), command(host, ["version"])
    host.set_fault("*", Fault(FaultKind.NVME_SLOW, 0.1))
    assert answers(argv) is None
    host.clear_faults()
    assert answers(argv) is not None
    (host.root / "bin" / "nvme").write_text("#!/bin/sh\n")
    assert answers(argv) is None
    assert answers(["/usr/sbin/nvme", "version"]) is None
