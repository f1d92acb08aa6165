"""A change of [pci] device_spec while an instance has the function: it waits until the function is free."""

from collections.abc import Mapping
from typing import Any

import pytest
from hostworld import (
    CARD,
    FUNCTIONS,
    GPU,
    GPU_CLASS,
    GPU_SPEC,
    HOST,
    NIC,
    NIC_CLASS,
    NIC_SPEC,
    VF_CLASS,
    VF_SPEC,
    VFS,
    HostWorld,
)
from pciworld import ONE, TWO

from autoclave.agent.compute.claims import ResourceTracker
from autoclave.agent.compute.host import ComputeTree
from autoclave.db import devices as device_rows
from autoclave.db import pci
from autoclave.db.pci import FunctionRecord
from autoclave.exceptions import PlacementConflict
from autoclave.lifecycle import operator
from autoclave.placement.records import ConsumerAllocations, Inventory
from autoclave.rules.device_lifecycle import DeviceState
from burnedrows import OPERATOR, ask_release
from computerows import make_instance
from dbfixtures import make_slot

THREE = "33333333-3333-4333-8333-333333333333"

PF_CLASS = "CUSTOM_PCI_8086_1572"
PF_SPEC: Mapping[str, Any] = {"vendor_id": "8086", "product_id": "1572"}
PLAIN_GPU: Mapping[str, Any] = {"vendor_id": "10de", "product_id": "25b6"}


def whole(total: int, reserved: int = 0) -> Inventory:
    return Inventory(total, reserved, 1, total, 1, 1.0)


def allocate(world: HostWorld, instance: str, address: str, resource_class: str) -> ConsumerAllocations:
    """What the scheduler does for a new server; the instance is on record before."""
    with world.db.write() as tx:
        make_instance(tx, uuid=instance)
    allocation = ConsumerAllocations(instance, {world.row(address).uuid: {resource_class: 1}}, None, "project", "user")
    world.onlooker.put_allocations(allocation)
    return allocation


def start_guest(world: HostWorld, instance: str, address: str, resource_class: str) -> list[FunctionRecord]:
    """Allocate one unit of the class, and claim it as the agent does before the guest runs."""
    allocation = allocate(world, instance, address, resource_class)
    tracker = ResourceTracker(world.ports, HOST)
    return tracker.instance_claim(instance, allocation, {"pci0": list(allocation.allocations)}, at_least=1)


def delete_guest(world: HostWorld, instance: str = ONE) -> None:
    ResourceTracker(world.ports, HOST).free(instance)
    world.onlooker.delete_allocations(instance)


def unplug_virtual(world: HostWorld) -> None:
    for address in VFS:
        world.sim.functions.pull(address)


def plug_virtual(world: HostWorld) -> None:
    world.sim.functions.plug(*(each for each in FUNCTIONS if each.physfn == CARD))


def change(world: HostWorld, *specs: Mapping[str, Any]) -> ComputeTree:
    """The operator changes [pci] device_spec and restarts the agent."""
    world.specs = specs
    return world.synced()


def test_a_parent_is_offered_if_no_virtual_function_is(host_world: HostWorld) -> None:
    """As in Nova, which offers what [pci] device_spec names."""
    tree = change(host_world, PF_SPEC)
    assert host_world.records(CARD) == {PF_CLASS: whole(1)}
    host_world.sim.functions.bind(VFS[1], "vfio-pci")
    tree.sync()
    assert host_world.offered(CARD) == 0
    host_world.sim.functions.bind(VFS[1], None)
    tree.sync()
    assert host_world.offered(CARD) == 1


@pytest.fixture
def parent(host_world: HostWorld) -> HostWorld:
    """Instance ONE has a physical function, which has got virtual functions since."""
    unplug_virtual(host_world)
    change(host_world, PF_SPEC)
    assert [each.address for each in start_guest(host_world, ONE, CARD, PF_CLASS)] == [CARD]
    plug_virtual(host_world)
    return host_world


def test_virtual_functions_of_a_claimed_parent_wait(parent: HostWorld) -> None:
    """Otherwise the next server that asks for the class of the parent gets a function of the first one's card."""
    before = parent.records(CARD)
    tree = change(parent, VF_SPEC)
    assert before == {PF_CLASS: whole(1)}
    assert parent.records(CARD) == {PF_CLASS: whole(1, 1)}
    with parent.db.read() as tx:
        assert [each.address for each in pci.functions(tx, HOST)] == [CARD]
    with pytest.raises(PlacementConflict):
        start_guest(parent, TWO, CARD, PF_CLASS)
    assert parent.row(CARD).device.waiting_for == (
        f"{CARD} stays as it is; [pci] device_spec takes effect later (its virtual functions, class {VF_CLASS}): "
        f"instance {ONE} has it"
    )
    delete_guest(parent)
    tree.sync()
    tree.sync()
    assert parent.records(CARD) == {VF_CLASS: whole(2)}
    assert parent.row(CARD).device.waiting_for is None
    assert [each.address for each in start_guest(parent, THREE, CARD, VF_CLASS)] == [VFS[0]]


