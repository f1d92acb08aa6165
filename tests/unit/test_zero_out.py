"""Zeroing by the kernel ends with its time: a step that is begun cannot be stopped."""

import time
from pathlib import Path

import pytest
from erase_doubles import Watcher

from autoclave.exceptions import EraseTimeout
from autoclave.hardware.command import Commands
from autoclave.hardware.erase_work import EraseWork
from autoclave.hardware.host import HostPaths
from autoclave.hardware.nvme import Controller
from autoclave.hardware.nvme_cli import NvmeCli
from autoclave.hardware.zero_out import SMALLEST_STEP, zero_out
from autoclave.rules.cleanup_policy import CleanupAction
from autoclave.rules.pci_address import PCIAddress

GIB = 1 << 30


class SteadyDisk:
    """A :class:`~autoclave.hardware.disk.Disk` that zeroes so many bytes a second, of a clock of its own."""

    path = Path("/dev/nvme0n1")
    size = 1024 * GIB

    def __init__(self, bytes_per_second: float) -> None:
        self.speed = bytes_per_second
        self.now = 1000.0
        self.largest = 0

    def nonzero_in(self, offset: int, length: int) -> int | None:
        raise AssertionError(f"nobody asks for {length} bytes at {offset}")

    def zero(self, offset: int, length: int) -> None:
        assert offset + length <= self.size
        self.now += length / self.speed
        self.largest = max(self.largest, length)

    def flush(self) -> None:
        """Nothing is cached."""

    def close(self) -> None:
        """Nothing is held."""


@pytest.mark.parametrize("speed", [GIB / 4, 2 * GIB, 3.3 * GIB], ids=["slow", "fast", "odd"])
def test_the_last_step_does_not_pass_the_deadline_by_more_than_the_smallest_one(
    speed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SteadyDisk(speed)
    monkeypatch.setattr(time, "monotonic", lambda: disk.now)
    watcher = Watcher(seconds=20.01)
    with pytest.raises(EraseTimeout, match="partly overwritten"):
        zero_out(work_under(watcher), disk, work_under(watcher).meter("zeroing"))
    assert disk.largest > 16 * SMALLEST_STEP, "it is not slow for that"
    assert 0 <= disk.now - watcher.deadline.at <= SMALLEST_STEP / speed


def work_under(watcher: Watcher) -> EraseWork:
    paths = HostPaths()
    commands = Commands(paths)
    controller = Controller(
        address=PCIAddress.parse("0000:41:00.0"),
        name="nvme0",
        path=Path("/dev/nvme0"),
        serial="SER-A",
        model="Model",
        state="live",
        subsystem=None,
        namespaces=(),
        other_paths=(),
    )
    return EraseWork(
        paths=paths,
        commands=commands,
        nvme=NvmeCli(commands, command_timeout=30),
        controller=controller,
        action=CleanupAction.WRITE_ZEROES,
        control=watcher,
        poll_interval=1.0,
        stall_timeout=60.0,
        verify="none",
    )
