"""Zeroing by the kernel ends with its time: a step that is begun cannot be stopped."""

import time
from pathlib import Path

import pytest
from erase_doubles import Watcher

from autoclave.exceptions import DeviceVanished, EraseFailed, EraseTimeout
from autoclave.hardware.command import Commands
from autoclave.hardware.erase.work import EraseWork
from autoclave.hardware.erase.zero import SMALLEST_STEP, zero_out
from autoclave.hardware.host import LARGEST_STEP, HostPaths
from autoclave.hardware.nvme import Controller
from autoclave.hardware.nvme_cli import NvmeCli
from autoclave.rules.cleanup_policy import CleanupAction
from autoclave.rules.pci_address import PCIAddress

GIB = 1 << 30
ODD_SIZE = 2 * GIB + 512


class SteadyDisk:
    """A :class:`~autoclave.hardware.host.Disk` that zeroes so many bytes a second, of a clock of its own."""

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
        assert isinstance(length, int), "there is no part of a byte"
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


class OddDisk(SteadyDisk):
    """A disk whose size no step divides; it keeps the ranges that are zeroed."""

    size = ODD_SIZE

    def __init__(self, bytes_per_second: float) -> None:
        super().__init__(bytes_per_second)
        self.zeroed: list[range] = []

    def zero(self, offset: int, length: int) -> None:
        super().zero(offset, length)
        assert 0 < length <= LARGEST_STEP
        self.zeroed.append(range(offset, offset + length))


@pytest.mark.parametrize("speed", [GIB / 64, GIB, float("inf")], ids=["slow", "fast", "faster than the clock"])
def test_every_byte_is_zeroed_once_in_order(speed: float, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, watcher = OddDisk(speed), Watcher(seconds=100_000)
    monkeypatch.setattr(time, "monotonic", lambda: disk.now)
    work = work_under(watcher)

    zero_out(work, disk, work.meter("zeroing"))

    assert [each.start for each in disk.zeroed] == [0, *(each.stop for each in disk.zeroed[:-1])]
    assert disk.zeroed[-1].stop == ODD_SIZE
    told = [each.percent for each in watcher.seen]
    assert told == [100.0 * each.stop / ODD_SIZE for each in disk.zeroed]


def test_a_drive_that_becomes_slow_gets_smaller_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step cannot be stopped: it bounds what is still zeroed after the agent was killed."""
    disk, watcher = OddDisk(4 * GIB), Watcher(seconds=100_000)
    monkeypatch.setattr(time, "monotonic", lambda: disk.now)
    work = work_under(watcher)

    def slow_down(_: object) -> None:
        disk.speed = 4 * GIB if len(disk.zeroed) < 12 else SMALLEST_STEP

    watcher.on_progress = slow_down
    zero_out(work, disk, work.meter("zeroing"))

    lengths = [len(each) for each in disk.zeroed]
    assert len(disk.zeroed[0]) == SMALLEST_STEP, "nothing is known of the drive yet"
    assert max(lengths[:12]) == LARGEST_STEP
    assert lengths[12:21] == sorted(lengths[12:21], reverse=True)
    assert set(lengths[24:-1]) == {SMALLEST_STEP}


def test_a_failed_step_names_the_reason_unless_the_drive_is_gone(tmp_path: Path) -> None:
    class BrokenDisk(SteadyDisk):
        def zero(self, offset: int, length: int) -> None:
            raise EraseFailed(f"the step at {offset} failed")

    gone = work_under(Watcher())
    with pytest.raises(DeviceVanished, match="went away while it was being erased: the step at 0 failed"):
        zero_out(gone, BrokenDisk(GIB), gone.meter("zeroing"))

    here = work_under(Watcher(), HostPaths(sysfs=tmp_path))
    (tmp_path / "bus/pci/devices/0000:41:00.0/nvme/nvme0").mkdir(parents=True)
    with pytest.raises(EraseFailed, match=r"^the step at 0 failed$"):
        zero_out(here, BrokenDisk(GIB), here.meter("zeroing"))


def work_under(watcher: Watcher, paths: HostPaths | None = None) -> EraseWork:
    paths = paths or HostPaths()
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
