"""A host's functions as [pci] device_spec looks at them, and what speaks against giving them away."""

import json
from pathlib import Path
from typing import Any

import pytest
from pci_host import BRIDGE, DRIVE, GPU, NIC, VF0, VF1, add_virtual_functions, with_gpu

from autoclave.hardware.pci_functions import HostFunctions
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_inventory import DevType, PCIFunction, all_matches, matches, parse_pci_device_spec, translate
from autoclave.simulator.functions import default_functions
from autoclave.simulator.host import SimulatedHost
from sysfs_tree import SysfsTree


@pytest.fixture
def host(tmp_path: Path) -> SysfsTree:
    return with_gpu(tmp_path)


def withheld(host: SysfsTree, *entries: dict[str, Any], allow: tuple[str, ...] = ()) -> dict[str, str | None]:
    """What speaks against each function that the entries mean."""
    seen = HostFunctions(host.paths)
    specs = parse_pci_device_spec([json.dumps(entry) for entry in entries])
    allowed = frozenset(PCIAddress.parse(address) for address in allow)
    meant = {match.function.address for match in all_matches(seen.functions, specs)}
    return {
        str(match.function.address): seen.withheld(match, allowed, meant) for match in matches(seen.functions, specs)
    }


def test_the_types_are_novas_and_a_virtual_function_names_its_card(host: SysfsTree) -> None:
    add_virtual_functions(host, "iavf")
    physical = PCIAddress.parse(NIC)
    assert HostFunctions(host.paths).functions == (
        PCIFunction(PCIAddress.parse(GPU), "10de", "25b6", DevType.PCI),
        PCIFunction(physical, "8086", "1572", DevType.PF),
        PCIFunction(PCIAddress.parse(VF0), "8086", "154c", DevType.VF, physical),
        PCIFunction(PCIAddress.parse(VF1), "8086", "154c", DevType.VF, physical),
    )


def test_a_bridge_is_no_function_to_give_away(host: SysfsTree) -> None:
    host.function(BRIDGE, vendor="0x8086", device="0x1901", class_="0x060400", driver="pcieport")
    assert [*withheld(host, {"address": "*"})] == [GPU]


def test_a_function_that_does_not_say_what_it_is_is_told_apart_from_one_that_is_gone(host: SysfsTree) -> None:
    host.function(NIC, vendor="0xffff")
    seen = HostFunctions(host.paths)
    assert [str(function.address) for function in seen.functions] == [GPU]
    assert "no power" in seen.unreadable[NIC]


def test_nothing_speaks_against_a_card_that_nobody_uses(host: SysfsTree) -> None:
    assert withheld(host, {"vendor_id": "10de"}) == {GPU: None}


def test_an_interface_that_the_host_uses_is_withheld_unless_its_exact_address_is_allowed(host: SysfsTree) -> None:
    host.function(NIC, vendor="0x8086", device="0x1572", class_="0x020000", driver="i40e")
    host.interface(NIC, "ens1", up=True)
    assert "interface ens1 is up" in (withheld(host, {"address": NIC})[NIC] or "")
    assert withheld(host, {"address": NIC}, allow=(NIC,)) == {NIC: None}


def test_a_drive_that_the_host_has_mounted_is_withheld_also_if_it_is_of_one_time_use(host: SysfsTree) -> None:
    controller = host.controller(DRIVE, "nvme0", "nvme-subsys0")
    host.disk(controller, "nvme0n1", number="259:0")
    entry = {"vendor_id": "144d", "one_time_use": True}
    assert withheld(host, entry) == {DRIVE: None}
    host.mounted("259:0 / ext4 /dev/nvme0n1")
    assert "mounted on /" in (withheld(host, entry)[DRIVE] or "")


@pytest.mark.parametrize(
    ("entry", "offered"),
    [
        ({"address": "*"}, False),
        ({"vendor_id": "144d"}, False),
        ({"vendor_id": "144d", "one_time_use": False}, False),
        ({"vendor_id": "144d", "one_time_use": True}, True),
        ({"vendor_id": "144d", "product_id": "a80a"}, True),
        ({"address": DRIVE}, True),
    ],
)
def test_a_drive_goes_from_guest_to_guest_uncleaned_only_if_the_operator_has_named_it(
    host: SysfsTree, entry: dict[str, Any], offered: bool
) -> None:
    host.function(DRIVE)
    reason = withheld(host, entry)[DRIVE]
    assert (reason is None) is offered
    assert offered or "set one_time_use, or let [nvme] device_spec offer it" in (reason or "")


