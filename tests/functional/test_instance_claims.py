"""What instances claim of a host's functions, and what they are refused."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from hostworld import CARD, GPU, HOST, VFS
from instanceworld import InstanceWorld
from pciworld import ONE, TWO

from autoclave.agent.compute.claims import ResourceTracker
from autoclave.db import instances as instance_rows
from autoclave.db import pci
from autoclave.db.pci import Addition, AdditionKind
from autoclave.exceptions import ClaimRefused
from autoclave.placement.provider_tree import whole_record
from autoclave.placement.records import ConsumerAllocations
from autoclave.rules.instance_states import TaskState, VMState
from autoclave.rules.resource_request import ALIAS_KEY
from autoclave.simulator.faults import Fault, FaultKind
from autoclave.testing.placement.faults import refuse
from burnedrows import OPERATOR, ask_release


def test_a_claim_without_an_allocation_fails_before_anything_is_given(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    world.insert(ONE, host=HOST)
    world.build(ONE, GPU)
    row = world.instance(ONE)
    assert row.vm_state is VMState.ERROR
    assert "Placement has allocated nothing to it" in (row.fault_details or "")
    assert world.function().instance_uuid is None
    assert not world.row().burned
    assert world.offered() == 1


def test_a_claim_of_another_hosts_devices_alone_fails_before_anything_is_given(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    root = world.onlooker.find_provider(HOST)
    assert root is not None
    world.onlooker.put_allocations(ConsumerAllocations(ONE, {root.uuid: {"VCPU": 1}}, None, "project", "user"))
    world.insert(ONE, host=HOST)
    world.build(ONE, GPU)
    assert f"Placement has not allocated {GPU} of {HOST} to it" in (world.instance(ONE).fault_details or "")
    assert (world.function().instance_uuid, world.row().burned, world.offered()) == (None, False, 1)


def test_a_burned_device_that_was_not_released_is_not_given(instance_world: InstanceWorld) -> None:
    world = instance_world
    agent = world.start()
    first = world.create(GPU)
    world.mark(first, TaskState.DELETING)
    world.faults.add(refuse, path="/usages$")  # so that nobody sees it idle
    world.agents.delete_instance(world.context, HOST, first)
    world.casts.deliver()
    world.by_hand(0)
    second = world.create(GPU)
    assert world.instance(second).vm_state is VMState.ERROR
    assert "is burned, and was not released" in (world.instance(second).fault_details or "")
    assert world.function().instance_uuid is None
    world.faults.clear()
    agent.period()
    assert world.offered() == 0
    assert world.find(first) is None


def test_a_claim_repeated_is_the_same_claim(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    instance = world.ask(CARD, CARD)
    tracker = ResourceTracker(world.ports, HOST)
    allocation = world.onlooker.get_allocations(instance)
    groups = {"": [world.row(CARD).uuid]}
    first = tracker.instance_claim(instance, allocation, groups)
    assert {each.address for each in first} == set(VFS)
    assert [each.address for each in tracker.instance_claim(instance, allocation, groups)] == list(VFS)


def test_claims_at_the_same_time_get_different_functions(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    tracker = ResourceTracker(world.ports, HOST)
    row = world.row(CARD)

    def claim(number: int) -> str:
        instance = f"{number}" * 8 + ONE[8:]
        allocation = ConsumerAllocations(instance, {row.uuid: {row.resource_class: 1}}, 1, "project", "user")
        try:
            [function] = tracker.instance_claim(instance, allocation, {"": [row.uuid]})
        except ClaimRefused:
            return "refused"
        return function.address

    with ThreadPoolExecutor(4) as pool:
        assert sorted(pool.map(claim, range(1, 5))) == [*VFS, "refused", "refused"]


def test_a_claim_that_placement_does_not_take_starts_no_guest_and_offers_nothing(
    instance_world: InstanceWorld,
) -> None:
    world = instance_world
    agent = world.start()
    instance = world.ask(GPU)
    world.faults.add(refuse, method="PUT", path="/inventories$")
    world.build(instance, GPU)
    row = world.instance(instance)
    assert row.vm_state is VMState.ERROR
    assert f"{GPU} stays burned" in (row.fault_details or "")
    assert GPU not in (row.fault_message or "")  # which its tenant reads
    assert world.guest(instance) is None
    assert world.row().burned
    assert world.offered() == 0, "its allocation must stand until it is reserved"
    world.faults.clear()
    agent.period()
    world.delete(instance)
    assert world.offered() == 0
    ask_release(world.db, world.placement, world.row().uuid, OPERATOR)
    assert world.offered() == 1


def test_an_instance_does_not_run_without_a_function_that_its_flavor_asks_for(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    instance = world.ask(GPU)
    with world.db.write() as tx:
        found = instance_rows.get(tx, instance)
        assert found is not None
        flavor = {**found.flavor, "extra_specs": {ALIAS_KEY: "gpu:2"}}
        assert instance_rows.swap(tx, found, expect_task=found.task_state, flavor=flavor)
    world.build(instance, GPU)
    row = world.instance(instance)
    assert row.vm_state is VMState.ERROR
    assert "asks for 2 functions by pci_passthrough:alias" in (row.fault_details or "")
    assert world.guest(instance) is None
    assert world.onlooker.get_allocations(instance).allocations == {}
    assert (world.row().burned, world.reserved()) == (False, 0)  # for nothing


def test_an_instance_does_not_run_without_a_function_that_a_strangers_provider_stands_for(
    instance_world: InstanceWorld,
) -> None:
    """Somebody has made it by hand, as where the provider of a burned function was deleted: Placement offers it."""
    world = instance_world
    world.start()
    root = world.onlooker.find_provider(HOST)
    assert root is not None
    world.onlooker.create_provider(ONE, "strange", root.uuid)
    resource_class = world.row().resource_class
    world.onlooker.put_inventories(ONE, 0, {resource_class: whole_record(1, 0)})
    instance = world.ask()
    held = {ONE: {resource_class: 1}}
    world.onlooker.put_allocations(ConsumerAllocations(instance, held, 1, "project", "user"))
    world.build(instance)
    row = world.instance(instance)
    assert row.vm_state is VMState.ERROR
    assert f"{resource_class} of provider {ONE}" in (row.fault_details or "")
    assert world.guest(instance) is None
    assert world.onlooker.get_allocations(instance).allocations == {}


def test_what_the_operator_has_added_of_a_functions_class_is_given_without_a_function(
    instance_world: InstanceWorld,
) -> None:
    world = instance_world
    world.start()
    resource_class = world.row().resource_class
    with world.db.write() as tx:
        pci.remember(tx, HOST, frozenset([Addition(TWO, AdditionKind.INVENTORY, resource_class)]))
    held = ConsumerAllocations(ONE, {TWO: {resource_class: 1}}, None, "project", "user")
    tracker = ResourceTracker(world.ports, HOST)
    assert tracker.instance_claim(ONE, held, {}) == []
    with world.db.write() as tx:
        pci.forget(tx, HOST, pci.of_host(tx, HOST))
    with pytest.raises(ClaimRefused, match=TWO):
        tracker.instance_claim(ONE, held, {})


def test_a_guest_that_does_not_start_leaves_its_device_burned_and_says_so(instance_world: InstanceWorld) -> None:
    world = instance_world
    agent = world.start()
    world.sim.set_fault("*", Fault(FaultKind.SPAWN_FAILS))
    instance = world.create(GPU)
    row = world.instance(instance)
    assert row.vm_state is VMState.ERROR
    assert f"{GPU} stays burned" in (row.fault_details or "")
    assert GPU not in (row.fault_message or "")  # which its tenant reads
    assert world.reserved() == 1
    assert world.onlooker.get_allocations(instance).allocations == {}
    assert world.function().instance_uuid is None
    assert world.told()[-1] == "instance.create.error"
    agent.period()
    assert world.row().device.burn_confirmed
