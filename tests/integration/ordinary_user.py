"""An agent's process that belongs to an ordinary user; does on stdin's word what an agent does through its helper.

    python ordinary_user.py 'helper command'

Each line is a JSON list of a function's name here and its arguments. Each answer is a line too: ``{"line": …}`` as a
tool speaks, ``{"started": pid}``, and in the end ``{"result": …}`` or ``{"error": class, "message": …, "args": …}``.
"""

import itertools
import json
import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoclave.hardware.block import open_block, programs_with_open
from autoclave.hardware.command import Commands
from autoclave.hardware.erase.zero import first_nonzero
from autoclave.hardware.function_access import OperatorPrograms, check_program, write_attribute
from autoclave.hardware.host import Deadline, HostPaths
from autoclave.hardware.pci_functions import card_serial
from autoclave.hardware.privileged import client, context, server
from autoclave.hardware.sysfs import product_uuid
from autoclave.rules.pci_address import PCIAddress

NOBODY = 65534
DEVICE = "5d0e64c1-6a1c-4a3b-8b53-0d7c1f2a9e44"
PATHS = HostPaths()


def say(**answer: Any) -> None:
    print(json.dumps(answer), flush=True)


class Journal:
    """A sink of tools that says what it is told."""

    def __init__(self, fails: bool = False) -> None:
        self._fails = fails

    def started(self, pid: int, argv: Sequence[str]) -> None:
        say(started=pid, argv=list(argv))
        if self._fails:
            raise RuntimeError("the journal is full")

    def ended(self, pid: int) -> None:
        say(ended=pid)


def run(directory: str, argv: list[str], seconds: float, journal_fails: bool = False) -> list[Any]:
    done = Commands(HostPaths(tools=(Path(directory),), helper=PATHS.helper)).run(
        argv,
        deadline=Deadline.after(seconds),
        tools=Journal(journal_fails),
        on_line=lambda line: say(line=line),
    )
    return [list(done.argv), done.returncode, done.stdout, done.stderr]


def start_and_forget(directory: str, argv: list[str], seconds: float) -> int:
    _token, pid, _argv = server.start(argv, [directory], seconds, False)
    return pid


def read_back(node: str) -> list[Any]:
    with open_block(PATHS, Path(node)) as disk:
        found = first_nonzero(disk, mode="full", deadline=Deadline.after(60), progress=lambda progress: None)
        disk.flush()
        return [disk.size, found]


def zero(node: str, offset: int, length: int) -> None:
    with open_block(PATHS, Path(node)) as disk:
        disk.zero(offset, length)
        disk.flush()


def zero_on_and_on(node: str, step: int) -> None:
    """Zero the disk step by step from its beginning, over and over; say each step before it is asked for."""
    with open_block(PATHS, Path(node)) as disk:
        for number in itertools.count():
            say(line=number)
            disk.zero(number * step % disk.size, step)


def hold(node: str) -> None:
    """Hold the disk until another line comes, whatever it says."""
    with open_block(PATHS, Path(node)):
        say(line="held")
        sys.stdin.readline()


def users(node: str) -> list[Any]:
    return [[file.program, file.pid, file.writes] for file in programs_with_open(PATHS, [Path(node)])]


def serial(address: str) -> str | None:
    return card_serial(PATHS, PCIAddress.parse(address), vital_product_data=True)


def uuid() -> str | None:
    return product_uuid(PATHS)


def write(address: str, name: str, text: str) -> None:
    write_attribute(PATHS, PCIAddress.parse(address), name, text)


def check(path: str) -> None:
    check_program(PATHS, path)


def clear(address: str, argv: list[str], seconds: float, device: str = DEVICE) -> list[Any]:
    programs = OperatorPrograms(Commands(PATHS), PCIAddress.parse(address), device)
    done = programs.run(argv, deadline=Deadline.after(seconds), tools=Journal(), on_line=lambda line: say(line=line))
    return [list(done.argv), done.returncode, done.stdout, done.stderr]


def clear_and_forget(address: str, argv: list[str], seconds: float) -> int:
    _token, pid, _argv = server.start_program(argv, address, DEVICE, seconds, False)
    return pid


def whoami(_nobody: None = None) -> int:
    return os.geteuid()


def main() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    global PATHS
    try:
        PATHS = HostPaths(helper=client.start(sys.argv[1]))
    except Exception as error:
        say(error=type(error).__name__, message=str(error))
        return
    assert context.client_mode
    say(result="started")
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            say(result=globals()[name](*arguments))
        except Exception as error:
            say(error=type(error).__name__, message=str(error), args=error.args)


if __name__ == "__main__":
    main()