def test_a_parent_of_a_claimed_virtual_function_waits(host_world: HostWorld) -> None:
    host_world.synced()
    start_guest(host_world, ONE, CARD, VF_CLASS)
    tree = change(host_world, PF_SPEC)
    assert host_world.records(CARD) == {VF_CLASS: whole(1, 1)}
    assert host_world.offered(CARD) == 0
    assert ONE in (host_world.row(CARD).device.waiting_for or "")
    delete_guest(host_world)
    tree.sync()
    tree.sync()
    assert host_world.records(CARD) == {PF_CLASS: whole(1)}
    assert [each.address for each in start_guest(host_world, TWO, CARD, PF_CLASS)] == [CARD]


@pytest.mark.parametrize(
    ("change_of", "later"),
    [
        ({"resource_class": "CUSTOM_NIC"}, "class CUSTOM_NIC"),
        ({"traits": "CUSTOM_GOLD"}, "traits COMPUTE_MANAGED_PCI_DEVICE CUSTOM_GOLD OWNER_NOVA"),
        ({"live_migratable": True}, "traits COMPUTE_MANAGED_PCI_DEVICE HW_PCI_LIVE_MIGRATABLE OWNER_NOVA"),
    ],
    ids=["class", "trait", "migratable"],
)
@pytest.mark.parametrize("address", [NIC, CARD], ids=["whole", "virtual"])
def test_a_claimed_function_keeps_class_and_traits(
    host_world: HostWorld, address: str, change_of: Mapping[str, Any], later: str
) -> None:
    """Of several functions, those that are free are not offered by the old entry either, or it would never end."""
    spec, resource_class, total = {NIC: (NIC_SPEC, NIC_CLASS, 1), CARD: (VF_SPEC, VF_CLASS, 2)}[address]
    change(host_world, spec)
    start_guest(host_world, ONE, address, resource_class)
    uuid = host_world.provider(address).uuid
    traits = host_world.onlooker.get_traits(uuid).names
    tree = change(host_world, {**spec, **change_of})
    assert host_world.records(address) == {resource_class: whole(1, 1)}
    assert host_world.onlooker.get_traits(uuid).names == traits
    assert later in (host_world.row(address).device.waiting_for or "")
    assert host_world.offered(address) == 0
    delete_guest(host_world)
    tree.sync()
    tree.sync()
    assert host_world.records(address) == {change_of.get("resource_class", resource_class): whole(total)}
    assert host_world.onlooker.get_traits(uuid).names != traits or "resource_class" in change_of
    assert host_world.row(address).device.waiting_for is None


def test_one_time_use_of_a_claimed_function_burns_it_and_its_class_waits(host_world: HostWorld) -> None:
    """The one change that does not wait: the instance uses the device up, whatever the entry said when it got it."""
    change(host_world, PLAIN_GPU)
    start_guest(host_world, ONE, GPU, GPU_CLASS)
    tree = change(host_world, {**GPU_SPEC, "resource_class": "CUSTOM_GPU"})
    assert host_world.records() == {GPU_CLASS: whole(1, 1)}
    assert host_world.row().device.burned_for == ONE
    assert "HW_PCI_ONE_TIME_USE" in host_world.onlooker.get_traits(host_world.provider().uuid).names
    delete_guest(host_world)
    tree.sync()
    assert (host_world.offered(), host_world.row().device.burn_confirmed) == (0, True)
    ask_release(host_world.db, host_world.onlooker, host_world.row().uuid, OPERATOR)
    tree.sync()
    tree.sync()
    assert host_world.records() == {"CUSTOM_GPU": whole(1)}


def test_a_claimed_one_time_use_function_stays_burned_without_the_key(host_world: HostWorld) -> None:
    host_world.synced()
    start_guest(host_world, ONE, GPU, GPU_CLASS)
    tree = change(host_world, {**PLAIN_GPU, "resource_class": "CUSTOM_GPU"})
    assert host_world.records() == {GPU_CLASS: whole(1, 1)}
    delete_guest(host_world)
    tree.sync()
    assert host_world.offered() == 0
    assert host_world.records() == {GPU_CLASS: whole(1, 1)}


