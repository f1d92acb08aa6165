"""A build ends at its host's agent, or in ERROR with nothing held: whatever fails, and whoever dies, at any call."""

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from computeworld import ComputeWorld
from failing_placement import FAILURES, every_failure_at, failing
from strikes import Death, Strike, death, no_database

from autoclave.db import instances
from autoclave.db.columns import utcnow
from autoclave.db.instances import InstanceRecord
from autoclave.db.tables import devices
from autoclave.exceptions import AutoclaveError, DatabaseUnavailable
from autoclave.rules.device_lifecycle import ARQState, DeviceState
from autoclave.rules.instance_states import TaskState, VMState
from autoclave.testing.placement import FakePlacement
from autoclave.testing.placement.faults import Effect, answer, before, refuse

pytestmark = pytest.mark.matrix

TWO_DRIVES = {"accel:device_profile": "two-drives"}

BUILD = (
    "GET /allocation_candidates",
    "PUT /allocations",
    *["GET inventories", "PUT inventories"] * 2,
)
"""The requests of a build with two drives."""

BUILD_WRITES = 9
"""The run on the row; the claim; the ARQs; BindStarted; the swaps; twice reserved=total; Bound; the host."""

DATABASE_CALLS = 18
"""Transactions of a build, those that read included."""

before_or_after = pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ComputeWorld]:
    """One host with two drives, and a device profile for both."""
    made = ComputeWorld(tmp_path, FakePlacement())
    made.add_host(drives=2)
    made.add_profile()
    made.faults.clear()
    made.faults.calls.clear()
    yield made
    made.close()


def assert_nothing_held(world: ComputeWorld, instance: InstanceRecord) -> None:
    """No allocation, no request."""
    assert world.held(instance) == {}
    assert world.arqs() == []


def assert_failed(world: ComputeWorld, instance: InstanceRecord) -> InstanceRecord:
    """It is in ERROR, does nothing, has a fault, and holds nothing."""
    found = world.instance(instance)
    assert (found.vm_state, found.task_state, found.host) == (VMState.ERROR, None, None)
    assert found.fault_message
    assert found.fault_at
    assert_nothing_held(world, instance)
    return found


def assert_handed_over(world: ComputeWorld, instance: InstanceRecord) -> None:
    """Its agent was told, and both drives are its own."""
    found = world.instance(instance)
    assert (found.vm_state, found.task_state, found.host) == (VMState.BUILDING, TaskState.SCHEDULING, "host-1")
    assert world.builder_of(instance) == "host-1"
    assert [arq.state for arq in world.arqs()] == [ARQState.BOUND] * 2
    assert {arq.instance_uuid for arq in world.arqs()} == {instance.uuid}
    assert len(world.held(instance)) == 3


def spoil_drives(world: ComputeWorld) -> None:
    """No drive can be bound any more, and Placement does not know it yet."""
    with world.db.write() as tx:
        tx.execute(devices.update().values(device_state=DeviceState.ERROR))


def drive_states(world: ComputeWorld) -> list[tuple[DeviceState, int]]:
    """State and version of each drive."""
    with world.db.read() as tx:
        rows = tx.execute(sa.select(devices.c.device_state, devices.c.state_version).order_by(devices.c.id))
        return [(state, version) for state, version in rows]


# The way it goes


def test_a_build_makes_the_requests_that_are_struck_below(world: ComputeWorld) -> None:
    world.build(world.ask(specs=TWO_DRIVES))
    for call, told in zip(world.faults.calls, BUILD, strict=True):
        method, what = told.split(" ")
        assert call.method == method
        assert what in call.path


def test_each_drive_is_bound_by_the_provider_that_its_group_was_given(world: ComputeWorld) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    world.build(instance)
    assert_handed_over(world, instance)
    [(_, groups)] = world.agents["host-1"].built
    for arq in world.arqs():
        assert groups[f"device_profile_{arq.device_profile_group_id}"] == [arq.device_rp_uuid]
        assert arq.project_id == "project"


def test_a_message_that_comes_twice_builds_once(world: ComputeWorld) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    world.build(instance)
    world.build(instance)
    assert_handed_over(world, instance)
    assert len(world.agents["host-1"].built) == 1


def test_a_second_conductor_does_nothing_while_the_first_is_at_work(world: ComputeWorld) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    world.faults.add(
        before(lambda: world.conductor().build_instance(world.context, instance.uuid)), "PUT", "^/allocations", times=1
    )
    world.build(instance)
    assert_handed_over(world, instance)
    assert len(world.agents["host-1"].built) == 1


