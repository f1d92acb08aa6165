"""The generic PCI driver on a sysfs tree: what it offers, how, and what it does not."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from pci_host import BRIDGE, DRIVE, GPU, NIC, VF0, VF1, add_virtual_functions, with_gpu

from autoclave.conf import new_config
from autoclave.drivers import pci
from autoclave.drivers.base import DiscoveredDevice, Inspected, Sighting
from autoclave.drivers.loader import load_drivers
from autoclave.drivers.pci import PCIDriver
from autoclave.exceptions import InvalidConfiguration
from sysfs_tree import SysfsTree


@pytest.fixture
def host(tmp_path: Path) -> SysfsTree:
    return with_gpu(tmp_path)


def driver(host: SysfsTree, *entries: Any, allow: tuple[str, ...] = ()) -> PCIDriver:
    overrides: dict[tuple[str | None, str], Any] = {
        ("agent", "enabled_drivers"): ["pci_driver"],
        ("agent", "allow_host_device"): list(allow),
        ("pci", "passthrough_whitelist"): [json.dumps(entry) for entry in entries],
    }
    [made] = load_drivers(new_config([], overrides), host.paths)
    assert isinstance(made, PCIDriver)
    made.init_host()
    return made


def devices(host: SysfsTree, *entries: Any, allow: tuple[str, ...] = ()) -> list[DiscoveredDevice]:
    return [device for device in driver(host, *entries, allow=allow).discover() if isinstance(device, DiscoveredDevice)]


def one(host: SysfsTree, *entries: Any, allow: tuple[str, ...] = ()) -> DiscoveredDevice:
    [device] = devices(host, *entries, allow=allow)
    return device


# What is offered


def test_a_function_is_a_device_with_its_real_ids_and_traits_made_of_them(host: SysfsTree) -> None:
    device = one(host, {"vendor_id": "10de"})
    assert (device.device_type, device.vendor, device.product) == ("PCI", "10de", "25b6")
    assert device.resource_class == "CUSTOM_PCI"
    assert set(device.traits) == {"CUSTOM_PCI_NVIDIA", "CUSTOM_PCI_VENDOR_ID_10DE", "CUSTOM_PCI_PRODUCT_ID_25B6"}
    assert (device.excluded, device.cleanup_action) == (None, None)
    [handle] = device.attach_handles
    assert (handle.attach_type, handle.identity) == ("PCI", GPU)
    assert handle.attach_info == {"domain": "0000", "bus": "25", "device": "00", "function": "0"}


def test_a_vendor_that_has_no_name_here_is_known_by_its_id(host: SysfsTree) -> None:
    host.function(NIC, vendor="0x15b3", device="0x101e", class_="0x020000")
    assert list(one(host, {"address": NIC}).traits) == ["CUSTOM_PCI_VENDOR_ID_15B3", "CUSTOM_PCI_PRODUCT_ID_101E"]


def test_what_no_entry_matches_is_no_device(host: SysfsTree) -> None:
    assert devices(host, {"vendor_id": "8086"}) == []
    assert devices(host) == []


@pytest.mark.parametrize(("written", "stored"), [(True, True), ("yes", True), (False, False), ("no", False)])
def test_a_handle_says_whether_it_is_managed_where_that_was_configured(
    host: SysfsTree, written: Any, stored: bool
) -> None:
    host.bind(GPU, "vfio-pci")
    [handle] = one(host, {"address": GPU, "managed": written}).attach_handles
    assert handle.attach_info["managed"] is stored
    assert handle.identity == GPU


def test_a_handle_does_not_mention_managed_where_that_was_not_configured(host: SysfsTree) -> None:
    [handle] = one(host, {"address": GPU}).attach_handles
    assert "managed" not in handle.attach_info


def test_a_bad_entry_keeps_the_agent_from_starting(host: SysfsTree) -> None:
    with pytest.raises(InvalidConfiguration, match=r"\[pci\] passthrough_whitelist, entry 1, key 'managed'"):
        driver(host, {"address": GPU, "managed": "perhaps"})


# Virtual functions


def test_the_address_of_a_physical_function_means_its_virtual_functions_which_are_handles_of_its_slot(
    host: SysfsTree,
) -> None:
    add_virtual_functions(host, "vfio-pci")
    device = one(host, {"address": NIC, "managed": False})
    assert (device.pci_address, device.product) == (NIC, "154c")
    assert [handle.identity for handle in device.attach_handles] == [VF0, VF1]
    assert [handle.attach_info["managed"] for handle in device.attach_handles] == [False, False]
    assert "CUSTOM_PCI_PRODUCT_ID_154C" in device.traits


def test_one_virtual_function_alone_may_be_meant(host: SysfsTree) -> None:
    add_virtual_functions(host, "vfio-pci")
    device = one(host, {"address": VF1, "managed": "no"})
    assert [handle.identity for handle in device.attach_handles] == [VF1]
    assert device.pci_address == NIC


def test_a_physical_function_is_never_offered_while_it_has_virtual_functions(host: SysfsTree) -> None:
    add_virtual_functions(host, "vfio-pci")
    device = one(host, {"product_id": "1572"})
    assert [handle.identity for handle in device.attach_handles] == [NIC]
    assert "2 virtual functions, which would disappear" in (device.excluded or "")
    both = one(host, {"vendor_id": "8086"})
    assert [handle.identity for handle in both.attach_handles] == [VF0, VF1]


def test_a_virtual_function_that_cannot_be_given_away_leaves_the_others(host: SysfsTree) -> None:
    add_virtual_functions(host, "vfio-pci")
    host.bind(VF0, "iavf")
    device = one(host, {"address": NIC, "managed": False})
    assert ([handle.identity for handle in device.attach_handles], device.excluded) == ([VF1], None)
    host.bind(VF1, "iavf")
    device = one(host, {"address": NIC, "managed": False})
    assert [handle.identity for handle in device.attach_handles] == [VF0, VF1]
    assert "bound to iavf" in (device.excluded or "")


# What is not offered


@pytest.mark.parametrize("bound_to", ["nouveau", None])
def test_what_libvirt_does_not_manage_must_be_with_a_vfio_driver_before_it_is_offered(
    host: SysfsTree, bound_to: str | None
) -> None:
    host.function(NIC, vendor="0x15b3", device="0x101e", class_="0x020000", driver=bound_to)
    device = one(host, {"address": NIC, "managed": False})
    assert f"bound to {bound_to or 'no driver'}" in (device.excluded or "")
    assert one(host, {"address": NIC, "managed": True}).excluded is None


@pytest.mark.parametrize("variant", ["vfio-pci", "mlx5_vfio_pci", "hisi_acc_vfio_pci"])
def test_a_variant_driver_counts_by_its_name(host: SysfsTree, variant: str) -> None:
    host.bind(GPU, variant)
    assert one(host, {"address": GPU, "managed": False}).excluded is None


def test_a_variant_driver_of_another_name_counts_by_the_device_that_it_shows(host: SysfsTree) -> None:
    directory = host.function(NIC, vendor="0x10de", device="0x2331", class_="0x030200", driver="nvidia")
    assert one(host, {"address": NIC, "managed": False}).excluded is not None
    (directory / "vfio-dev/vfio3").mkdir(parents=True)
    assert one(host, {"address": NIC, "managed": False}).excluded is None


@pytest.mark.parametrize(("up", "master"), [(True, None), (False, "bond0"), (True, "br-ex")])
def test_an_interface_that_the_host_uses_is_not_offered_unless_its_exact_address_is_allowed(
    host: SysfsTree, up: bool, master: str | None
) -> None:
    host.function(NIC, vendor="0x8086", device="0x1572", class_="0x020000", driver="i40e")
    host.interface(NIC, "ens1", up=up, master=master)
    excluded = one(host, {"address": NIC}).excluded or ""
    assert f"interface ens1 {f'belongs to {master}' if master else 'is up'}" in excluded
    assert f"allow_host_device = {NIC}" in excluded
    assert one(host, {"address": NIC}, allow=(NIC,)).excluded is None


def test_an_interface_that_is_down_is_offered(host: SysfsTree) -> None:
    host.function(NIC, vendor="0x8086", device="0x1572", class_="0x020000", driver="i40e")
    host.interface(NIC, "ens1", up=False)
    assert one(host, {"address": NIC}).excluded is None


def test_the_interface_of_a_physical_function_is_not_that_of_its_virtual_functions(host: SysfsTree) -> None:
    add_virtual_functions(host, "vfio-pci")
    host.interface(NIC, "ens1", up=True)
    host.bind(VF0, "iavf")
    host.interface(VF0, "ens1v0", up=True)
    device = one(host, {"product_id": "154c"})
    assert ([handle.identity for handle in device.attach_handles], device.excluded) == ([VF1], None)


def test_a_mounted_drive_is_not_offered(host: SysfsTree) -> None:
    controller = host.controller(DRIVE, "nvme0", "nvme-subsys0")
    host.disk(controller, "nvme0n1", number="259:0")
    assert one(host, {"address": DRIVE}).excluded is None
    host.mounted("259:0 / ext4 /dev/nvme0n1")
    assert "mounted on /" in (one(host, {"address": DRIVE}).excluded or "")


def test_an_adapter_whose_disks_the_host_has_is_not_offered(host: SysfsTree) -> None:
    directory = host.function(NIC, vendor="0x1000", device="0x0097", class_="0x010700", driver="mpt3sas")
    host.disk(directory / "host0", "sda", number="8:0")
    assert "provides this host's disks sda" in (one(host, {"address": NIC}).excluded or "")


def test_the_display_of_the_console_is_not_offered_while_the_host_has_it(host: SysfsTree) -> None:
    (host.sys / "bus/pci/devices" / GPU / "boot_vga").write_text("1\n")
    assert "console" in (one(host, {"address": GPU}).excluded or "")
    host.bind(GPU, "vfio-pci")
    assert one(host, {"address": GPU}).excluded is None


@pytest.mark.parametrize(
    "framebuffer",
    ["devices/platform/efi-framebuffer.0", f"bus/pci/devices/{GPU}/simple-framebuffer.0"],
    ids=["platform", "below it"],
)
def test_the_display_that_the_console_has_without_a_driver_is_not_offered(host: SysfsTree, framebuffer: str) -> None:
    (host.sys / "bus/pci/devices" / GPU / "driver").unlink(missing_ok=True)
    (host.sys / "bus/pci/devices" / GPU / "boot_vga").write_text("1\n")
    assert one(host, {"address": GPU}).excluded is None, "the console is on a serial line"
    (host.sys / framebuffer / "graphics/fb0").mkdir(parents=True)
    (host.sys / "class/graphics").mkdir(parents=True)
    (host.sys / "class/graphics/fb0").symlink_to(host.sys / framebuffer / "graphics/fb0")
    assert "console" in (one(host, {"address": GPU}).excluded or "")
    (host.sys / "bus/pci/devices" / GPU / "boot_vga").write_text("0\n")
    assert one(host, {"address": GPU}).excluded is None, "it is another card's"


@pytest.mark.parametrize(("name", "used"), [("(S) VGA+", True), ("(S) dummy device", False)], ids=["vga", "none"])
def test_the_display_of_a_text_console_is_not_offered(host: SysfsTree, name: str, used: bool) -> None:
    (host.sys / "bus/pci/devices" / GPU / "driver").unlink(missing_ok=True)
    (host.sys / "bus/pci/devices" / GPU / "boot_vga").write_text("1\n")
    console = host.sys / "class/vtconsole/vtcon0"
    console.mkdir(parents=True)
    (console / "name").write_text(f"{name}\n")
    (console / "bind").write_text("1\n")
    assert (one(host, {"address": GPU}).excluded is not None) is used


def test_a_drive_that_nvme_driver_could_erase_is_offered_uncleaned_by_its_exact_address_only(host: SysfsTree) -> None:
    host.function(DRIVE)
    assert "nvme_driver erases" in (one(host, {"vendor_id": "144d"}).excluded or "")
    assert one(host, {"vendor_id": "144d"}, {"address": DRIVE}).excluded is not None  # the first entry counts
    assert one(host, {"address": DRIVE}).excluded is None


def test_a_bridge_is_never_a_device(host: SysfsTree) -> None:
    host.function(BRIDGE, vendor="0x8086", device="0x1901", class_="0x060400", driver="pcieport")
    assert [device.pci_address for device in devices(host, {"address": "*"})] == [GPU]


# What cannot be read


def test_a_function_that_does_not_say_what_it_is_is_not_taken_for_missing(host: SysfsTree) -> None:
    host.function(NIC, vendor="0xffff")
    reported = driver(host, {"address": "*"}).discover()
    assert [type(each) for each in reported] == [DiscoveredDevice, Sighting]
    assert reported[1].pci_address == NIC


def test_a_use_that_cannot_be_told_keeps_it_from_being_offered(host: SysfsTree) -> None:
    host.function(NIC, vendor="0x8086", device="0x1572", class_="0x020000", driver="i40e")
    host.interface(NIC, "ens1", up=False)
    (host.sys / "class/net/ens1/flags").unlink()
    assert "cannot read" in (one(host, {"address": NIC}).excluded or "")


def test_a_use_that_makes_no_sense_keeps_this_function_from_being_offered_and_no_other(host: SysfsTree) -> None:
    host.function(NIC, vendor="0x8086", device="0x1572", class_="0x020000", driver="i40e")
    host.interface(NIC, "ens1", up=False)
    (host.sys / "class/net/ens1/flags").write_text("\n")
    assert "which is not a number" in (one(host, {"address": NIC}).excluded or "")


# What operators are told


def test_what_keeps_a_function_from_being_offered_is_logged_once(
    host: SysfsTree, caplog: pytest.LogCaptureFixture
) -> None:
    made = driver(host, {"address": GPU, "managed": False})
    with caplog.at_level(logging.ERROR):
        made.discover()
        made.discover()
    told = [record.getMessage() for record in caplog.records if record.name == pci.__name__]
    assert [GPU in message for message in told] == [True]


def test_a_plan_says_that_it_returns_uncleaned_and_what_a_guest_would_get_as_well(host: SysfsTree) -> None:
    host.function("0000:25:00.1", class_="0x040300")
    host.iommu_group(7, GPU, "0000:25:00.1")
    [shown] = driver(host, {"address": GPU}).inspect()
    assert isinstance(shown, Inspected)
    assert (shown.action, list(shown.refused), list(shown.iommu_group)) == (
        "returns uncleaned",
        [],
        ["0000:25:00.1"],
    )


def test_a_plan_names_each_virtual_function_with_its_driver_and_why_it_is_withheld(host: SysfsTree) -> None:
    add_virtual_functions(host, "vfio-pci")
    host.bind(VF0, "iavf")
    [shown] = driver(host, {"address": NIC, "managed": False}).inspect()
    assert shown.handles[0].startswith(f"{VF0} (iavf, not managed): it is bound to iavf")
    assert shown.handles[1] == f"{VF1} (vfio-pci, not managed)"
    assert "2 virtual functions 8086:154c" in shown.device


def test_function_behind_vmd_is_excluded(host: SysfsTree) -> None:
    host.function("10000:e1:00.0", vendor="0x10de", device="0x25b6", class_="0x030200")
    attachable, behind_vmd = devices(host, {"vendor_id": "10de"})
    assert attachable.excluded is None
    assert "PCI domain 10000 is above ffff" in (behind_vmd.excluded or "")
