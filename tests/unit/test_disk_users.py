"""Who uses a disk: said in words, and never "nobody" for want of an answer."""

import fcntl
import os
import shutil
from pathlib import Path

import pytest

from autoclave.exceptions import DeviceVanished, HardwareError
from autoclave.hardware.nvme import controller_at
from autoclave.hardware.usage import holders
from autoclave.rules.pci_address import PCIAddress
from sysfs_tree import SysfsTree, link, link_text

A = "0000:01:00.0"


class Host(SysfsTree):
    """A host with one drive: nvme0n1 (259:0) with the partitions nvme0n1p1 (259:1) and nvme0n1p2 (259:2)."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.drive = self.controller(A, "nvme0", "nvme-subsys0")
        self.nvme0n1 = self.disk(self.drive, "nvme0n1")
        self.p1 = self.partition(self.nvme0n1, "nvme0n1p1", "259:1")
        self.p2 = self.partition(self.nvme0n1, "nvme0n1p2", "259:2")

    def exported(self, place: str, **attributes: str) -> None:
        """What the kernel serves, in a directory of sysfs or configfs."""
        directory = self.sys / place
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in attributes.items():
            (directory / name).write_text(f"{text}\n")

    def holders(self) -> list[str]:
        return holders(self.paths, controller_at(self.paths, PCIAddress.parse(A)))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_a_disk_that_nobody_uses_has_no_holders(host: Host) -> None:
    host.mounted("8:1 / ext4 /dev/sda1", "0:21 /sys sysfs sysfs")
    host.swapping_to("/dev/sda2", "/swapfile")

    assert host.holders() == []


def test_a_mounted_partition_is_named_with_its_place(host: Host) -> None:
    host.mounted(r"259:2 /var/lib/my\040images xfs /dev/disk/by-uuid/1234")

    assert host.holders() == ["nvme0n1p2 is mounted on /var/lib/my images (xfs)"]


def test_a_disk_mounted_whole_is_named(host: Host) -> None:
    host.mounted("259:0 /srv ext4 /dev/nvme0n1")

    assert host.holders() == ["nvme0n1 is mounted on /srv (ext4)"]


def test_many_mounts_of_one_partition_are_one_line(host: Host) -> None:
    host.mounted(*(f"259:1 /pod{index} ext4 /dev/nvme0n1p1" for index in range(40)))

    assert host.holders() == ["nvme0n1p1 is mounted on /pod0, /pod1, /pod2 and 37 more places (ext4)"]


def test_a_file_system_with_an_invented_number_is_found_by_what_was_mounted(host: Host) -> None:
    host.mounted("0:45 /data btrfs /dev/nvme0n1p1")

    assert host.holders() == ["nvme0n1p1 is mounted on /data (btrfs)"]


def test_a_mount_by_another_name_of_the_node_is_found(host: Host) -> None:
    link(host.dev / "disk/by-label/data", host.dev / "nvme0n1p1")
    host.mounted("0:45 /data btrfs /dev/disk/by-label/data")

    assert host.holders() == ["nvme0n1p1 is mounted on /data (btrfs)"]


def test_a_disk_is_not_taken_for_one_whose_name_begins_alike(host: Host) -> None:
    host.mounted("0:45 /data btrfs /dev/nvme0n1p11", "0:46 /more btrfs /dev/nvme0n12")

    assert host.holders() == []


def test_the_second_disk_of_a_btrfs_is_found_though_only_the_first_is_mounted_by_name(host: Host) -> None:
    host.mounted("0:45 /data btrfs /dev/sda1")
    link(host.sys / "fs/btrfs/c0ffee/devices/nvme0n1p2", host.p2)
    (host.sys / "fs/btrfs/features").mkdir()

    assert host.holders() == ["nvme0n1p2 is a member of the mounted btrfs file system c0ffee"]


def test_swap_is_found(host: Host) -> None:
    host.swapping_to("/dev/sda2", "/dev/nvme0n1p2")

    assert host.holders() == ["nvme0n1p2 is used as swap"]


def test_a_volume_is_said_with_what_is_on_it(host: Host) -> None:
    host.virtual("dm-0", "253:0", [host.p2], dm__name="vg-root", dm__uuid="LVM-abc")
    host.mounted("253:0 / ext4 /dev/mapper/vg-root")

    assert host.holders() == ["LVM volume vg-root on nvme0n1p2 is mounted on / (ext4)"]


def test_a_volume_is_a_holder_even_if_nothing_is_on_it(host: Host) -> None:
    host.virtual("dm-0", "253:0", [host.p2], dm__name="vg-spare", dm__uuid="LVM-abc")

    assert host.holders() == ["LVM volume vg-spare on nvme0n1p2"]


def test_what_is_built_on_what_is_built_on_the_disk_is_followed_to_the_top(host: Host) -> None:
    array = host.virtual("md0", "9:0", [host.nvme0n1], md__level="raid1")
    crypt = host.virtual("dm-0", "253:0", [array], dm__name="secret", dm__uuid="CRYPT-LUKS2-abc")
    host.virtual("dm-1", "253:1", [crypt], dm__name="vg-swap", dm__uuid="LVM-abc")
    host.virtual("dm-2", "253:2", [crypt], dm__name="vg-home", dm__uuid="LVM-def")
    host.mounted("0:50 /home btrfs /dev/mapper/vg-home")
    host.swapping_to("/dev/dm-1")

    trail = "encrypted volume secret on RAID array md0 (raid1) on nvme0n1"
    assert host.holders() == [
        f"LVM volume vg-swap on {trail} is used as swap",
        f"LVM volume vg-home on {trail} is mounted on /home (btrfs)",
    ]


def test_a_partition_of_an_array_is_followed(host: Host) -> None:
    array = host.virtual("md0", "9:0", [host.p1], md__level="raid0")
    host.partition(array, "md0p1", "259:9")
    host.mounted("259:9 /srv ext4 /dev/md0p1")

    assert host.holders() == ["md0p1 of RAID array md0 (raid0) on nvme0n1p1 is mounted on /srv (ext4)"]


def test_device_mapper_of_an_unknown_kind_is_a_holder_too(host: Host) -> None:
    host.virtual("dm-0", "253:0", [host.nvme0n1], dm__name="odd", dm__uuid="")

    assert host.holders() == ["device-mapper device odd on nvme0n1"]


def test_bcache_is_found(host: Host) -> None:
    (host.p1 / "bcache").mkdir()

    assert host.holders() == ["nvme0n1p1 belongs to bcache"]


def test_a_loop_device_on_the_disk_is_found(host: Host) -> None:
    loop = host.sys / "class/block/loop3/loop"
    loop.mkdir(parents=True)
    (loop / "backing_file").write_text("/dev/nvme0n1\n")
    (host.sys / "class/block/loop4").mkdir()

    assert host.holders() == ["nvme0n1 is behind the loop device loop3"]


def test_a_multipath_disk_is_looked_at_where_the_kernel_keeps_it(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree.hidden_path(tree.controller(A, "nvme2", "nvme-subsys3"), "nvme3c2n1")
    disk = tree.disk(tree.subsystem("nvme-subsys3"), "nvme3n1", number="259:5")
    tree.partition(disk, "nvme3n1p1", "259:6")
    tree.mounted("259:6 /srv ext4 /dev/nvme3n1p1")

    assert holders(tree.paths, controller_at(tree.paths, PCIAddress.parse(A))) == [
        "nvme3n1p1 is mounted on /srv (ext4)"
    ]


@pytest.mark.parametrize(("enabled", "exported"), [("1", True), ("0", False)])
def test_a_disk_that_an_nvme_target_exports_is_used(host: Host, enabled: str, exported: bool) -> None:
    namespace = host.sys / "kernel/config/nvmet/subsystems/nqn.shared/namespaces/1"
    namespace.mkdir(parents=True)
    (namespace / "enable").write_text(f"{enabled}\n")
    (namespace / "device_path").write_text("/dev/nvme0n1p2\n")

    assert host.holders() == (["nvme0n1p2 is exported to other hosts as nqn.shared (nvmet)"] if exported else [])


def test_every_disk_of_the_controller_is_looked_at(host: Host) -> None:
    host.disk(host.drive, "nvme0n2", nsid=2, number="259:7")
    host.mounted("259:1 /a ext4 /dev/nvme0n1p1", "259:7 /b ext4 /dev/nvme0n2")

    assert host.holders() == ["nvme0n1p1 is mounted on /a (ext4)", "nvme0n2 is mounted on /b (ext4)"]


def test_an_exclusive_open_that_nothing_explains_is_a_holder(host: Host) -> None:
    with open(host.dev / "nvme0n1", "rb") as node:
        fcntl.flock(node, fcntl.LOCK_EX)

        [line] = host.holders()

    assert "nvme0n1 is open exclusively by the kernel or a program that cannot be identified" in line
    assert "label" not in line


def test_an_exclusive_open_that_is_soon_over_is_no_holder(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(host.dev / "nvme0n1", "rb") as node:  # as `autoclave plan` opens it while the agent looks
        fcntl.flock(node, fcntl.LOCK_EX)
        monkeypatch.setattr("time.sleep", lambda _: node.close())

        assert host.holders() == []


def test_an_exclusive_open_of_a_disk_with_a_zfs_label_hints_at_the_pool(host: Host) -> None:
    with open(host.dev / "nvme0n1p1", "r+b") as node:
        node.seek(128 * 1024 + 3 * 1024)
        node.write((0x00BAB10C).to_bytes(8, "little"))
    with open(host.dev / "nvme0n1", "rb") as node:
        fcntl.flock(node, fcntl.LOCK_EX)

        [line] = host.holders()

    assert line.endswith("a ZFS label is on nvme0n1p1: is the pool imported?")


def test_the_zfs_label_that_a_tenant_left_does_not_make_a_holder(host: Host) -> None:
    with open(host.dev / "nvme0n1", "r+b") as node:
        node.seek(128 * 1024)
        node.write((0x00BAB10C).to_bytes(8, "big"))

    assert host.holders() == []


def test_a_program_that_may_write_is_a_holder_and_a_reader_is_not(host: Host) -> None:
    host.program(77, "smartd", "/dev/nvme0n1", flags="0100000")
    assert host.holders() == []

    host.program(4242, "qemu-system-x86", "/dev/nvme0n1p2", flags="0140002")
    assert host.holders() == [f"{host.dev}/nvme0n1p2 is open for writing by qemu-system-x86 (pid 4242)"]


def test_looking_does_not_change_or_keep_the_disk(host: Host) -> None:
    node = host.dev / "nvme0n1"
    before = node.stat()

    host.holders()

    assert (node.stat().st_mtime_ns, node.stat().st_size) == (before.st_mtime_ns, before.st_size)
    with open(node, "rb") as free:
        fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.mark.parametrize(
    "unreadable",
    [
        "proc/self/mountinfo",
        "proc/swaps",
        "sys/class/block",
        "sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/holders",
        "sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p2/holders",
        "sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/dev",
        "sys/devices/pci0000:00/0000:01:00.0/nvme/nvme0/nvme0n1/nvme0n1p2/dev",
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_it_and_not_an_unused_disk(host: Host, unreadable: str) -> None:
    path = host.sys.parent / unreadable
    shutil.rmtree(path) if path.is_dir() else path.unlink()

    with pytest.raises(HardwareError, match="/".join(unreadable.split("/")[-2:])):
        host.holders()


def test_a_holder_that_leads_nowhere_is_an_error_and_not_an_unused_disk(host: Host) -> None:
    link(host.p1 / "holders/dm-7", host.sys / "devices/virtual/block/dm-7")

    with pytest.raises(HardwareError, match="dm-7"):
        host.holders()


@pytest.mark.parametrize(("device", "used"), [("259:2", True), ("8:1", False), ("rubbish", False)])
def test_line_of_the_mount_table_that_makes_no_sense_decides_about_its_own_device_only(
    host: Host, device: str, used: bool
) -> None:
    (host.proc / "self/mountinfo").write_text(f"26 1 {device} / /\n\n27\n")

    found = host.holders()

    assert bool(found) is used
    assert not used or f"nvme0n1p2 is mounted on an unknown place by the line '26 1 {device} / /'" in found[0]


@pytest.mark.parametrize("kind", ["mount", "swap", "export"])
def test_link_that_leads_to_itself_says_nothing_of_a_disk(host: Host, kind: str) -> None:
    link_text(host.dev / "disk/by-id/circle", "circle")
    if kind == "mount":
        host.mounted("0:45 /data btrfs /dev/disk/by-id/circle")
    elif kind == "swap":
        host.swapping_to("/dev/disk/by-id/circle")
    else:
        host.exported("kernel/config/nvmet/subsystems/nqn.x/namespaces/1", enable="1",
                      device_path="/dev/disk/by-id/circle")  # fmt: skip

    assert host.holders() == []


@pytest.mark.parametrize(
    ("node", "program"),
    [("nvme0", "qemu-system-x86"), ("ng0n1", "fio"), ("nvme0n1", "dd"), ("nvme0n1p1", "dd")],
)
def test_program_that_may_write_by_any_node_of_the_drive_is_named(host: Host, node: str, program: str) -> None:
    host.program(77, "smartd", f"/dev/{node}", flags="0100000")
    assert host.holders() == []

    host.program(4242, program, f"/dev/{node}", flags="0100002")
    assert host.holders() == [f"{host.dev}/{node} is open for writing by {program} (pid 4242)"]


def test_program_with_a_node_of_another_drive_is_no_holder(host: Host) -> None:
    host.program(4242, "fio", "/dev/ng1n1", flags="0100002")
    host.program(4243, "fio", "/dev/nvme1", flags="0100002")

    assert host.holders() == []


def test_controller_without_namespaces_is_used_by_who_has_its_node(tmp_path: Path) -> None:
    tree = SysfsTree(tmp_path)
    tree.controller(A, "nvme2", "nvme-subsys2")
    tree.program(4242, "nvme-tool", "/dev/nvme2", flags="0100001")

    [line] = holders(tree.paths, controller_at(tree.paths, PCIAddress.parse(A)))

    assert line.endswith("nvme2 is open for writing by nvme-tool (pid 4242)")


@pytest.mark.parametrize("shown", ["/dev/ng0n1", "ng0n1"])
def test_node_that_is_registered_with_an_io_uring_is_open(host: Host, shown: str) -> None:
    ring = f"SqMask:\t0x1f\nSQEs:\t0\nUserFiles:\t2\n    0: {shown}\n    1: /etc/motd\nUserBufs:\t1\n    2: 4096/1\n"
    host.program(4242, "qemu-system-x86", "anon_inode:[io_uring]", flags="02000002\n" + ring)

    assert host.holders() == [f"{host.dev}/ng0n1 is open for writing by qemu-system-x86 (pid 4242)"]


@pytest.mark.parametrize("node", ["12", "noiommu-12"])
def test_open_vfio_group_of_the_function_is_a_way_in(host: Host, node: str) -> None:
    host.iommu_group(12, A, "0000:01:00.1")
    host.program(77, "qemu-system-x86", "/dev/vfio/13", flags="0100002")
    assert host.holders() == []

    host.program(4242, "qemu-system-x86", f"/dev/vfio/{node}", flags="0100000")
    assert host.holders() == [f"{host.dev}/vfio/{node} is open by qemu-system-x86 (pid 4242)"]


@pytest.mark.parametrize(
    ("place", "attributes", "use"),
    [
        (
            "kernel/config/nvmet/subsystems/nqn.whole/passthru",
            {"enable": "1", "device_path": "/dev/nvme0"},
            "nvme0 is exported to other hosts as nqn.whole (nvmet, passthru)",
        ),
        (
            "kernel/config/target/core/iblock_0/disk",
            {"udev_path": "/dev/nvme0n1"},
            "nvme0n1 is exported by LIO as iblock_0/disk",
        ),
        (
            "kernel/config/target/core/fileio_1/disk",
            {"udev_path": "", "info": "Status: ACTIVATED  Max Queue Depth: 0\n  "
                                      "TCM FILEIO ID: 0        File: /dev/nvme0n1p2  Size: 8  Mode: O_DSYNC"},
            "nvme0n1p2 is exported by LIO as fileio_1/disk",
        ),
        (
            "kernel/config/usb_gadget/g1/functions/mass_storage.0/lun.0",
            {"file": "/dev/nvme0n1"},
            "nvme0n1 is exported by the USB gadget g1 (mass_storage.0)",
        ),
    ],
)  # fmt: skip
def test_what_the_kernel_serves_to_others_is_used(host: Host, place: str, attributes: dict[str, str], use: str) -> None:
    host.exported(place, **{name: text.replace("nvme0", "nvme1") for name, text in attributes.items()})
    assert host.holders() == []

    host.exported(place, **attributes)
    assert host.holders() == [use]


def test_target_that_is_not_enabled_serves_no_controller(host: Host) -> None:
    host.exported("kernel/config/nvmet/subsystems/nqn.whole/passthru", enable="0", device_path="/dev/nvme0")

    assert host.holders() == []


def test_a_disk_whose_node_is_gone_has_vanished(host: Host) -> None:
    os.unlink(host.dev / "nvme0n1")

    with pytest.raises(DeviceVanished, match="nvme0n1"):
        host.holders()
