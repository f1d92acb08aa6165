"""Instances on one host: what they claim, what they leave, and what survives a death of the agent."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hostworld import CARD, GPU, GPU_SPEC, HOST, NIC, VFS
from instanceworld import IMAGE, InstanceWorld
from pciworld import ONE

from autoclave.agent.resource_tracker import ResourceTracker
from autoclave.db import arqs as arq_rows
from autoclave.db import instances as instance_rows
from autoclave.db.tables import DeviceType, attach_handles
from autoclave.exceptions import ClaimRefused
from autoclave.lifecycle.burn import ask_release
from autoclave.placement.faults import refuse
from autoclave.placement.records import ConsumerAllocations
from autoclave.rpc.notifications import KeptNotifications, Notification
from autoclave.rpc.port import AGENT_TOPIC
from autoclave.rules.arq_states import ARQState
from autoclave.rules.device_states import DeviceState
from autoclave.rules.instance_states import PowerState, TaskState, VMState
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.resource_request import ALIAS_KEY
from autoclave.simulator.faults import Fault, FaultKind
from autoclave.simulator.guests import Guests
from dbfixtures import make_arq, make_slot

OTHER = {"image_uuid": ONE, "image": {**IMAGE, "name": "other"}, "checked": True}
"""A rebuild from another image, as a conductor hands it over."""


def bound_arq(world: InstanceWorld, instance: str, attach_info: dict[str, Any]) -> str:
    """An accelerator request of the instance that has a function; returns its uuid."""
    with world.db.write() as tx:
        slot = make_slot(tx, hostname="elsewhere", type=DeviceType.PCI, device_state=DeviceState.ALLOCATED)
        tx.execute(
            attach_handles.update()
            .where(attach_handles.c.id == slot.handle_id)
            .values(attach_info=json.dumps(attach_info))
        )
        arq = make_arq(
            tx,
            instance_uuid=instance,
            project_id="project",
            state=ARQState.BOUND,
            device_id=slot.device.id,
            deployable_id=slot.deployable.id,
            attach_handle_id=slot.handle_id,
        )
    return arq.uuid


def test_the_whole_life_of_an_instance_with_a_device_of_one_time_use(instance_world: InstanceWorld) -> None:
    world = instance_world
    agent = world.start()
    agent.period()
    instance = world.create(GPU)
    row = world.instance(instance)
    assert (row.vm_state, row.task_state, row.power) == (VMState.ACTIVE, None, PowerState.RUNNING)
    assert row.launched_at is not None
    guest = world.guest(instance)
    assert guest is not None
    assert [function.address for function in guest.functions] == [GPU]
    assert world.reserved() == 1
    assert world.function().instance_uuid == instance
    world.delete(instance)
    assert world.find(instance) is None
    assert world.guest(instance) is None
    assert world.function().instance_uuid is None
    assert world.onlooker.get_allocations(instance).allocations == {}
    assert world.reserved() == 1
    assert world.offered() == 0
    assert world.told() == [
        "instance.create.start",
        "instance.create.end",
        "instance.delete.start",
        "instance.delete.end",
    ]
    [device] = world.notifications.kept[-1].payload["nova_object.data"]["pci_devices"]
    told = device["nova_object.data"]
    assert (told["address"], told["resource_provider_uuid"], told["burned"]) == (GPU, world.row().uuid, True)


def test_a_cleaner_may_release_as_soon_as_it_hears_of_the_deletion(instance_world: InstanceWorld) -> None:
    world = instance_world
    agent = world.start()
    world.delete(world.create(GPU))
    world.by_hand(0)
    agent.period()
    assert world.offered() == 1
    second = world.create(GPU)
    assert world.instance(second).vm_state is VMState.ACTIVE
    assert world.reserved() == 1


def test_an_instance_may_come_between_the_release_and_the_period_that_would_notice_it(
    instance_world: InstanceWorld,
) -> None:
    world = instance_world
    agent = world.start()
    world.delete(world.create(GPU))
    world.by_hand(0)
    second = world.create(GPU)
    assert world.instance(second).vm_state is VMState.ACTIVE
    assert (world.row().burned_for, world.reserved()) == (second, 1)
    agent.period()
    assert world.reserved() == 1


def test_a_device_that_comes_back_as_it_is_is_offered_at_once(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    instance = world.create(NIC)
    assert world.offered(NIC) == 0
    world.delete(instance)
    assert world.offered(NIC) == 1


def test_a_period_with_instances_in_which_nothing_changed_costs_one_request(instance_world: InstanceWorld) -> None:
    world = instance_world
    agent = world.start()
    world.create(GPU)
    for _ in range(3):
        agent.period()
    world.faults.clear()
    agent.period()
    assert len(world.faults.calls) == 1, world.faults.calls


def test_burning_adds_one_write_to_what_a_build_asks_of_placement(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    written = []
    for address in (NIC, GPU):
        world.faults.clear()
        world.create(address)
        written.append([(call.method, call.path) for call in world.faults.calls if call.method != "GET"])
    assert written == [[], [("PUT", f"/resource_providers/{world.row().uuid}/inventories")]]


# Claims


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
    world.agents.delete(world.context, HOST, first)
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
    assert f"{GPU} stays burned" in (row.fault_message or "")
    assert world.guest(instance) is None
    assert world.row().burned
    assert world.offered() == 0, "its allocation must stand until it is reserved"
    world.faults.clear()
    agent.period()
    world.delete(instance)
    assert world.offered() == 0
    ask_release(world.db, world.placement, world.row().uuid)
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


def test_a_guest_that_does_not_start_leaves_its_device_burned_and_says_so(instance_world: InstanceWorld) -> None:
    world = instance_world
    agent = world.start()
    world.sim.set_fault("*", Fault(FaultKind.SPAWN_FAILS))
    instance = world.create(GPU)
    row = world.instance(instance)
    assert row.vm_state is VMState.ERROR
    assert f"{GPU} stays burned" in (row.fault_message or "")
    assert world.reserved() == 1
    assert world.onlooker.get_allocations(instance).allocations == {}
    assert world.function().instance_uuid is None
    assert world.told()[-1] == "instance.create.error"
    agent.period()
    assert world.row().burn_confirmed


# Messages


def test_a_build_that_comes_twice_or_too_late_does_nothing(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    instance = world.create(GPU)
    version = world.instance(instance).state_version
    world.build(instance, GPU)
    assert world.instance(instance).state_version == version
    world.delete(instance)
    world.build(instance, GPU)
    assert world.guest(instance) is None


def test_an_instance_that_is_handed_over_and_deleted_is_never_started(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    instance = world.ask(GPU)
    world.delete(instance)
    assert world.find(instance) is None
    assert world.offered() == 1, "no guest has had it, and it was not burned"


def test_an_instance_that_is_deleted_while_its_disk_is_made_burns_nothing(instance_world: InstanceWorld) -> None:
    world = instance_world

    class Impatient(KeptNotifications):
        def emit(self, notification: Notification) -> None:
            super().emit(notification)
            if notification.event_type == "instance.create.start":
                world.mark(instance, TaskState.DELETING)

    world.notifications = Impatient()
    agent = world.start()
    instance = world.ask(GPU)
    world.build(instance, GPU)
    assert (world.row().burned, world.guest(instance), world.offered()) == (False, None, 1)
    agent.period()
    assert world.find(instance) is None


def test_callers_of_the_release_before_are_understood(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    assert world.transport.client(AGENT_TOPIC, server=HOST, version="1.1").can_send_version("1.1")
    assert world.transport.client(AGENT_TOPIC, server=HOST, version="1.2").can_send_version("1.2")


# Power


def test_a_guest_is_stopped_started_rebooted_and_keeps_its_device(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    instance = world.create(GPU)
    world.power("stop_instance", TaskState.POWERING_OFF, instance)
    assert (world.instance(instance).vm_state, world.instance(instance).power) == (VMState.STOPPED, PowerState.SHUTDOWN)
    assert world.function().instance_uuid == instance
    world.power("start_instance", TaskState.POWERING_ON, instance)
    assert (world.instance(instance).vm_state, world.instance(instance).task_state) == (VMState.ACTIVE, None)
    world.power("reboot_instance", TaskState.REBOOTING, instance)
    assert world.instance(instance).vm_state is VMState.ACTIVE
    assert (world.reserved(), world.function().instance_uuid) == (1, instance)


def test_a_rebuild_uses_the_device_in_place(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    instance = world.create(GPU)
    world.mark(instance, TaskState.REBUILDING, rebuild=OTHER)
    world.agents.rebuild(world.context, HOST, instance)
    world.casts.deliver()
    row = world.instance(instance)
    assert (row.vm_state, row.task_state, row.image_uuid, row.rebuild) == (VMState.ACTIVE, None, ONE, None)
    guest = world.guest(instance)
    assert guest is not None
    assert [function.address for function in guest.functions] == [GPU]
    assert (world.reserved(), world.row().burned_for) == (1, instance)


def test_a_stopped_instance_is_stopped_after_its_rebuild(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    instance = world.create(GPU)
    world.power("stop_instance", TaskState.POWERING_OFF, instance)
    world.mark(instance, TaskState.REBUILDING, rebuild=OTHER, agent_run_id=None)
    world.agents.rebuild(world.context, HOST, instance)
    world.casts.deliver()
    row = world.instance(instance)
    assert (row.vm_state, row.power, row.task_state) == (VMState.STOPPED, PowerState.SHUTDOWN, None)
    assert row.image_uuid == ONE
    assert world.function().instance_uuid == instance


def test_a_late_message_about_an_earlier_rebuild_begins_none_that_no_conductor_has_checked(
    instance_world: InstanceWorld,
) -> None:
    world = instance_world
    world.start()
    instance = world.create(GPU)
    unchecked = {name: value for name, value in OTHER.items() if name != "checked"}
    world.mark(instance, TaskState.REBUILDING, rebuild=unchecked, agent_run_id=None)
    world.agents.rebuild(world.context, HOST, instance)
    world.casts.deliver()
    row = world.instance(instance)
    assert (row.task_state, row.agent_run_id, row.rebuild) == (TaskState.REBUILDING, None, unchecked)


def test_a_rebuild_that_lost_its_database_is_ended_by_the_next_period(instance_world: InstanceWorld) -> None:
    world = instance_world
    agent = world.start()
    instance = world.create(GPU)
    run_id, before = world.instance(instance).agent_run_id, world.instance(instance).image_uuid
    assert run_id is not None
    world.mark(instance, TaskState.REBUILDING, rebuild=OTHER, agent_run_id=None)
    agent.period()
    assert world.instance(instance).task_state is TaskState.REBUILDING  # a conductor has it
    world.mark(instance, TaskState.REBUILDING, agent_run_id=run_id)
    agent.period()
    row = world.instance(instance)
    assert (row.vm_state, row.task_state, row.rebuild, row.image_uuid) == (VMState.ERROR, None, None, before)
    assert row.fault_message == "The rebuild of the instance was cut short on its host. Rebuild it again."
    assert world.function().instance_uuid == instance


def test_a_power_message_that_was_lost_is_followed_in_the_next_period(instance_world: InstanceWorld) -> None:
    world = instance_world
    agent = world.start()
    instance = world.create()
    world.mark(instance, TaskState.POWERING_OFF)
    agent.period()
    assert world.instance(instance).vm_state is VMState.STOPPED


# What becomes of guests by themselves


def test_a_guest_that_died_is_stopped_and_keeps_its_device(instance_world: InstanceWorld) -> None:
    world = instance_world
    agent = world.start()
    instance = world.create(GPU)
    Guests(world.sim).end(instance)
    agent.period()
    row = world.instance(instance)
    assert (row.vm_state, row.power) == (VMState.STOPPED, PowerState.SHUTDOWN)
    assert world.function().instance_uuid == instance
    assert world.offered() == 0


def test_a_guest_that_vanished_is_in_error_and_keeps_its_device(instance_world: InstanceWorld) -> None:
    world = instance_world
    agent = world.start()
    instance = world.create(NIC)
    Guests(world.sim).end(instance)
    Guests(world.sim).forget(instance)
    agent.period()
    row = world.instance(instance)
    assert row.vm_state is VMState.ERROR
    assert "has vanished" in (row.fault_message or "")
    assert world.offered(NIC) == 0
    world.delete(instance)
    assert world.offered(NIC) == 1


# Deletions


def test_a_deletion_that_placement_does_not_take_is_gone_on_with(instance_world: InstanceWorld) -> None:
    world = instance_world
    agent = world.start()
    instance = world.create(GPU)
    world.faults.add(refuse, path="/inventories$")
    world.delete(instance)
    assert world.instance(instance).task_state is TaskState.DELETING
    assert world.function().instance_uuid == instance, "what is not reserved for sure is not let go of"
    world.faults.clear()
    agent.period()
    assert world.find(instance) is None
    assert world.offered() == 0


def test_a_deletion_finds_what_somebody_lowered_while_the_device_was_in_use(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    instance = world.create(GPU)
    world.by_hand(0)
    world.delete(instance)
    assert world.offered() == 0
    assert world.reserved() == 1


def test_the_flag_given_to_a_device_in_use_burns_it_in_the_next_start(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.specs = ({"vendor_id": "10de", "product_id": "25b6"},)
    first = world.start()
    instance = world.create(GPU)
    world.end(first)
    world.specs = (GPU_SPEC,)
    world.start()
    assert (world.row().burned, world.reserved()) == (True, 1)
    world.delete(instance)
    assert world.offered() == 0


def test_an_agent_without_placement_starts_and_says_what_is_missing(
    instance_world: InstanceWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world = instance_world
    world.faults.add(refuse)
    agent = world.start()
    assert f"What {HOST} has for instances is not all published yet" in caplog.text
    world.faults.clear()
    agent.period()
    assert world.offered() == 1


# Accelerator requests


def test_a_guest_gets_what_its_accelerator_requests_hold_and_gives_it_back(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    instance = world.ask(GPU)
    arq = bound_arq(world, instance, {"domain": "0000", "bus": "41", "device": "00", "function": "0", "managed": False})
    world.build(instance, GPU)
    guest = world.guest(instance)
    assert guest is None, "the simulated host has no such function, and says so"
    assert world.instance(instance).vm_state is VMState.ERROR
    with world.db.read() as tx:
        assert arq_rows.get(tx, arq) is None, "a failed build gives it back"


@pytest.mark.parametrize(("stored", "managed"), [({}, True), ({"managed": True}, True), ({"managed": False}, False)])
def test_a_request_says_whether_its_function_is_managed(
    instance_world: InstanceWorld, stored: dict[str, bool], managed: bool
) -> None:
    world = instance_world
    world.sim.functions.bind(NIC, None if managed else "vfio-pci")
    world.specs = (GPU_SPEC,)
    world.start()
    instance = world.ask(GPU)
    bound_arq(world, instance, {**PCIAddress.parse(NIC).as_attach_info(), **stored})
    world.build(instance, GPU)
    guest = world.guest(instance)
    assert guest is not None, world.instance(instance).fault_details
    assert [(each.address, each.managed) for each in guest.functions] == [(GPU, True), (NIC, managed)]
    world.delete(instance)
    with world.db.read() as tx:
        assert arq_rows.of_instance(tx, instance) == []


def test_an_unfinished_request_starts_no_guest_and_burns_nothing(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    instance = world.ask(GPU)
    with world.db.write() as tx:
        make_arq(tx, instance_uuid=instance, project_id="project", state=ARQState.INITIAL)
    world.build(instance, GPU)
    assert "has no device" in (world.instance(instance).fault_details or "")
    assert world.guest(instance) is None
    assert (world.row().burned, world.offered()) == (False, 1)  # for nothing
