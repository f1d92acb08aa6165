"""Where guests' disks come from: copies of image files, whole or not there."""

import errno
import os
import shutil
import signal
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoclave.exceptions import GuestError
from autoclave.hardware.command import Commands
from autoclave.hardware.host import HostPaths
from autoclave.rules.flavor_image import DiskFormat
from autoclave.virt import disks
from autoclave.virt.disks import GIB, InstanceFiles, virtual_size

INSTANCE = "a11a5487-696b-4d4e-a487-6b9ec9d7e458"
IMAGE = "10000000-0000-4000-8000-000000000001"
MIB = 1 << 20
RAW, QCOW2 = DiskFormat.RAW, DiskFormat.QCOW2


@pytest.fixture
def files(tmp_path: Path) -> InstanceFiles:
    (tmp_path / "images").mkdir()
    return InstanceFiles(tmp_path)


def upload(data_dir: Path, content: bytes, size: int | None = None) -> Path:
    image = data_dir / "images" / IMAGE
    image.write_bytes(content)
    if size is not None:
        os.truncate(image, size)
    return image


def qcow2(size: int = 3 * GIB, *, version: int = 3, features: int = 0, backing: int = 0, encryption: int = 0) -> bytes:
    """A header, as the qcow2 specification has it."""
    head = struct.pack(">4sIQIIQI", b"QFI\xfb", version, backing, 9 if backing else 0, 16, size, encryption)
    return head.ljust(72, b"\0") + struct.pack(">Q", features) + bytes(24) + b"clusters"


def left(data_dir: Path) -> list[str]:
    return sorted(str(path.relative_to(data_dir)) for path in (data_dir / "instances").rglob("*"))


def test_a_disk_is_the_image_byte_for_byte_grown_to_the_flavors_disk(files: InstanceFiles, tmp_path: Path) -> None:
    content = os.urandom(5 * MIB + 13)
    upload(tmp_path, content)
    disk = files.make_disk(INSTANCE, IMAGE, RAW, size_gb=1)
    assert disk == tmp_path / "instances" / INSTANCE / "disk"
    assert disk.stat().st_size == GIB
    with disk.open("rb") as stream:
        assert stream.read(len(content) + MIB) == content + bytes(MIB)


def test_a_flavor_without_a_disk_gets_one_of_the_images_size(files: InstanceFiles, tmp_path: Path) -> None:
    upload(tmp_path, b"system", 2 * MIB + 1)
    assert files.make_disk(INSTANCE, IMAGE, RAW).stat().st_size == 2 * MIB + 1


def test_the_holes_of_an_image_take_no_room(files: InstanceFiles, tmp_path: Path) -> None:
    image = upload(tmp_path, b"boot")
    with image.open("r+b") as stream:
        stream.seek(600 * MIB)
        stream.write(b"middle")
        stream.truncate(GIB)
    disk = files.make_disk(INSTANCE, IMAGE, RAW, size_gb=2)
    assert disk.stat().st_blocks * 512 < 2 * MIB
    with disk.open("rb") as stream:
        stream.seek(600 * MIB)
        assert stream.read(8) == b"middle\0\0"


def test_a_qcow2_image_of_the_flavors_size_is_copied_as_it_is(files: InstanceFiles, tmp_path: Path) -> None:
    upload(tmp_path, qcow2(3 * GIB))
    assert files.make_disk(INSTANCE, IMAGE, QCOW2, size_gb=3).read_bytes() == qcow2(3 * GIB)


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="no qemu-img: it is in the package qemu-utils")
def test_a_qcow2_disk_is_the_image_grown_to_the_flavors_disk(files: InstanceFiles, tmp_path: Path) -> None:
    content = os.urandom(3 * MIB)
    (tmp_path / "system").write_bytes(content)
    image = tmp_path / "images" / IMAGE
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", tmp_path / "system", image], check=True)
    before = image.read_bytes()
    disk = files.make_disk(INSTANCE, IMAGE, QCOW2, size_gb=20)
    assert virtual_size(disk, QCOW2) == 20 * GIB
    assert disk.stat().st_blocks * 512 < 8 * MIB
    assert image.read_bytes() == before
    subprocess.run(["qemu-img", "convert", "-f", "qcow2", "-O", "raw", disk, tmp_path / "grown"], check=True)
    with (tmp_path / "grown").open("rb") as stream:
        assert stream.read(4 * MIB) == content + bytes(MIB)