def test_virtual_functions_of_a_burned_parent_wait_for_its_release(host_world: HostWorld) -> None:
    unplug_virtual(host_world)
    tree = change(host_world, {**PF_SPEC, "one_time_use": True})
    start_guest(host_world, ONE, CARD, PF_CLASS)
    delete_guest(host_world)
    tree.sync()
    plug_virtual(host_world)
    tree = change(host_world, VF_SPEC)
    assert host_world.records(CARD) == {PF_CLASS: whole(1, 1)}
    assert "it is burned; release it" in (host_world.row(CARD).device.waiting_for or "")
    ask_release(host_world.db, host_world.onlooker, host_world.row(CARD).uuid, OPERATOR)
    assert host_world.offered(CARD) == 0
    tree.sync()
    assert host_world.records(CARD) == {VF_CLASS: whole(2)}
    assert not host_world.row(CARD).burned


def test_a_removed_entry_of_a_claimed_function_waits(host_world: HostWorld) -> None:
    host_world.synced()
    start_guest(host_world, ONE, NIC, NIC_CLASS)
    tree = change(host_world, VF_SPEC)
    assert host_world.records(NIC) == {NIC_CLASS: whole(1, 1)}
    assert f"instance {ONE} has it" in (host_world.row(NIC).device.waiting_for or "")
    delete_guest(host_world)
    tree.sync()
    assert host_world.find_row(NIC) is None


def test_managed_of_a_claimed_function_waits(host_world: HostWorld) -> None:
    host_world.synced()
    host_world.sim.functions.bind(NIC, "vfio-pci")
    start_guest(host_world, ONE, NIC, NIC_CLASS)
    tree = change(host_world, {**NIC_SPEC, "managed": False})
    assert host_world.function(NIC).managed
    assert host_world.row(NIC).device.waiting_for == f"managed=False of {NIC} takes effect later: instance {ONE} has it"
    delete_guest(host_world)
    tree.sync()
    assert not host_world.function(NIC).managed
    assert host_world.row(NIC).device.waiting_for is None


CONTRADICTIONS = {
    "classes differ": ({**VF_SPEC, "address": VFS[0], "resource_class": "CUSTOM_A"}, VF_SPEC),
    "virtual functions of one time use": ({**VF_SPEC, "one_time_use": True},),
    "a physical function that is remote": ({**PF_SPEC, "remote_managed": True},),
}


@pytest.mark.parametrize("specs", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_entries_that_cannot_be_followed_change_no_claimed_function(
    host_world: HostWorld, caplog: pytest.LogCaptureFixture, specs: tuple[Mapping[str, Any], ...]
) -> None:
    """The agent starts, and offers what the other entries mean."""
    host_world.synced()
    start_guest(host_world, ONE, CARD, VF_CLASS)
    tree = change(host_world, GPU_SPEC, *specs)
    assert f"is not offered: [pci] device_spec, entry {1 + len(specs)}" in caplog.text
    assert host_world.records(CARD) == {VF_CLASS: whole(1, 1)}
    assert (host_world.offered(CARD), host_world.offered(GPU)) == (0, 1)
    delete_guest(host_world)
    tree.sync()
    assert host_world.find_row(CARD) is None


@pytest.mark.parametrize("state", [DeviceState.ALLOCATED, DeviceState.ERROR, DeviceState.PENDING_CLEANING])
def test_a_device_taken_from_its_driver_in_use_is_not_for_flavors(
    host_world: HostWorld, caplog: pytest.LogCaptureFixture, state: DeviceState
) -> None:
    """Its entry was moved to [pci] device_spec, so its driver misses it; its instance, or what that left, is there."""
    with host_world.db.write() as tx:
        made = make_slot(tx, hostname=HOST, pci_address=NIC)
        device_rows.update(tx, made.device, {"missing": True, "device_state": state})
    tree = change(host_world, NIC_SPEC)
    assert host_world.find_row(NIC) is None
    with host_world.db.write() as tx:
        device_rows.update(tx, made.device, {"device_state": DeviceState.AVAILABLE})
    tree.sync()
    assert host_world.find_row(NIC) is None
    assert f"{NIC} is skipped: device {made.device.uuid} of" in caplog.text
    operator.forget(host_world.ports, made.device.uuid, OPERATOR)
    tree.sync()
    assert host_world.offered(NIC) == 1
