"""What this host has activated from a guest's bytes is ended, if it stands on the drive alone and nothing uses it."""

import re
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from erase_doubles import Watcher

from autoclave.hardware.command import Commands
from autoclave.hardware.host_setup import EndedUses, GuestVolumes
from autoclave.hardware.nvme import controller_at
from autoclave.hardware.privileged import admission
from autoclave.rules.pci_address import PCIAddress
from sysfs_tree import SysfsTree

A = "0000:01:00.0"
GROUP = "20ZkCM28LtcL9fKD3ixh0zvUnOxzkGBc"
DASHED = "20ZkCM-28Lt-cL9f-KD3i-xh0z-vUnO-xzkGBc"
VOLUME = "hG3pYb2uQkXo0VtZr9sLwN4eJ6aFmC8D"
OTHER = "mC8DhG3pYb2uQkXo0VtZr9sLwN4eJ6aF"


class Host(SysfsTree):
    """A host with the drive nvme0n1, its partition, and a disk of its own, sda. Its tools are scripts."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.bin = root / "bin"
        self.bin.mkdir()
        self.log = root / "commands"
        self.log.touch()
        self.paths = replace(self.paths, tools=(self.bin,))
        self.nvme0n1 = self.disk(self.controller(A, "nvme0", "nvme-subsys0"), "nvme0n1")
        self.p1 = self.partition(self.nvme0n1, "nvme0n1p1", "259:1")
        self.sda = self.disk(self.sys / "devices/ata1", "sda", number="8:0")
        self.tool("vgs", "echo '  0'")
        self.tool("vgchange", self.gone("dm-0"))
        self.tool("mdadm", self.gone("md127"))

    def tool(self, name: str, script: str) -> None:
        """Let a tool write down how it was called, and do what *script* says."""
        path = self.bin / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> {shlex.quote(str(self.log))}\n{script}\n')
        path.chmod(0o755)

    def gone(self, *names: str) -> str:
        """A script after which the block devices are not there."""
        entries = [f"{place}/{name}" for name in names for place in (f"{self.sys}/class/block", "holders")]
        return f"cd {shlex.quote(str(self.nvme0n1))} && rm -f {' '.join(map(shlex.quote, entries))}"

    def volume(self, name: str, below: list[Path], identity: str = VOLUME, *, group: str = GROUP) -> Path:
        number = f"253:{name.removeprefix('dm-')}"
        return self.virtual(name, number, below, dm__name=f"vg0-{name}", dm__uuid=f"LVM-{group}{identity}")

    def array(self, name: str, below: list[Path]) -> Path:
        return self.virtual(name, "9:127", below, md__level="raid1")

    def end(self, timeout: float = 30) -> EndedUses:
        watcher = Watcher()
        controller = controller_at(self.paths, PCIAddress.parse(A))
        return GuestVolumes(self.paths, Commands(self.paths), controller, watcher.deadline, timeout).end(watcher)

    def assert_kept(self, *words: str) -> None:
        """One use is kept for a reason with *words*, and no tool has been asked to end it."""
        outcome = self.end()
        assert outcome.ended == []
        [reason] = outcome.kept
        for word in words:
            assert word in reason
        assert not re.search(r"vgchange|mdadm", self.log.read_text())


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_volume_group_is_ended_by_its_uuid(host: Host) -> None:
    """LVM is shown the drive and its partition, and no other disk, whatever lvm.conf says."""
    host.volume("dm-0", [host.p1])

    assert host.end() == EndedUses(ended=[f"volume group {DASHED}"])

    [asked, ended] = host.log.read_text().splitlines()
    accepted = f'["a|^{host.dev}/nvme0n1$|","a|^{host.dev}/nvme0n1p1$|","r|.*|"]'
    config = f'devices{{filter={accepted}global_filter={accepted}hints="none"use_devicesfile=0}}'
    assert asked == f"vgs --noheadings -o vg_missing_pv_count --select vg_uuid={DASHED} --config {config}"
    assert ended == f"vgchange -an --select vg_uuid={DASHED} --config {config}"


def test_array_is_stopped_by_its_node(host: Host) -> None:
    host.array("md127", [host.nvme0n1])

    assert host.end() == EndedUses(ended=["RAID array md127"])
    assert host.log.read_text() == f"mdadm --stop {host.dev}/md127\n"


def test_thin_pool_is_ended_with_its_group(host: Host) -> None:
    """The layers of a thin pool stand on each other, and not on the drive."""
    data = host.volume("dm-0", [host.p1], f"{VOLUME}-tdata")
    pool = host.volume("dm-1", [data], f"{VOLUME}-tpool")
    host.volume("dm-2", [pool], OTHER)
    host.tool("vgchange", host.gone("dm-0", "dm-1", "dm-2"))

    assert host.end() == EndedUses(ended=[f"volume group {DASHED}"])
    assert host.log.read_text().count("vgchange") == 1


def test_unused_drive_runs_no_command(host: Host) -> None:
    host.volume("dm-0", [host.sda])

    assert host.end() == EndedUses()
    assert not host.log.read_text()


def test_group_with_a_volume_on_another_disk_is_kept(host: Host) -> None:
    """A cloned image has the UUIDs of the host's own group."""
    host.volume("dm-0", [host.p1])
    host.volume("dm-1", [host.sda], OTHER)

    host.assert_kept(f"volume group {DASHED} was not stopped", "dm-1 is also on sda")