@pytest.mark.parametrize(
    ("program", "mode", "words"),
    [
        ("#!/bin/sh\necho 'qemu-img: the tables are broken' >&2\nexit 1\n", 0o755, "qemu-img: the tables are broken"),
        ("#!/bin/sh\nexit 3\n", 0o755, "qemu-img ended with 3"),
        ("", 0o644, "tools/qemu-img is not executable"),
    ],
    ids=["refuses", "silent", "missing"],
)
def test_a_qcow2_disk_that_cannot_be_grown_leaves_the_one_that_was_there(
    tmp_path: Path, program: str, mode: int, words: str
) -> None:
    tools = tmp_path / "tools"
    for directory in (tools, tmp_path / "images"):
        directory.mkdir()
    (tools / "qemu-img").write_text(program)
    (tools / "qemu-img").chmod(mode)
    files = InstanceFiles(tmp_path, Commands(HostPaths(tools=(tools,))))
    upload(tmp_path, qcow2(GIB))
    disk = files.make_disk(INSTANCE, IMAGE, QCOW2, size_gb=1)
    with pytest.raises(GuestError, match=f"cannot resize {disk}.new to the size of its flavor: .*{words}"):
        files.make_disk(INSTANCE, IMAGE, QCOW2, size_gb=2)
    assert disk.read_bytes() == qcow2(GIB)
    assert left(tmp_path) == [f"instances/{INSTANCE}", f"instances/{INSTANCE}/disk"]


