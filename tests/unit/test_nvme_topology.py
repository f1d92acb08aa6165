"""Which disks belong to which controller: by sysfs, never by the numbers in their names."""

import shutil
from pathlib import Path

import pytest

from autoclave.exceptions import DeviceVanished, DriverMismatch, HardwareError
from autoclave.hardware import sysfs
from autoclave.hardware.nvme import Namespace, block_directory, controller_at
from autoclave.rules.pci_address import PCIAddress
from sysfs_tree import DISK_BYTES, SysfsTree, link

A, B = "0000:01:00.0", "0000:02:00.0"
AT_A, AT_B = PCIAddress.parse(A), PCIAddress.parse(B)


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path)


def two_paths(tree: SysfsTree) -> None:
    """Two controllers of one drive, as seen in a real kernel: the disk has the subsystem's number."""
    for address, name in ((A, "nvme2"), (B, "nvme3")):
        directory = tree.controller(address, name, "nvme-subsys3", serial="SHARED")
        tree.hidden_path(directory, f"nvme3c{name[-1]}n1")
    tree.disk(tree.subsystem("nvme-subsys3"), "nvme3n1")


def test_a_controller_is_described_without_the_padding_of_its_strings(tree: SysfsTree) -> None:
    tree.disk(tree.controller(A, "nvme0", "nvme-subsys0", serial="S4EV NF0 ".ljust(20)), "nvme0n1", nsid=5)

    controller = controller_at(tree.paths, AT_A)

    assert (controller.name, controller.path) == ("nvme0", tree.dev / "nvme0")
    assert (controller.serial, controller.model) == ("S4EV NF0", "Fine Drive 3000")
    assert (controller.state, controller.subsystem) == ("live", "nvme-subsys0")
    assert controller.namespaces == (Namespace(5, "nvme0n1", tree.dev / "nvme0n1", DISK_BYTES),)
    assert controller.other_paths == ()


def test_crossed_numbers_do_not_lead_to_the_neighbours_disk(tree: SysfsTree) -> None:
    # Native multipath numbers disks by subsystem: nvme0's disk is nvme1n1 and the other way round.
    for address, name, head in ((A, "nvme0", 1), (B, "nvme1", 0)):
        directory = tree.controller(address, name, f"nvme-subsys{head}")
        tree.hidden_path(directory, f"nvme{head}c{name[-1]}n1")
        tree.disk(tree.subsystem(f"nvme-subsys{head}"), f"nvme{head}n1")

    for address, disk in ((AT_A, "nvme1n1"), (AT_B, "nvme0n1")):
        [namespace] = controller_at(tree.paths, address).namespaces
        assert (namespace.block_name, namespace.path) == (disk, tree.dev / disk)


def test_namespaces_come_in_order_of_their_ids(tree: SysfsTree) -> None:
    directory = tree.controller(A, "nvme0", "nvme-subsys0")
    for name, nsid in (("nvme0n1", 12), ("nvme0n2", 2), ("nvme0n3", 1)):
        tree.disk(directory, name, nsid=nsid)
    (directory / "ng0n1").mkdir()
    (directory / "hwmon0").mkdir()

    assert [n.nsid for n in controller_at(tree.paths, AT_A).namespaces] == [1, 2, 12]


def test_a_controller_without_namespaces_has_none(tree: SysfsTree) -> None:
    tree.controller(A, "nvme0", "nvme-subsys0")

    assert controller_at(tree.paths, AT_A).namespaces == ()


def test_a_hidden_path_leads_to_the_disk_of_its_subsystem(tree: SysfsTree) -> None:
    two_paths(tree)

    controller = controller_at(tree.paths, AT_A)

    assert controller.namespaces == (Namespace(1, "nvme3n1", tree.dev / "nvme3n1", DISK_BYTES),)
    assert controller.subsystem == "nvme-subsys3"


def test_both_ways_to_the_same_media_see_each_other(tree: SysfsTree) -> None:
    two_paths(tree)

    assert controller_at(tree.paths, AT_A).other_paths == ("nvme3",)
    assert controller_at(tree.paths, AT_B).other_paths == ("nvme2",)


@pytest.mark.parametrize(("state", "counts"), [("dead", False), ("connecting", True), ("resetting", True)])
def test_a_second_way_counts_unless_it_is_dead_for_good(tree: SysfsTree, state: str, counts: bool) -> None:
    two_paths(tree)
    (tree.sys / "class/nvme/nvme3/state").write_text(f"{state}\n")

    assert controller_at(tree.paths, AT_A).other_paths == (("nvme3",) if counts else ())


def test_a_second_way_whose_state_cannot_be_read_is_not_taken_for_none(tree: SysfsTree) -> None:
    two_paths(tree)
    (tree.sys / "class/nvme/nvme3/state").unlink()

    with pytest.raises(HardwareError, match="nvme3/state"):
        controller_at(tree.paths, AT_A)


def test_a_kernel_that_shows_no_subsystems_is_asked_by_nqn(tree: SysfsTree) -> None:
    for address, name, nqn in ((A, "nvme0", "one"), (B, "nvme1", "one"), ("0000:03:00.0", "nvme2", "two")):
        tree.controller(address, name, "nvme-subsys0", subsysnqn=nqn)
    shutil.rmtree(tree.sys / "class/nvme-subsystem")

    controller = controller_at(tree.paths, AT_A)

    assert (controller.subsystem, controller.other_paths) == (None, ("nvme1",))