def test_group_with_a_member_elsewhere_is_kept(host: Host) -> None:
    """No volume shows that the group also has another disk: its metadata do."""
    host.volume("dm-0", [host.p1])
    host.tool("vgs", "echo '  1'")

    host.assert_kept(DASHED, "1 members that are not on this drive")


@pytest.mark.parametrize("said", ["", "echo '0 of 2'"], ids=["nothing", "something else"])
def test_group_that_lvm_does_not_find_alone_is_kept(host: Host, said: str) -> None:
    host.volume("dm-0", [host.p1])
    host.tool("vgs", said)

    host.assert_kept(DASHED, "vgs exited with 0:")


def test_group_that_lvm_cannot_read_is_kept_with_its_words(host: Host) -> None:
    host.volume("dm-0", [host.p1])
    host.tool("vgs", "echo '  0'; echo '  metadata checksum error' >&2; exit 5")

    host.assert_kept("vgs exited with 5: metadata checksum error")


def test_mounted_volume_is_kept(host: Host) -> None:
    host.volume("dm-0", [host.p1])
    host.mounted("253:0 /media/data ext4 /dev/mapper/vg0-dm-0")

    host.assert_kept("dm-0 is mounted on /media/data (ext4)")


def test_swap_on_an_array_is_kept(host: Host) -> None:
    host.array("md127", [host.nvme0n1])
    host.swapping_to("/dev/md127")

    host.assert_kept("RAID array md127 was not stopped", "is used as swap")


def test_volume_under_something_else_is_kept(host: Host) -> None:
    volume = host.volume("dm-0", [host.p1])
    host.virtual("dm-1", "253:1", [volume], dm__name="secret", dm__uuid="CRYPT-LUKS2-abc")

    host.assert_kept("dm-0 belongs to dm-1")


def test_array_with_a_member_elsewhere_is_kept(host: Host) -> None:
    host.array("md127", [host.nvme0n1, host.sda])

    host.assert_kept("md127 is also on sda")


def test_mounted_partition_of_an_array_is_kept(host: Host) -> None:
    array = host.array("md127", [host.nvme0n1])
    host.partition(array, "md127p1", "259:9")
    host.mounted("259:9 /srv ext4 /dev/md127p1")

    host.assert_kept("md127p1 is mounted on /srv")


