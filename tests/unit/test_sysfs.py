"""The PCI functions of a host: all that can be read, and by name what cannot."""

import shutil
from pathlib import Path

import pytest

from autoclave.exceptions import DeviceVanished, HardwareError
from autoclave.hardware import sysfs
from autoclave.hardware.sysfs import iommu_group_members, pci_function, pci_functions
from autoclave.rules.pci_address import PCIAddress
from sysfs_tree import SysfsTree, link

A, B, C = "0000:01:00.0", "0000:02:00.0", "10000:e1:00.0"


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    return SysfsTree(tmp_path)


def test_a_function_is_described_as_sysfs_shows_it(tree: SysfsTree) -> None:
    tree.function(A, driver="nvme", vendor="0x1B36", device="0x0010")
    tree.iommu_group(12, A)

    function = pci_function(tree.paths, PCIAddress.parse(A))

    assert (function.vendor_id, function.product_id, function.class_code) == ("1b36", "0010", "010802")
    assert (function.driver, function.iommu_group) == ("nvme", "12")
    assert (function.physfn, function.is_pf) == (None, False)


def test_what_the_platform_does_not_say_is_none(tree: SysfsTree) -> None:
    tree.function(A)

    function = pci_function(tree.paths, PCIAddress.parse(A))

    assert (function.driver, function.iommu_group) == (None, None)


def test_a_vf_names_its_pf_and_is_none_itself(tree: SysfsTree) -> None:
    pf = tree.function(A, sriov_totalvfs="8")
    vf = tree.function("0000:01:00.1")
    link(vf / "physfn", pf)

    functions, _ = pci_functions(tree.paths)

    assert [(f.is_pf, f.physfn) for f in functions] == [(True, None), (False, PCIAddress.parse(A))]


def test_a_function_that_can_have_no_vfs_is_no_pf(tree: SysfsTree) -> None:
    tree.function(A, sriov_totalvfs="0")

    assert not pci_function(tree.paths, PCIAddress.parse(A)).is_pf


def test_functions_come_in_bus_order_whatever_the_width_of_the_domain(tree: SysfsTree) -> None:
    for address in (C, B, A):
        tree.function(address)

    functions, unreadable = pci_functions(tree.paths)

    assert [str(f.address) for f in functions] == [A, B, C]
    assert unreadable == []


@pytest.mark.parametrize(
    ("attribute_name", "text"),
    [("vendor", "0x12"), ("vendor", ""), ("class_", "nvme"), ("sriov_totalvfs", "many")],
)
def test_one_function_that_says_nonsense_hides_no_other(tree: SysfsTree, attribute_name: str, text: str) -> None:
    tree.function(A, **{attribute_name: text})
    tree.function(B)

    functions, unreadable = pci_functions(tree.paths)

    assert [str(f.address) for f in functions] == [B]
    assert [entry.address for entry in unreadable] == [A]
    assert unreadable[0].reason


def test_a_missing_attribute_is_named(tree: SysfsTree) -> None:
    (tree.function(A) / "class").unlink()

    _, [unreadable] = pci_functions(tree.paths)

    assert f"{A}/class" in unreadable.reason


def test_a_dead_device_is_unreadable_and_not_one_of_vendor_ffff(tree: SysfsTree) -> None:
    tree.function(A, vendor="0xffff", device="0xffff")

    functions, [unreadable] = pci_functions(tree.paths)

    assert functions == []
    assert "dead" in unreadable.reason


def test_an_entry_that_is_no_address_is_reported(tree: SysfsTree) -> None:
    (tree.sys / "bus/pci/devices/scratch").mkdir()
    tree.function(B)

    functions, [unreadable] = pci_functions(tree.paths)

    assert [str(f.address) for f in functions] == [B]
    assert unreadable.address == "scratch"


def test_a_link_that_leads_nowhere_is_reported_because_the_entry_is_still_there(tree: SysfsTree) -> None:
    shutil.rmtree(tree.function(A))

    functions, unreadable = pci_functions(tree.paths)

    assert functions == []
    assert [entry.address for entry in unreadable] == [A]


def test_a_function_unplugged_while_the_bus_is_read_is_neither_found_nor_broken(
    tree: SysfsTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.function(A)
    tree.function(B)
    link_of_a = tree.sys / "bus/pci/devices" / A
    read = sysfs.read

    def unplug_then_read(path: Path) -> str:
        if path.is_relative_to(link_of_a):
            link_of_a.unlink(missing_ok=True)
        return read(path)

    monkeypatch.setattr(sysfs, "read", unplug_then_read)

    functions, unreadable = pci_functions(tree.paths)

    assert [str(f.address) for f in functions] == [B]
    assert unreadable == []


def test_a_function_that_is_not_there_has_vanished(tree: SysfsTree) -> None:
    with pytest.raises(DeviceVanished, match=A):
        pci_function(tree.paths, PCIAddress.parse(A))


def test_a_bus_that_cannot_be_listed_is_not_an_empty_bus(tree: SysfsTree) -> None:
    (tree.sys / "bus/pci/devices").rmdir()

    with pytest.raises(HardwareError, match="bus/pci/devices"):
        pci_functions(tree.paths)


def test_the_other_members_of_the_iommu_group_are_listed(tree: SysfsTree) -> None:
    for address in (C, B, A):
        tree.function(address)
    tree.iommu_group(3, C, A, B)

    assert [str(member) for member in iommu_group_members(tree.paths, PCIAddress.parse(B))] == [A, C]


def test_without_an_iommu_there_are_no_group_members(tree: SysfsTree) -> None:
    tree.function(A)

    assert iommu_group_members(tree.paths, PCIAddress.parse(A)) == []


def test_a_group_that_cannot_be_listed_is_not_a_group_of_one(tree: SysfsTree) -> None:
    tree.function(A)
    tree.iommu_group(3, A)
    shutil.rmtree(tree.sys / "kernel/iommu_groups/3/devices")

    with pytest.raises(HardwareError, match="iommu_group/devices"):
        iommu_group_members(tree.paths, PCIAddress.parse(A))
