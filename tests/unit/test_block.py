"""The block port on file-backed disks, and what is read back after an erase."""

import errno
import fcntl
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoclave.exceptions import DeviceInUse, DeviceVanished, EraseFailed, EraseTimeout, HardwareError
from autoclave.hardware import block
from autoclave.hardware.block import CHUNK, BlockDevice, open_block
from autoclave.hardware.erase.zero import first_nonzero
from autoclave.hardware.host import Deadline, Progress
from sysfs_tree import SysfsTree

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
SIZE = 2 * CHUNK + MIB + 512
"""Of a disk that takes three reads."""
LARGE = 64 * GIB
"""Sparse on disk, and as large as a drive is of which the most samples are taken."""


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path)


@pytest.fixture
def disk(tree: SysfsTree) -> Path:
    """The node of a disk of zeros, 33 MiB and a bit."""
    return make_disk(tree, SIZE)


def make_disk(tree: SysfsTree, size: int) -> Path:
    node = tree.dev / "nvme0n1"
    node.touch()
    os.truncate(node, size)
    return node


def write(node: Path, offset: int, data: bytes) -> None:
    with open(node, "r+b") as stream:
        stream.seek(offset)
        stream.write(data)


@pytest.fixture
def device(tree: SysfsTree, disk: Path) -> Iterator[BlockDevice]:
    with open_block(tree.paths, disk) as opened:
        yield opened


def look(device: BlockDevice, mode: str = "full", told: list[Progress] | None = None) -> int | None:
    sink = [].append if told is None else told.append
    return first_nonzero(device, mode=mode, deadline=Deadline.after(60), progress=sink)  # type: ignore[arg-type]


def test_a_disk_says_its_path_and_size(device: BlockDevice, disk: Path) -> None:
    assert (device.path, device.size) == (disk, SIZE)


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 1), (4095, 2), (5000, 3 * CHUNK // 2), (2 * CHUNK - 1, 2), (SIZE - 1, 1), (7, 0)]
)
def test_what_surrounds_a_range_does_not_matter_whatever_its_alignment(
    device: BlockDevice, disk: Path, offset: int, length: int
) -> None:
    write(disk, 0, b"x" * SIZE)
    write(disk, offset, bytes(length))

    assert device.nonzero_in(offset, length) is None


@pytest.mark.parametrize(("offset", "length"), [(-1, 1), (0, -1), (SIZE, 1), (0, SIZE + 1)])
def test_a_range_beyond_the_disk_is_a_mistake(device: BlockDevice, offset: int, length: int) -> None:
    with pytest.raises(ValueError, match="bytes"):
        device.nonzero_in(offset, length)


def test_a_disk_is_held_exclusively_until_it_is_let_go(tree: SysfsTree, disk: Path) -> None:
    with open_block(tree.paths, disk), pytest.raises(DeviceInUse, match="open exclusively"):
        open_block(tree.paths, disk).__enter__()
    with open_block(tree.paths, disk):
        pass


def test_a_disk_is_let_go_after_an_error_too(tree: SysfsTree, disk: Path) -> None:
    with pytest.raises(RuntimeError), open_block(tree.paths, disk):
        raise RuntimeError
    with open_block(tree.paths, disk):
        pass


def test_who_holds_a_disk_is_named(tree: SysfsTree, disk: Path) -> None:
    tree.program(4242, "qemu-system-x86", "/dev/nvme0n1", flags="0140002")
    with open(disk, "rb") as holder:
        fcntl.flock(holder, fcntl.LOCK_EX)

        with pytest.raises(DeviceInUse) as caught, open_block(tree.paths, disk):
            pass

    assert caught.value.holders == (f"{disk} is open exclusively by qemu-system-x86 (pid 4242)",)


def test_a_disk_that_is_not_there_has_vanished(tree: SysfsTree) -> None:
    with pytest.raises(DeviceVanished, match="nvme9n1"), open_block(tree.paths, tree.dev / "nvme9n1"):
        pass


