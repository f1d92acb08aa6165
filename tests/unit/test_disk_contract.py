"""What every disk promises, be it a block device of the kernel or the file that stands for one."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoclave.exceptions import DeviceInUse, DeviceVanished, EraseFailed
from autoclave.hardware.block import open_block
from autoclave.hardware.host import LARGEST_STEP, Disk, HostPaths
from autoclave.simulator import disk as file_disk
from autoclave.simulator.drive_spec import DriveSpec
from autoclave.simulator.host import SimulatedHost

pytestmark = pytest.mark.matrix

MIB = 1 << 20
SIZE = 16 * MIB
SLOT = "0000:42:00.0"


class Place:
    """Where a disk is.

    :param node: its device node, which is full of somebody's data.
    """

    def __init__(self, paths: HostPaths, node: Path) -> None:
        self.paths, self.node = paths, node
        with node.open("r+b") as stream:
            stream.write(os.urandom(SIZE))
            stream.flush()
            os.fsync(stream.fileno())

    def content(self, offset: int, length: int) -> bytes:
        with self.node.open("rb") as stream:
            stream.seek(offset)
            return stream.read(length)


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[Path]:
    """The node of a loop device."""
    if os.geteuid() != 0:
        pytest.skip("only root can make a loop device")
    file = tmp_path / "disk"
    file.touch()
    os.truncate(file, SIZE)
    try:
        made = subprocess.run(["losetup", "--find", "--show", file], check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no loop device: {error}")
    device = made.stdout.strip()
    node = tmp_path / "nvme0n1"
    os.mknod(node, 0o600 | 0o060000, os.stat(device).st_rdev)
    yield node
    subprocess.run(["losetup", "--detach", device], check=True)


@pytest.fixture(params=["file", "simulated drive", "block device"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    if request.param == "block device":
        return Place(HostPaths(), request.getfixturevalue("loop"))
    if request.param == "simulated drive":
        host = SimulatedHost.create(tmp_path / "host", "h1", [DriveSpec(SLOT, "SIM1", size_bytes=SIZE)])
        return Place(host.paths, host.paths.dev / "nvme0n1")
    node = tmp_path / "nvme0n1"
    node.touch()
    os.truncate(node, SIZE)
    return Place(HostPaths(hold_disk=file_disk.hold_file), node)


@pytest.fixture
def disk(place: Place) -> Iterator[Disk]:
    with open_block(place.paths, place.node) as held:
        yield held


def test_it_says_where_it_is_and_how_large(place: Place, disk: Disk) -> None:
    assert (disk.path, disk.size) == (place.node, SIZE)


def test_it_is_held_by_one_at_a_time(place: Place, disk: Disk) -> None:
    with pytest.raises(DeviceInUse, match="open exclusively"), open_block(place.paths, disk.path):
        pass


@pytest.mark.parametrize(("offset", "length"), [(0, SIZE), (MIB, 4 * MIB), (SIZE - 4096, 4096)])
def test_zeroing_reaches_the_range_and_nothing_else(place: Place, disk: Disk, offset: int, length: int) -> None:
    before, after = place.content(0, offset), place.content(offset + length, SIZE - offset - length)

    disk.zero(offset, length)
    disk.flush()

    assert disk.nonzero_in(offset, length) is None
    assert place.content(offset, length) == bytes(length)
    assert place.content(0, offset) == before
    assert place.content(offset + length, SIZE) == after


def test_what_is_not_zeroed_is_found(disk: Disk) -> None:
    disk.zero(0, 2 * MIB)
    found = disk.nonzero_in(0, SIZE)
    assert found is not None
    assert 2 * MIB <= found < 2 * MIB + 64


@pytest.mark.parametrize(("offset", "length"), [(-4096, 4096), (0, -4096), (SIZE, 4096), (0, SIZE + 4096)])
def test_a_range_beyond_the_disk_is_a_mistake(place: Place, disk: Disk, offset: int, length: int) -> None:
    before = place.content(0, SIZE)
    with pytest.raises(ValueError, match="bytes"):
        disk.zero(offset, length)
    assert place.content(0, SIZE) == before


def test_no_more_is_zeroed_at_once_than_a_step(disk: Disk) -> None:
    with pytest.raises(ValueError, match="one zeroing call"):
        disk.zero(0, LARGEST_STEP + 4096)


def test_a_part_of_a_block_cannot_be_zeroed(place: Place, disk: Disk) -> None:
    before = place.content(0, SIZE)
    with pytest.raises(EraseFailed, match=f"offset {MIB}: {os.strerror(errno.EINVAL)}"):
        disk.zero(MIB, 100)
    assert place.content(0, SIZE) == before


def test_a_disk_that_was_opened_only_to_look_is_not_zeroed(place: Place) -> None:
    before = place.content(0, SIZE)
    with open_block(place.paths, place.node, writable=False) as disk, pytest.raises(EraseFailed, match="read-only"):
        disk.zero(0, SIZE)
    assert place.content(0, SIZE) == before


def test_a_disk_whose_node_is_gone_has_vanished_and_is_not_zeroed(place: Place, disk: Disk) -> None:
    kept = place.node.with_name("kept")
    place.node.rename(kept)
    before = kept.open("rb").read(SIZE)
    for act in (disk.zero, disk.nonzero_in):
        with pytest.raises(DeviceVanished, match="no longer there"):
            act(0, MIB)
    assert kept.open("rb").read(SIZE) == before


@pytest.mark.parametrize(
    ("number", "kind", "words"),
    [
        (errno.EIO, EraseFailed, f"overwritten at offset {MIB}: {os.strerror(errno.EIO)}"),
        (errno.EOPNOTSUPP, EraseFailed, os.strerror(errno.EOPNOTSUPP)),
        (errno.EPERM, EraseFailed, "read-only"),
        (errno.EROFS, EraseFailed, "read-only"),
        (errno.ENODEV, DeviceVanished, "went away"),
        (errno.ENXIO, DeviceVanished, "went away"),
    ],
)
def test_each_failure_to_zero_has_its_own_error(
    disk: Disk, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception], words: str
) -> None:
    def fail(*_args: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(disk, "_zero_out", fail)
    with pytest.raises(kind, match=words):
        disk.zero(MIB, MIB)


def test_marker_is_told_by_its_seed_and_offset(disk: Disk) -> None:
    """A marker proves an erase only if nothing else can be taken for it."""
    seed, other = bytes(32), bytes([1] * 32)
    disk.write_marker(MIB, seed)
    disk.flush()
    assert disk.has_marker(MIB, seed)
    assert not disk.has_marker(MIB, other)
    assert not disk.has_marker(2 * MIB, seed)
    disk.zero(MIB, 4096)
    assert not disk.has_marker(MIB, seed)


def test_marker_leaves_its_neighbours_as_they_are(place: Place, disk: Disk) -> None:
    """It is as long as its offset is aligned, and no longer."""
    before = place.content(0, 4096), place.content(8192, 4096)
    disk.write_marker(4096, bytes(32))
    disk.flush()
    assert (place.content(0, 4096), place.content(8192, 4096)) == before


def test_marker_beyond_the_end_is_refused(disk: Disk) -> None:
    """The end of a disk is no range to write to."""
    with pytest.raises(ValueError, match="bytes, fewer"):
        disk.write_marker(SIZE, bytes(32))