def test_a_sweep_leaves_a_build_alone_that_is_not_old(world: ComputeWorld) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    world.faults.add(before(lambda: world.sweep(hours=0)), "PUT", "^/allocations", times=1)
    world.build(instance)
    world.sweep(hours=0)
    assert_handed_over(world, instance)


def test_hosts_that_no_candidate_was_made_for_are_asked_one_by_one(world: ComputeWorld) -> None:
    for number in range(100):
        world.add_host(f"disabled-{number}")
    world.add_host("the-one")
    for name in world.roots:
        if name != "the-one":
            world.change_host(name, disabled=True)
    assert world.build(world.ask()).host == "the-one"


# What is refused


def test_a_drive_that_is_lost_between_claim_and_bind_fails_the_build_with_the_reason(world: ComputeWorld) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    world.faults.add(before(lambda: spoil_drives(world)), "PUT", "^/allocations", times=1)
    world.build(instance)
    found = assert_failed(world, instance)
    assert found.fault_message == "No valid host was found. A device that Placement offered could not be bound."
    assert "it is error" in (found.fault_details or ""), "which device it is, is for administrators"


def test_a_profile_that_is_deleted_before_the_build_is_named(world: ComputeWorld) -> None:
    instance = world.ask(specs={"accel:device_profile": "gone"})
    world.build(instance)
    found = assert_failed(world, instance)
    assert found.fault_code == 400
    assert "'gone'" in (found.fault_message or "")


def test_a_profile_that_is_deleted_during_the_build_is_named(world: ComputeWorld) -> None:
    instance = world.ask(specs=TWO_DRIVES)

    def delete() -> None:
        with world.db.write() as tx:
            tx.exec_driver_sql("DELETE FROM device_profiles WHERE name = 'two-drives'")

    world.faults.add(before(delete), "PUT", "^/allocations", times=1)
    world.build(instance)
    assert "'two-drives' was deleted" in (assert_failed(world, instance).fault_message or "")


def test_a_message_that_cannot_be_handed_over_fails_the_build(world: ComputeWorld) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    world.casts.full = True
    world.build(instance)
    assert_failed(world, instance)
    assert world.builder_of(instance) is None


def test_users_are_not_told_what_is_for_administrators(world: ComputeWorld) -> None:
    instance = world.ask()
    world.faults.add(answer(500), "GET", "allocation_candidates")
    world.build(instance)
    found = assert_failed(world, instance)
    assert "allocation_candidates" not in (found.fault_message or "")
    assert "allocation_candidates" in (found.fault_details or "")


def test_a_build_that_fails_as_nobody_foresaw_fails_at_once(world: ComputeWorld) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    with world.db.write() as tx:
        instances.update(tx, instance, {"flavor": {"extra_specs": {}}})
    world.build(instance)
    found = assert_failed(world, instance)
    assert "KeyError" in (found.fault_details or "")
    assert "KeyError" not in (found.fault_message or "")


def test_an_instance_that_cannot_be_put_right_keeps_no_other_waiting(world: ComputeWorld) -> None:
    waiting, broken = world.ask(), world.ask(task_state=TaskState.REBUILDING, rebuild={"image_uuid": "another"})
    world.sweep()
    assert world.instance(broken).task_state is TaskState.REBUILDING
    assert_failed(world, waiting)


def test_an_edit_does_not_keep_a_build_alive_that_nobody_is_at(world: ComputeWorld) -> None:
    """Its user may rename it as often as he likes: it is no sign of life of its builder."""
    instance = world.ask()
    long_ago = utcnow() - timedelta(hours=1)
    with world.db.write() as tx:
        instances.swap(tx, instance, expect_task=TaskState.SCHEDULING, updated_at=long_ago)
    with world.db.write() as tx:
        instances.update(tx, world.instance(instance), {"name": "another"})
    world.sweep(hours=0)
    assert assert_failed(world, instance).name == "another"


# Placement fails


@every_failure_at(BUILD)
def test_a_build_that_placement_fails_at_any_request_is_done_or_undone(
    world: ComputeWorld, at: int, effect: Effect, times: int | None
) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    with failing(world, at, effect, times):  # type: ignore[arg-type]
        world.build(instance)
    if world.instance(instance).vm_state is VMState.ERROR:
        assert world.builder_of(instance) is None
        world.sweep()
        assert_failed(world, instance)
    else:
        assert_handed_over(world, instance)