def test_what_is_no_disk_is_refused(tree: SysfsTree) -> None:
    with pytest.raises(HardwareError, match="not a block device"), open_block(tree.paths, tree.dev):
        pass
    with pytest.raises(HardwareError, match="not a block device"), open_block(tree.paths, Path("/dev/null")):
        pass


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.EBUSY, DeviceInUse, "open exclusively"),
        (errno.ENXIO, DeviceVanished, "no disk"),
        (errno.EROFS, HardwareError, "read-only"),
        (errno.EACCES, HardwareError, "read-only"),
        (errno.EIO, HardwareError, "cannot be opened"),
    ],
)
def test_each_refusal_of_the_kernel_has_its_own_error(
    tree: SysfsTree, disk: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[HardwareError], words: str
) -> None:
    def refuse(*_args: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(block.os, "open", refuse)

    with pytest.raises(HardwareError, match=words) as caught, open_block(tree.paths, disk):
        pass
    assert type(caught.value) is kind


def test_a_disk_pulled_while_it_is_open_has_vanished(device: BlockDevice, disk: Path) -> None:
    disk.unlink()

    with pytest.raises(DeviceVanished, match="no longer there"):
        device.nonzero_in(0, 512)


def test_another_disk_under_the_same_name_is_not_read_in_its_place(
    device: BlockDevice, disk: Path, tree: SysfsTree
) -> None:
    disk.unlink()
    make_disk(tree, device.size)

    with pytest.raises(DeviceVanished, match="no longer the device that was opened"):
        device.nonzero_in(0, 512)


@pytest.mark.parametrize(
    ("number", "kind"), [(errno.ENODEV, DeviceVanished), (errno.ENXIO, DeviceVanished), (errno.EIO, EraseFailed)]
)
def test_a_failed_read_names_the_offset(
    device: BlockDevice, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[HardwareError]
) -> None:
    def fail(_fd: int, _buffers: object, offset: int) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(block.os, "preadv", fail)

    with pytest.raises(HardwareError, match="offset 8192") as caught:
        device.nonzero_in(8192 + 10, 4)
    assert type(caught.value) is kind


def test_a_disk_that_ends_before_its_size_is_not_read_as_zeros(device: BlockDevice, disk: Path) -> None:
    os.truncate(disk, MIB)

    with pytest.raises(EraseFailed, match=f"ends at offset {MIB}"):
        look(device)


@pytest.mark.parametrize("mode", ["sample", "full"])
def test_a_disk_of_zeros_is_zero(device: BlockDevice, mode: str) -> None:
    assert look(device, mode) is None


@pytest.mark.parametrize("offset", [0, 1, CHUNK - 1, CHUNK, SIZE - 1])
def test_one_byte_anywhere_is_found_and_its_offset_told(device: BlockDevice, disk: Path, offset: int) -> None:
    write(disk, offset, b"\x01")

    assert look(device) == offset


def test_the_first_of_several_is_told(device: BlockDevice, disk: Path) -> None:
    write(disk, 8 * MIB, b"later")
    write(disk, 5 * MIB + 3, b"\0sooner")

    assert look(device) == 5 * MIB + 4


def test_a_sample_of_a_small_disk_is_all_of_it(tree: SysfsTree) -> None:
    node = make_disk(tree, MIB // 2)
    write(node, MIB // 4 + 77, b"x")

    with open_block(tree.paths, node) as device:
        assert look(device, "sample") == MIB // 4 + 77


@pytest.mark.parametrize("offset", [0, MIB - 1, LARGE - MIB, LARGE - 1])
def test_a_sample_misses_nothing_at_either_end(tree: SysfsTree, offset: int) -> None:
    node = make_disk(tree, LARGE)
    write(node, offset, b"x")

    with open_block(tree.paths, node) as device:
        assert look(device, "sample") == offset


class Noted:
    """A disk that notes what it is asked about."""

    def __init__(self, device: BlockDevice) -> None:
        self._device = device
        self.path, self.size = device.path, device.size
        self.asked: list[range] = []

    def nonzero_in(self, offset: int, length: int) -> int | None:
        self.asked.append(range(offset, offset + length))
        return self._device.nonzero_in(offset, length)


@pytest.mark.parametrize("place", [0.0001, 1 / 3, 0.6543, 0.7, 0.99])
@pytest.mark.parametrize(("size", "share"), [(LARGE, 250), (20 * GIB + MIB, 80), (GIB, 4)])
def test_a_sample_misses_no_stretch_of_a_certain_share_of_the_disk(
    tree: SysfsTree, monkeypatch: pytest.MonkeyPatch, size: int, share: int, place: float
) -> None:
    """By the samples at even distances alone: those at random are all at the start here."""
    monkeypatch.setattr(random.SystemRandom, "randrange", lambda self, stop: 0)
    node = make_disk(tree, size)
    start, length = int(size * place), size // share
    with open_block(tree.paths, node) as device:
        noted = Noted(device)
        assert look(noted, "sample") is None  # type: ignore[arg-type]

    assert any(start - len(seen) < seen.start < start + length for seen in noted.asked)


@pytest.mark.parametrize(("size", "read"), [(600 * KIB, 600 * KIB), (640 * KIB, 640 * KIB), (644 * KIB, 640 * KIB)])
def test_a_sample_reads_no_more_than_the_disk(tree: SysfsTree, size: int, read: int) -> None:
    """Ten samples of 64 KiB are the least; a disk that has no more is read as a whole."""
    node = make_disk(tree, size)
    with open_block(tree.paths, node) as device:
        for _ in range(50):
            noted = Noted(device)
            assert look(noted, "sample") is None  # type: ignore[arg-type]
            assert sum(map(len, noted.asked)) == read
            assert all(0 <= each.start < each.stop <= size for each in noted.asked)
            assert size > read or noted.asked == [range(size)]


def test_a_sample_cannot_be_foreseen(tree: SysfsTree, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make_disk(tree, LARGE)
    read = BlockDevice.nonzero_in
    seen: list[set[int]] = []

    def note(self: BlockDevice, offset: int, length: int) -> bytes:
        seen[-1].add(offset)
        return read(self, offset, length)

    monkeypatch.setattr(BlockDevice, "nonzero_in", note)
    with open_block(tree.paths, node) as device:
        for _ in range(2):
            seen.append(set())
            look(device, "sample")

    assert seen[0] & seen[1], "some places are looked at every time"
    assert seen[0] - seen[1], "others only now and then"


def test_a_full_look_reads_a_large_disk_to_its_last_byte(tree: SysfsTree) -> None:
    node = make_disk(tree, 256 * MIB)
    write(node, 253 * MIB, b"x")

    with open_block(tree.paths, node) as device:
        assert look(device) == 253 * MIB


def test_a_disk_without_capacity_proves_nothing(tree: SysfsTree) -> None:
    with open_block(tree.paths, make_disk(tree, 0)) as device, pytest.raises(EraseFailed, match="no capacity"):
        look(device)


def test_no_time_left_is_not_a_clean_disk(device: BlockDevice) -> None:
    with pytest.raises(EraseTimeout, match="no time was left"):
        first_nonzero(device, mode="full", deadline=Deadline.after(0), progress=[].append)


def test_progress_climbs_to_a_hundred(device: BlockDevice) -> None:
    told: list[Progress] = []

    look(device, "full", told)

    percents = [progress.percent for progress in told]
    assert percents[0] == 0
    assert percents[-1] == 100
    assert percents == sorted(set(percents), key=percents.index)
    assert all("nvme0n1" in progress.step and "full" in progress.step for progress in told)


def test_progress_says_each_percent_once_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow:
        """A disk of 300 reads, each of which takes two seconds."""

        path, size, now = Path("/dev/nvme0n1"), 300 * 4 * CHUNK, 1000.0

        def nonzero_in(self, offset: int, length: int) -> int | None:
            self.now += 2.0
            return None

    disk, told = Slow(), list[Progress]()
    monkeypatch.setattr(time, "monotonic", lambda: disk.now)
    deadline = Deadline.after(10_000)

    assert first_nonzero(disk, mode="full", deadline=deadline, progress=told.append) is None  # type: ignore[arg-type]

    assert [each.percent for each in told] == [float(percent) for percent in range(101)]
    assert {each.step for each in told} == {"reading back nvme0n1 (full)"}
    assert told[0].seconds_left is None
    assert [each.seconds_left for each in told[1:]] == pytest.approx([6.0 * (100 - each.percent) for each in told[1:]])


def test_a_disk_is_let_go_after_a_failed_read(tree: SysfsTree, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The traceback of the failed read once kept the buffer, so that closing failed and the disk stayed held.
    def fail(*_args: object) -> int:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(block.os, "preadv", fail)
        with pytest.raises(EraseFailed), open_block(tree.paths, disk) as device:
            device.nonzero_in(0, 512)

    with open_block(tree.paths, disk) as device:
        assert device.nonzero_in(0, 1) is None
