"""A deletion gives nothing back that a guest may have yet, or that is not reserved, and comes to its end at last."""

import pytest
from hostworld import GPU, NIC
from instanceworld import InstanceWorld

from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.rules.device_lifecycle import ARQState
from autoclave.rules.instance_states import TaskState, VMState
from autoclave.simulator.faults import Fault, FaultKind
from autoclave.testing.placement.faults import refuse
from dbfixtures import make_arq


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


def test_an_outdated_function_is_reserved_before_its_allocation_goes(instance_world: InstanceWorld) -> None:
    """Its entry in [pci] device_spec was changed: no other instance gets it as configured before."""
    world = instance_world
    world.start()
    instance = world.create(NIC)
    with world.db.write() as tx:
        device_rows.update(tx, world.row(NIC).device, {"outdated": True})
    world.faults.add(refuse, path="/allocations/", method="DELETE")
    world.delete(instance)
    assert world.function(NIC).instance_uuid is None
    assert world.onlooker.get_allocations(instance).allocations
    assert world.reserved(NIC) == 1


@pytest.mark.parametrize("address", [GPU, NIC])
def test_a_guest_that_cannot_be_ended_keeps_what_it_has(instance_world: InstanceWorld, address: str) -> None:
    world = instance_world
    agent = world.start()
    instance = world.create(address)
    world.sim.set_fault("*", Fault(FaultKind.DESTROY_FAILS))
    world.delete(instance)
    agent.period()
    assert world.instance(instance).task_state is TaskState.DELETING
    assert world.function(address).instance_uuid == instance
    assert world.onlooker.get_allocations(instance).allocations
    assert world.offered(address) == 0
    agent.period()
    world.sim.clear_faults()
    agent.period()
    assert world.find(instance) is None
    assert world.offered(address) == (0 if address == GPU else 1)
    assert world.told()[2:] == ["instance.delete.start", "instance.delete.end"], (
        "it is told once, however long it takes"
    )


def test_a_guest_that_did_not_start_and_cannot_be_ended_keeps_what_it_has_until_it_is_deleted(
    instance_world: InstanceWorld,
) -> None:
    world = instance_world
    agent = world.start()
    world.sim.set_fault("*", Fault(FaultKind.SPAWN_FAILS))
    world.sim.set_fault("*", Fault(FaultKind.DESTROY_FAILS))
    instance = world.create(NIC)
    assert world.instance(instance).vm_state is VMState.ERROR
    agent.period()
    assert (world.function(NIC).instance_uuid, world.offered(NIC)) == (instance, 0)
    world.sim.clear_faults()
    world.delete(instance)
    assert (world.find(instance), world.offered(NIC)) == (None, 1)


def test_a_deletion_waits_for_a_conductor_that_gives_the_accelerator_requests_back(
    instance_world: InstanceWorld,
) -> None:
    world = instance_world
    agent = world.start()
    instance = world.create(NIC)
    with world.db.write() as tx:
        make_arq(tx, instance_uuid=instance, project_id="project", state=ARQState.BIND_FAILED)
    world.stop_conductor()
    world.delete(instance)
    assert world.instance(instance).task_state is TaskState.DELETING
    assert (world.function(NIC).instance_uuid, world.offered(NIC)) == (instance, 0)
    world.start_conductor()
    agent.period()
    assert (world.find(instance), world.offered(NIC)) == (None, 1)
    with world.db.read() as tx:
        assert arq_rows.of_instance(tx, instance) == []