@pytest.mark.parametrize(("effect", "times"), FAILURES.values(), ids=FAILURES)
def test_a_failed_build_that_cannot_be_undone_at_once_is_undone_by_the_next_sweep(
    world: ComputeWorld, effect: Effect, times: int | None
) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    world.faults.add(before(lambda: spoil_drives(world)), "PUT", "^/allocations", times=1)
    fault = world.faults.add(effect, "DELETE", "^/allocations", times=times)
    world.build(instance)
    assert fault.struck
    assert world.instance(instance).vm_state is VMState.ERROR, "its user need not wait to know"
    world.faults.clear()
    world.sweep(hours=0)
    assert_failed(world, instance)


# Death


def test_a_build_writes_as_often_as_is_struck_below(world: ComputeWorld) -> None:
    counting = death()
    world.build(world.ask(specs=TWO_DRIVES), counting.ports(world))  # type: ignore[arg-type]
    assert counting.calls == BUILD_WRITES


def dies(world: ComputeWorld, instance: InstanceRecord, strike: Strike) -> None:
    """A conductor begins to build, and dies; what it has told nobody heard."""
    with pytest.raises(Death):
        world.conductor(strike.ports(world)).build_instance(world.context, instance.uuid)  # type: ignore[arg-type]
    assert strike.struck.is_set()
    assert world.casts.pending == ()


@before_or_after
@pytest.mark.parametrize("at", range(1, BUILD_WRITES + 1))
def test_a_conductor_that_dies_at_any_write_leaves_nothing_behind_after_the_sweep(
    world: ComputeWorld, at: int, applied: bool
) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    dies(world, instance, death(at, applied=applied))
    world.sweep()
    found = assert_failed(world, instance)
    assert "Its build was abandoned" in (found.fault_message or "")


@before_or_after
@pytest.mark.parametrize("at", range(1, BUILD_WRITES + 1))
def test_an_instance_can_be_deleted_wherever_its_build_died(world: ComputeWorld, at: int, applied: bool) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    dies(world, instance, death(at, applied=applied))
    world.mark_deleted(instance)
    world.conductor().delete_instance(world.context, instance.uuid)
    world.deliver()
    if world.agents["host-1"].deleted:
        assert at == BUILD_WRITES, "only an instance that has a host is its agent's"
        return
    world.sweep()
    assert world.find(instance) is None
    assert_nothing_held(world, instance)


@before_or_after
@pytest.mark.parametrize("at", range(1, 6))
def test_a_conductor_that_dies_while_it_undoes_a_build_leaves_it_to_the_next(
    world: ComputeWorld, at: int, applied: bool
) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    dies(world, instance, death(BUILD_WRITES))
    strike = death(at, applied=applied)
    ports = strike.ports(world)  # type: ignore[arg-type]
    with pytest.raises(Death):
        world.conductor(replace(ports, clock=lambda: utcnow() + timedelta(hours=1))).sweep()
    world.sweep()
    assert_failed(world, instance)


@before_or_after
@pytest.mark.parametrize("at", range(1, DATABASE_CALLS + 1))
def test_a_database_that_fails_at_any_transaction_leaves_nothing_behind_after_the_sweep(
    world: ComputeWorld, at: int, applied: bool
) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    strike = no_database(at, applied=applied)
    try:
        world.build(instance, strike.ports(world))  # type: ignore[arg-type]
    except DatabaseUnavailable:
        world.sweep()
    found = world.instance(instance)
    if found.vm_state is VMState.BUILDING:
        assert_handed_over(world, instance)
    else:
        assert_failed(world, instance)
    assert strike.struck.is_set(), f"there are only {strike.calls} transactions"


# Deletion


def test_an_instance_that_failed_is_deleted_without_an_agent(world: ComputeWorld) -> None:
    instance = world.build(world.ask(specs={"resources:MEMORY_MB": "999999"}))
    assert instance.vm_state is VMState.ERROR
    world.mark_deleted(instance)
    world.conductor().delete_instance(world.context, instance.uuid)
    assert world.find(instance) is None


def test_an_instance_with_a_host_is_its_agents_to_delete(world: ComputeWorld) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    world.build(instance)
    world.mark_deleted(instance)
    world.conductor().delete_instance(world.context, instance.uuid)
    world.deliver()
    assert world.agents["host-1"].deleted == [instance.uuid]
    assert world.find(instance) is not None
    assert len(world.held(instance)) == 3, "its guest may still run"