def test_array_with_a_name_that_a_guest_chose_is_kept(host: Host) -> None:
    host.array("md_home", [host.nvme0n1])

    host.assert_kept("RAID array md_home was not stopped")


@pytest.mark.parametrize("uuid", ["CRYPT-LUKS2-abc-x", "mpath-eui.1234", "", f"LVM-{'!' * 64}", "LVM-short"])
def test_other_mappings_are_left_alone(host: Host, uuid: str) -> None:
    host.virtual("dm-0", "253:0", [host.p1], dm__name="odd", dm__uuid=uuid)

    assert host.end() == EndedUses()
    assert not host.log.read_text()


def test_command_that_fails_is_named_with_its_words(host: Host) -> None:
    host.volume("dm-0", [host.p1])
    host.tool("vgchange", "echo '  Logical volume vg0/data in use.' >&2; exit 5")
    host.array("md127", [host.nvme0n1])

    outcome = host.end()

    assert outcome.ended == ["RAID array md127"], "one failure must not keep the other"
    [reason] = outcome.kept
    assert reason == (
        f"volume group {DASHED} was not stopped: dm-0 is still there; vgchange exited with 5: Logical volume "
        "vg0/data in use."
    )


def test_failure_that_leaves_nothing_has_the_words_alone(host: Host) -> None:
    host.volume("dm-0", [host.p1])
    host.tool("vgchange", f"({host.gone('dm-0')}); echo '  Failed to back up the group.' >&2; exit 5")

    assert host.end().kept == [
        f"volume group {DASHED} was not stopped: vgchange exited with 5: Failed to back up the group."
    ]


def test_success_without_effect_is_a_failure(host: Host) -> None:
    """vgchange exits with 0 when the kernel has refused each volume."""
    host.volume("dm-0", [host.p1])
    host.tool("vgchange", "echo '  0 logical volume(s) in volume group \"vg0\" now active'")

    outcome = host.end()

    assert outcome.ended == []
    assert "dm-0 is still there" in outcome.kept[0]


def test_command_that_hangs_is_ended_in_time(host: Host) -> None:
    host.volume("dm-0", [host.p1])
    host.tool("vgchange", "exec sleep 60")

    [reason] = host.end(timeout=0.5).kept

    assert "vgchange" in reason
    assert "ran past its deadline" in reason


def test_missing_tool_is_named_with_its_package(host: Host) -> None:
    host.array("md127", [host.nvme0n1])
    (host.bin / "mdadm").chmod(0o644)

    [reason] = host.end().kept

    assert "mdadm is not executable" in reason


def test_array_that_sysfs_does_not_explain_is_kept(host: Host) -> None:
    array = host.array("md127", [host.nvme0n1])
    (array / "slaves/nvme0n1").unlink()
    (array / "slaves").rmdir()

    host.assert_kept("cannot list", "slaves")


def test_commands_pass_the_helper(host: Host) -> None:
    host.volume("dm-0", [host.p1])
    host.array("md127", [host.nvme0n1])
    host.end()
    (host.sys / "block").mkdir()
    (host.sys / "block/md127").symlink_to("../devices/virtual/block/md127")

    commands = [line.replace(f"{host.dev}/", "/dev/").split(" ") for line in host.log.read_text().splitlines()]

    assert [argv[0] for argv in commands] == ["vgs", "vgchange", "mdadm"]
    for argv in commands:
        admission.command(argv, host.sys)


def test_helper_stops_no_array_that_has_other_disks(host: Host) -> None:
    array = host.array("md127", [host.nvme0n1, host.sda])
    (host.sys / "block").mkdir()
    (host.sys / "block/md127").symlink_to(array)
    for argv in (["mdadm", "--stop", "/dev/md127"], ["mdadm", "--stop", "/dev/md126"]):
        with pytest.raises(admission.HardwareError, match=argv[-1].removeprefix("/dev/")):
            admission.command(argv, host.sys)