def test_where_nothing_tells_of_second_ways_it_is_not_said_that_there_are_none(tree: SysfsTree) -> None:
    tree.controller(A, "nvme0", "nvme-subsys0")
    shutil.rmtree(tree.sys / "class/nvme-subsystem")
    shutil.rmtree(tree.sys / "class/nvme")

    with pytest.raises(HardwareError, match="class/nvme"):
        controller_at(tree.paths, AT_A)


def test_private_namespaces_with_one_id_are_told_apart_by_wwid(tree: SysfsTree) -> None:
    for address, name, head, wwid in ((A, "nvme2", 1, "eui.aa"), (B, "nvme3", 2, "eui.bb")):
        directory = tree.controller(address, name, "nvme-subsys3")
        tree.hidden_path(directory, f"nvme3c{name[-1]}n{head}", nsid=1, wwid=wwid)
        tree.disk(tree.subsystem("nvme-subsys3"), f"nvme3n{head}", nsid=1, wwid=wwid)

    assert [n.block_name for n in controller_at(tree.paths, AT_A).namespaces] == ["nvme3n1"]
    assert [n.block_name for n in controller_at(tree.paths, AT_B).namespaces] == ["nvme3n2"]


@pytest.mark.parametrize("heads", [0, 2])
def test_a_path_that_leads_to_no_one_disk_is_an_error_and_not_left_out(tree: SysfsTree, heads: int) -> None:
    tree.hidden_path(tree.controller(A, "nvme2", "nvme-subsys3"), "nvme3c2n1")
    for number in range(heads):
        tree.disk(tree.subsystem("nvme-subsys3"), f"nvme3n{number + 1}")

    with pytest.raises(HardwareError, match=f"nvme3c2n1.*shows {heads}"):
        controller_at(tree.paths, AT_A)


@pytest.mark.parametrize("driver", ["vfio-pci", None])
def test_a_function_that_another_driver_has_is_refused_by_the_drivers_name(tree: SysfsTree, driver: str | None) -> None:
    tree.function(A, driver=driver)

    with pytest.raises(DriverMismatch, match=driver or "no driver") as caught:
        controller_at(tree.paths, AT_A)

    assert caught.value.driver == driver


def test_a_slot_without_a_function_has_vanished(tree: SysfsTree) -> None:
    with pytest.raises(DeviceVanished, match=A):
        controller_at(tree.paths, AT_A)


def test_a_driver_that_made_no_controller_is_an_error(tree: SysfsTree) -> None:
    tree.function(A, driver="nvme")

    with pytest.raises(HardwareError, match="no controller"):
        controller_at(tree.paths, AT_A)


@pytest.mark.parametrize("name", ["serial", "model", "state", "subsysnqn"])
def test_an_attribute_that_cannot_be_read_is_named(tree: SysfsTree, name: str) -> None:
    (tree.controller(A, "nvme0", "nvme-subsys0") / name).unlink()

    with pytest.raises(HardwareError, match=f"nvme0/{name}"):
        controller_at(tree.paths, AT_A)


def test_a_disk_that_does_not_say_its_size_is_an_error(tree: SysfsTree) -> None:
    (tree.disk(tree.controller(A, "nvme0", "nvme-subsys0"), "nvme0n1") / "size").write_text("?\n")

    with pytest.raises(HardwareError, match="nvme0n1/size"):
        controller_at(tree.paths, AT_A)


@pytest.mark.parametrize("gone", ["controller", "function"])
def test_a_drive_pulled_while_it_is_read_has_vanished(
    tree: SysfsTree, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    tree.controller(A, "nvme0", "nvme-subsys0")
    function = tree.sys / "bus/pci/devices" / A
    read = sysfs.drive_string

    def pull_then_read(path: Path) -> str:
        if path.name == "serial":
            shutil.rmtree(function.resolve() / "nvme")
            if gone == "function":
                function.unlink()
        return read(path)

    monkeypatch.setattr(sysfs, "drive_string", pull_then_read)

    with pytest.raises(DeviceVanished, match="went away"):
        controller_at(tree.paths, AT_A)


def test_a_disk_is_found_in_sysfs_below_the_controller_or_below_its_subsystem(tree: SysfsTree) -> None:
    two_paths(tree)
    plain = tree.disk(tree.controller("0000:03:00.0", "nvme4", "nvme-subsys4"), "nvme4n1")

    for address, expected in ((AT_A, tree.subsystem("nvme-subsys3") / "nvme3n1"), ("0000:03:00.0", plain)):
        controller = controller_at(tree.paths, PCIAddress.parse(str(address)))
        assert block_directory(tree.paths, controller, controller.namespaces[0]).samefile(expected)


def test_a_disk_that_is_gone_from_sysfs_has_vanished(tree: SysfsTree) -> None:
    disk = tree.disk(tree.controller(A, "nvme0", "nvme-subsys0"), "nvme0n1")
    controller = controller_at(tree.paths, AT_A)
    shutil.rmtree(disk)

    with pytest.raises(DeviceVanished, match="nvme0n1"):
        block_directory(tree.paths, controller, controller.namespaces[0])


def test_an_enabled_virtual_function_is_another_way_to_the_media(tree: SysfsTree) -> None:
    tree.controller(A, "nvme0", "nvme-subsys0")
    link(tree.sys / "bus/pci/devices" / A / "virtfn0", tree.function("0000:01:00.1"))

    assert controller_at(tree.paths, AT_A).other_paths == ("the virtual function 0000:01:00.1",)