def test_an_instance_on_a_dead_host_stays_until_the_host_is_back(
    world: ComputeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    world.build(instance)
    world.silence("host-1")
    world.mark_deleted(instance)
    world.conductor().delete_instance(world.context, instance.uuid)
    world.sweep()
    assert world.instance(instance).task_state is TaskState.DELETING
    assert len(world.held(instance)) == 3
    assert "waits for host host-1, which has an agent that was last seen" in caplog.text


def test_an_instance_that_nobody_wants_deleted_is_not_deleted(world: ComputeWorld) -> None:
    instance = world.build(world.ask())
    world.conductor().delete_instance(world.context, instance.uuid)
    world.deliver()
    assert world.agents["host-1"].deleted == []


@pytest.mark.parametrize("request_of_the_build", [("PUT", "^/allocations"), ("PUT", "/inventories")])
def test_an_instance_that_is_deleted_while_it_is_built_is_gone_when_the_builder_is(
    world: ComputeWorld, request_of_the_build: tuple[str, str]
) -> None:
    instance = world.ask(specs=TWO_DRIVES)

    def delete() -> None:
        world.mark_deleted(instance)
        world.conductor().delete_instance(world.context, instance.uuid)

    world.faults.add(before(delete), *request_of_the_build, times=1)
    world.conductor().build_instance(world.context, instance.uuid)
    assert world.find(instance) is None
    assert_nothing_held(world, instance)
    assert world.builder_of(instance) is None


@pytest.mark.parametrize(("effect", "times"), FAILURES.values(), ids=FAILURES)
def test_a_deletion_that_placement_fails_is_finished_by_a_sweep(
    world: ComputeWorld, effect: Effect, times: int | None
) -> None:
    instance = world.ask()
    dies(world, instance, death(3))
    world.mark_deleted(instance)
    world.faults.add(effect, "DELETE", "^/allocations", times=times)
    world.sweep()
    world.faults.clear()
    world.sweep()
    assert world.find(instance) is None
    assert_nothing_held(world, instance)


def test_a_deletion_that_nobody_took_over_changes_nothing_for_the_build(world: ComputeWorld) -> None:
    instance = world.ask(specs=TWO_DRIVES)

    def mark_and_take_back() -> None:
        world.mark_deleted(instance)
        with world.db.write() as tx:
            marked = instances.get(tx, instance.uuid)
            assert marked is not None
            instances.swap(tx, marked, expect_task=TaskState.DELETING, task_state=TaskState.SCHEDULING)

    world.faults.add(before(mark_and_take_back), "PUT", "^/allocations", times=1)
    world.build(instance)
    assert_handed_over(world, instance)


def test_a_builder_that_was_taken_for_dead_gives_back_what_it_got_later(world: ComputeWorld) -> None:
    """It hangs for longer than its lease; a sweep undoes what there is; then its claim is carried out."""
    instance, before_it = world.ask(specs=TWO_DRIVES), drive_states(world)
    world.faults.add(before(world.sweep), "PUT", "^/allocations", times=1)
    world.conductor().build_instance(world.context, instance.uuid)
    assert world.builder_of(instance) is None
    assert_failed(world, instance)
    assert drive_states(world) == before_it, "no drive is bound, and erased, for nobody"


def test_a_builder_that_was_taken_for_dead_is_not_forgotten_when_it_cannot_give_back(world: ComputeWorld) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    world.faults.add(before(world.sweep), "PUT", "/inventories", times=1)
    deletion = world.faults.add(refuse, "DELETE", "^/allocations", skip=1)
    try:
        world.conductor().build_instance(world.context, instance.uuid)
    except AutoclaveError:
        pytest.fail("what is left over is the sweep's to finish")
    world.faults.clear()
    world.sweep(hours=0)
    assert deletion.skip == 0
    assert_failed(world, instance)


def test_a_builder_that_was_taken_for_dead_hands_nothing_over_while_it_is_undone(world: ComputeWorld) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    world.faults.add(before(world.sweep), "PUT", "^/allocations", times=1)
    undoing = world.faults.add(refuse, "DELETE", "^/allocations")
    world.conductor().build_instance(world.context, instance.uuid)
    world.deliver()
    assert undoing.struck
    found = world.instance(instance)
    assert (found.vm_state, found.task_state, found.host) == (VMState.ERROR, TaskState.SCHEDULING, None)
    assert world.builder_of(instance) is None
    world.faults.clear()
    world.sweep(hours=0)
    assert_failed(world, instance)


def test_an_instance_that_no_conductor_took_up_does_not_wait_for_ever(world: ComputeWorld) -> None:
    instance = world.ask()
    world.sweep()
    assert "No conductor started the build" in (assert_failed(world, instance).fault_details or "")


def test_a_drive_whose_build_failed_before_a_guest_saw_it_is_offered_again(world: ComputeWorld) -> None:
    instance = world.ask(specs=TWO_DRIVES)
    fault = world.faults.add(refuse, "PUT", "/inventories", skip=1, times=1)
    world.build(instance)
    world.sweep()
    assert fault.struck
    assert_failed(world, instance)
    assert world.build(world.ask(specs=TWO_DRIVES)).host == "host-1"
