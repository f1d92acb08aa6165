"""Instances on one host: what they claim, what they leave, and what survives a death of the agent."""

import json
from typing import Any

import pytest
from hostworld import GPU, GPU_SPEC, HOST, NIC
from instanceworld import InstanceWorld

from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import history
from autoclave.db.tables import DeviceType, attach_handles
from autoclave.rpc.notifications import Notification
from autoclave.rpc.port import AGENT_TOPIC
from autoclave.rules.device_lifecycle import ARQState, DeviceState
from autoclave.rules.instance_states import PowerState, TaskState, VMState
from autoclave.rules.pci_address import PCIAddress
from autoclave.simulator.guests import Guests
from autoclave.testing.placement.faults import refuse
from autoclave.testing.ports import KeptNotifications
from dbfixtures import make_arq, make_slot

pytestmark = pytest.mark.matrix


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


def test_history_of_a_device_names_the_guests_that_had_it(instance_world: InstanceWorld) -> None:
    """A guest is started, stopped, started, ends by itself, is started, and is deleted; a second agent goes on."""
    world = instance_world
    agent = world.start()
    instance = world.ask()
    arq = bound_arq(world, instance, PCIAddress.parse(NIC).as_attach_info())
    with world.db.read() as tx:
        device = arq_rows.get_many(tx, [arq])[0].device_id
    world.build(instance)
    world.power("stop_instance", TaskState.POWERING_OFF, instance)
    world.power("start_instance", TaskState.POWERING_ON, instance)
    world.power("reboot_instance", TaskState.REBOOTING, instance)
    Guests(world.sim).end(instance)
    agent.period()
    agent.period()
    world.power("start_instance", TaskState.POWERING_ON, instance)
    world.end(agent)
    world.start()
    world.delete(instance)

    with world.db.read() as tx:
        row = device_rows.get_by_id(tx, device or 0)
        lines = history.history(tx, row.uuid if row else "")
    guests = [line for line in lines if line.event.startswith("guest_")]
    assert [line.event for line in guests] == ["guest_start", "guest_end"] * 3
    tenant = {"instance_uuid": instance, "project_id": "project", "user_id": "user"}
    assert all(json.loads(line.evidence or "{}")["tenant"] == tenant for line in guests)
    [unbound] = [line for line in lines if line.event == "unbind"]
    assert unbound.id > guests[-1].id


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
    assert (world.row().device.burned_for, world.reserved()) == (second, 1)
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


def test_a_deletion_that_nobody_took_over_changes_nothing_for_the_build(instance_world: InstanceWorld) -> None:
    world = instance_world

    class TakenBack(KeptNotifications):
        def emit(self, notification: Notification) -> None:
            super().emit(notification)
            if notification.event_type == "instance.create.start":
                world.mark(instance, TaskState.DELETING)
                world.mark(instance, TaskState.SPAWNING)

    world.notifications = TakenBack()
    world.start()
    instance = world.ask(GPU)
    world.build(instance, GPU)
    row = world.instance(instance)
    assert (row.vm_state, row.task_state) == (VMState.ACTIVE, None)


def test_callers_of_the_release_before_are_understood(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    assert world.transport.client(AGENT_TOPIC, server=HOST, version="1.1").refusal("1.1") is None
    assert world.transport.client(AGENT_TOPIC, server=HOST, version="1.2").refusal("1.2") is None


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


# The agent's start


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


def test_a_device_of_which_nobody_can_tell_who_manages_it_starts_no_guest(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    instance = world.ask(GPU)
    bound_arq(world, instance, {"managed": "perhaps"})
    world.build(instance, GPU)
    assert "unreadable managed" in (world.instance(instance).fault_details or "")
    assert world.guest(instance) is None
    assert (world.row().burned, world.offered()) == (False, 1)  # for nothing


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