@pytest.mark.parametrize(("content", "disk_format"), [(b"", RAW), (qcow2(2 * GIB), QCOW2)], ids=["raw", "qcow2"])
def test_an_image_larger_than_the_flavors_disk_is_refused(
    files: InstanceFiles, tmp_path: Path, content: bytes, disk_format: DiskFormat
) -> None:
    upload(tmp_path, content, GIB + 1 if disk_format is RAW else None)
    with pytest.raises(GuestError, match=rf"image {IMAGE} is a disk of 2 GiB, and the flavor has 1"):
        files.make_disk(INSTANCE, IMAGE, disk_format, size_gb=1)
    assert not (tmp_path / "instances").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (qcow2(backing=512), "has a backing file"),
        (qcow2(version=2, backing=512), "has a backing file"),
        (qcow2(features=1 << 2), "keeps its data in another file"),
        (qcow2(features=1 << 1), "marked corrupt"),
        (qcow2(features=1 << 40), r"requires unsupported qcow2 features \(0x10000000000\)"),
        (qcow2(encryption=2), "encrypted"),
        (qcow2(version=4), "version 4"),
        (qcow2()[:75], "truncated header"),
        (qcow2()[:30], "is not a qcow2 image"),
        (b"", "is not a qcow2 image"),
        (b"KDMV" + bytes(200), "is not a qcow2 image"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_an_image_that_names_other_files_or_is_not_what_it_is_told_to_be_makes_no_disk(
    files: InstanceFiles, tmp_path: Path, content: bytes, words: str
) -> None:
    upload(tmp_path, content)
    with pytest.raises(GuestError, match=rf"image {IMAGE} .*{words}"):
        files.make_disk(INSTANCE, IMAGE, QCOW2)


def test_a_qcow2_image_told_to_be_raw_is_refused(files: InstanceFiles, tmp_path: Path) -> None:
    upload(tmp_path, qcow2())
    with pytest.raises(GuestError, match="disk_format qcow2"):
        files.make_disk(INSTANCE, IMAGE, RAW)


@pytest.mark.parametrize("features", [0, 1, 1 << 3, 1 << 4], ids=["none", "dirty", "zstd", "extended-l2"])
def test_features_that_name_no_file_are_taken(tmp_path: Path, features: int) -> None:
    (tmp_path / "images").mkdir()
    assert virtual_size(upload(tmp_path, qcow2(7 * MIB, features=features)), QCOW2) == 7 * MIB


@pytest.mark.skipif(shutil.which("qemu-img") is None, reason="no qemu-img: it is in the package qemu-utils")
def test_what_qemu_img_makes_is_judged_by_what_it_names(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    base, image = tmp_path / "base.qcow2", tmp_path / "images" / IMAGE

    def create(*arguments: str | Path) -> None:
        subprocess.run(["qemu-img", "create", "-q", "-f", "qcow2", *arguments], check=True)

    create(base, "10M")
    assert virtual_size(base, QCOW2) == 10 * MIB
    create("-b", base, "-F", "qcow2", image)
    with pytest.raises(ValueError, match="has a backing file"):
        virtual_size(image, QCOW2)
    create("-o", f"data_file={tmp_path}/data", image, "10M")
    with pytest.raises(ValueError, match="keeps its data in another file"):
        virtual_size(image, QCOW2)


def test_a_missing_image_is_named_with_its_place(files: InstanceFiles, tmp_path: Path) -> None:
    with pytest.raises(GuestError, match=f"image {IMAGE} is not on this host: there is no {tmp_path}/images/{IMAGE}"):
        files.make_disk(INSTANCE, IMAGE, RAW)


@pytest.mark.parametrize("name", ["", "../../etc", f"../{IMAGE}", f"{IMAGE}\n", IMAGE.upper().replace("0", "A")])
def test_no_name_leads_out_of_the_directories(files: InstanceFiles, name: str) -> None:
    for act in (lambda: files.make_disk(INSTANCE, name, RAW), lambda: files.remove(name), lambda: files.disk(name)):
        with pytest.raises(GuestError, match="is not a UUID"):
            act()


def test_a_full_file_system_leaves_the_disk_that_was_there_and_nothing_else(
    files: InstanceFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    upload(tmp_path, b"old")
    disk = files.make_disk(INSTANCE, IMAGE, RAW)
    upload(tmp_path, b"new")

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(disks.os, "fsync", full)
    with pytest.raises(GuestError, match=r"No space left on device: free space, or move \[agent\] data_dir"):
        files.make_disk(INSTANCE, IMAGE, RAW)
    assert disk.read_bytes() == b"old"
    assert left(tmp_path) == [f"instances/{INSTANCE}", f"instances/{INSTANCE}/disk"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system")
def test_a_file_system_that_is_really_full_is_told_of(tmp_path: Path) -> None:
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "none", tmp_path], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"no mount: {mounted.stderr}")
    try:
        (tmp_path / "images").mkdir()
        upload(tmp_path, os.urandom(3 * MIB))
        with pytest.raises(GuestError, match="No space left on device: free space"):
            InstanceFiles(tmp_path).make_disk(INSTANCE, IMAGE, RAW)
        assert left(tmp_path) == [f"instances/{INSTANCE}"]
    finally:
        subprocess.run(["umount", tmp_path], check=True)


def test_who_is_killed_in_the_middle_of_a_copy_leaves_the_disk_that_was_there(
    files: InstanceFiles, tmp_path: Path
) -> None:
    upload(tmp_path, b"old")
    disk = files.make_disk(INSTANCE, IMAGE, RAW)
    upload(tmp_path, os.urandom(9 * MIB))
    program = f"""
import os, signal
from pathlib import Path
from autoclave.hardware.command import Commands
from autoclave.hardware.host import HostPaths
from autoclave.virt import disks
read = os.pread
def pread(descriptor, length, offset):
    if offset:
        os.kill(os.getpid(), signal.SIGKILL)
    return read(descriptor, length, offset)
os.pread = pread
disks.InstanceFiles(Path({str(tmp_path)!r})).make_disk({INSTANCE!r}, {IMAGE!r}, disks.DiskFormat.RAW)
"""
    killed = subprocess.run([sys.executable, "-c", program], capture_output=True)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert f"instances/{INSTANCE}/disk.new" in left(tmp_path)
    assert disk.read_bytes() == b"old"
    assert files.make_disk(INSTANCE, IMAGE, RAW).stat().st_size == 9 * MIB
    assert left(tmp_path) == [f"instances/{INSTANCE}", f"instances/{INSTANCE}/disk"]


def test_a_guest_that_runs_keeps_its_disk_while_it_gets_another(files: InstanceFiles, tmp_path: Path) -> None:
    upload(tmp_path, b"old")
    with files.make_disk(INSTANCE, IMAGE, RAW).open("rb") as running:
        upload(tmp_path, b"new")
        assert files.make_disk(INSTANCE, IMAGE, RAW).read_bytes() == b"new"
        assert running.read() == b"old"


def test_only_its_owner_may_read_a_disk_and_nobody_may_list_the_instances(files: InstanceFiles, tmp_path: Path) -> None:
    upload(tmp_path, b"secret")
    disk = files.make_disk(INSTANCE, IMAGE, RAW)
    assert disk.stat().st_mode & 0o777 == 0o600
    for directory in (disk.parent, files.directory):
        assert directory.stat().st_mode & 0o066 == 0


def test_removal_takes_everything_and_may_be_repeated(files: InstanceFiles, tmp_path: Path) -> None:
    files.remove(INSTANCE)
    upload(tmp_path, b"system")
    files.make_disk(INSTANCE, IMAGE, RAW)
    files.console_log(INSTANCE).write_text("booted")
    files.remove(INSTANCE)
    files.remove(INSTANCE)
    assert left(tmp_path) == []


def test_a_removal_that_fails_is_told_of(files: InstanceFiles, tmp_path: Path) -> None:
    (tmp_path / "instances").mkdir()
    (tmp_path / "instances" / INSTANCE).write_text("no directory")
    with pytest.raises(GuestError, match=f"cannot remove {tmp_path}/instances/{INSTANCE}: Not a directory"):
        files.remove(INSTANCE)


def test_the_room_is_that_of_the_file_system_of_the_disks(tmp_path: Path) -> None:
    found: Any = shutil.disk_usage(tmp_path)
    assert InstanceFiles(tmp_path / "not" / "yet").total_gb() == found.total // GIB