def test_what_libvirt_does_not_manage_must_be_with_a_vfio_driver(host: SysfsTree) -> None:
    entry = {"vendor_id": "10de", "managed": False}
    assert "bound to nouveau" in (withheld(host, entry)[GPU] or "")
    host.bind(GPU, "vfio-pci")
    assert withheld(host, entry) == {GPU: None}


def test_a_parent_of_unused_virtual_functions_is_offered(host: SysfsTree) -> None:
    add_virtual_functions(host, "iavf")
    assert withheld(host, {"product_id": "1572"}) == {NIC: None}
    assert withheld(host, {"product_id": "154c"}) == {VF0: None, VF1: None}


@pytest.mark.parametrize(
    "others",
    [
        {"product_id": "154c"},
        {"address": VF1},
        {"product_id": "154c", "physical_network": "physnet1"},
        {"product_id": "154c", "one_time_use": True},
    ],
    ids=["all", "one", "Neutron's", "cannot be followed"],
)
def test_a_parent_of_offered_virtual_functions_is_withheld(host: SysfsTree, others: dict[str, Any]) -> None:
    add_virtual_functions(host, "iavf")
    assert "is offered, and would disappear" in (withheld(host, others, {"product_id": "1572"})[NIC] or "")


def test_a_parent_of_a_virtual_function_in_use_is_withheld(host: SysfsTree) -> None:
    add_virtual_functions(host, "iavf")
    host.interface(VF1, "ens1v1", up=True)
    reason = withheld(host, {"product_id": "1572"})[NIC] or ""
    assert f"its virtual function {VF1} is in use (interface ens1v1 is up), and would disappear" in reason


def test_a_parent_of_a_virtual_function_with_vfio_is_withheld(host: SysfsTree) -> None:
    add_virtual_functions(host, "iavf")
    host.bind(VF0, "vfio-pci")
    reason = withheld(host, {"product_id": "1572"})[NIC] or ""
    assert f"its virtual function {VF0} is in use (vfio-pci has it for a guest)" in reason


def test_a_parent_of_a_virtual_function_that_cannot_be_read_is_withheld(host: SysfsTree) -> None:
    add_virtual_functions(host, "iavf")
    host.function(VF0, vendor="0xffff", device="0x154c", class_="0x020000")
    assert f"its virtual function {VF0} cannot be read" in (withheld(host, {"product_id": "1572"})[NIC] or "")


def test_a_use_that_cannot_be_told_withholds_the_function(host: SysfsTree) -> None:
    host.function(NIC, vendor="0x8086", device="0x1572", class_="0x020000", driver="i40e")
    host.interface(NIC, "ens1", up=False)
    (host.sys / "class/net/ens1/flags").unlink()
    assert "cannot read" in (withheld(host, {"address": NIC})[NIC] or "")


def test_a_simulated_host_has_functions_to_give_away(tmp_path: Path) -> None:
    simulated = SimulatedHost.create(tmp_path / "h1", "h1", [], functions=default_functions())
    specs = parse_pci_device_spec(
        ['[{"vendor_id": "10de", "one_time_use": true}, {"vendor_id": "8086", "product_id": "154c"}]']
    )
    seen = HostFunctions(simulated.paths)
    card, network = translate(seen.functions, specs).providers
    assert (str(card.address), card.one_time_use, card.total) == ("0000:81:00.0", True, 1)
    assert (str(network.address), network.resource_class, network.total) == (NIC, "CUSTOM_PCI_8086_154C", 2)
    assert {seen.withheld(match, frozenset(), ()) for match in matches(seen.functions, specs)} == {None}


def test_function_behind_vmd_is_withheld(host: SysfsTree) -> None:
    host.function("10000:e1:00.0", vendor="0x10de", device="0x25b6", class_="0x030200")
    found = withheld(host, {"vendor_id": "10de"})
    assert found[GPU] is None
    assert "PCI domain 10000 is above ffff" in (found["10000:e1:00.0"] or "")
