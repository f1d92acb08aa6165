"""Guests are started, stopped, rebooted and rebuilt, and keep the devices that they have."""

import uuid
from dataclasses import replace
from datetime import timedelta

from hostworld import GPU, HOST, NIC
from instanceworld import OTHER, InstanceWorld
from moments import Moments, hypervisor_of

from autoclave.db import agents
from autoclave.db.columns import utcnow
from autoclave.rules.instance_states import PowerState, TaskState, VMState
from autoclave.virt.driver import load_compute_driver


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
    world.rebuild(instance)
    row = world.instance(instance)
    assert (row.vm_state, row.task_state, row.image_uuid, row.rebuild) == (
        VMState.ACTIVE,
        None,
        OTHER["image_uuid"],
        None,
    )
    guest = world.guest(instance)
    assert guest is not None
    assert [function.address for function in guest.functions] == [GPU]
    assert (world.reserved(), world.row().device.burned_for) == (1, instance)


def test_a_stopped_instance_is_stopped_after_its_rebuild(instance_world: InstanceWorld) -> None:
    world = instance_world
    world.start()
    instance = world.create(GPU)
    world.power("stop_instance", TaskState.POWERING_OFF, instance)
    world.rebuild(instance)
    row = world.instance(instance)
    assert (row.vm_state, row.power, row.task_state) == (VMState.STOPPED, PowerState.SHUTDOWN, None)
    assert row.image_uuid == OTHER["image_uuid"]
    assert world.function().instance_uuid == instance


def test_a_late_message_about_an_earlier_rebuild_begins_none_that_no_conductor_has_checked(
    instance_world: InstanceWorld,
) -> None:
    world = instance_world
    world.start()
    instance = world.create(GPU)
    unchecked = {name: value for name, value in OTHER.items() if name != "checked"}
    world.rebuild(instance, unchecked)
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


def test_an_agent_whose_host_another_run_has_taken_over_ends_no_rebuild_of_that_run(
    instance_world: InstanceWorld,
) -> None:
    world = instance_world
    moments = Moments()
    world.start(driver=hypervisor_of(load_compute_driver(world.configuration()), moments))
    instance = world.create(GPU)
    before = world.instance(instance).image_uuid
    later = {**OTHER, "image_uuid": str(uuid.UUID(int=9))}

    def taken_over(_whom: str) -> None:
        world.mark(instance, TaskState.REBUILDING, rebuild=later, agent_run_id="another run")

    moments.arm(0, taken_over)
    world.rebuild(instance)
    assert moments.happened
    row = world.instance(instance)
    assert (row.task_state, row.agent_run_id) == (TaskState.REBUILDING, "another run")
    assert (row.rebuild, row.image_uuid) == (later, before)


def test_an_agent_that_sees_to_one_instance_after_the_other_is_not_stuck(instance_world: InstanceWorld) -> None:
    world = instance_world
    now = utcnow()
    moments = Moments()
    driver = hypervisor_of(load_compute_driver(world.configuration()), moments)
    agent = world.start(replace(world.ports, clock=lambda: now), driver)
    for address in (GPU, NIC):
        world.mark(world.create(address), TaskState.POWERING_OFF)

    def takes_long(_whom: str) -> None:
        nonlocal now
        now += timedelta(minutes=8)
        agent.beat()
        moments.arm(1, takes_long)  # the next guest

    began = now
    moments.arm(0, takes_long)
    agent.period()
    with world.db.read() as tx:
        found = agents.get(tx, HOST)
    assert found is not None
    assert found.last_seen - began == timedelta(minutes=16)


def test_a_power_message_that_was_lost_is_followed_in_the_next_period(instance_world: InstanceWorld) -> None:
    world = instance_world
    agent = world.start()
    instance = world.create()
    world.mark(instance, TaskState.POWERING_OFF)
    agent.period()
    assert world.instance(instance).vm_state is VMState.STOPPED
