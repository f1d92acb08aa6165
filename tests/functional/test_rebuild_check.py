"""A rebuild is checked against what the instance holds; one that is refused leaves it on its old image."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from computeworld import ComputeWorld
from failing_placement import FAILURES
from strikes import Death, death

from autoclave.db import instances
from autoclave.db.columns import utcnow
from autoclave.db.instances import InstanceRecord
from autoclave.lifecycle.ports import Ports
from autoclave.rules.instance_states import TaskState, VMState
from autoclave.testing.placement import FakePlacement
from autoclave.testing.placement.faults import Effect, lose_answer

GPU = {"pci_passthrough:alias": "gpu"}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ComputeWorld]:
    """A full host, trusted, with a GPU that has a trait of its own; its memory is all the instance's."""
    made = ComputeWorld(tmp_path, FakePlacement())
    made.add_host("host-1", memory_mb=512, traits=["CUSTOM_TRUSTED_HOST"], gpus=1)
    made.onlooker.ensure_traits(["CUSTOM_ELSEWHERE", "CUSTOM_OTHER"])
    yield made
    made.close()


def running(world: ComputeWorld, **asked: object) -> InstanceRecord:
    """An instance whose guest runs."""
    built = world.build(world.ask(**asked))
    with world.db.write() as tx:
        found = instances.swap(
            tx,
            built,
            expect_task=TaskState.SCHEDULING,
            task_state=None,
            vm_state=VMState.ACTIVE,
            agent_run_id=None,
            launched_at=utcnow(),
        )
    assert found is not None
    return found


def rebuild(
    world: ComputeWorld,
    instance: InstanceRecord,
    properties: Mapping[str, str],
    image_uuid: str = "another",
    ports: Ports | None = None,
) -> InstanceRecord:
    """As the API asks for it; the instance afterwards."""
    wanted = {"image_uuid": image_uuid, "image": {"name": "new", "properties": dict(properties)}}
    with world.db.write() as tx:
        instances.swap(tx, instance, expect_task=None, task_state=TaskState.REBUILDING, rebuild=wanted)
    world.conductor(ports).rebuild_instance(world.context, instance.uuid)
    world.deliver()
    return world.instance(instance)


def assert_goes_on(world: ComputeWorld, instance: InstanceRecord) -> None:
    found = world.instance(instance)
    assert world.agents["host-1"].rebuilt == [instance.uuid]
    assert (found.vm_state, found.task_state, found.fault_message) == (VMState.ACTIVE, TaskState.REBUILDING, None)
    assert found.rebuild is not None
    assert found.rebuild["checked"], "its agent would take the message for one that comes late"


def assert_refused(world: ComputeWorld, instance: InstanceRecord) -> str:
    """It runs on its old image, and holds what it held; what its user is told."""
    found = world.instance(instance)
    assert world.agents["host-1"].rebuilt == []
    assert (found.vm_state, found.task_state, found.rebuild) == (VMState.ACTIVE, None, None)
    assert (found.image_uuid, found.image, found.host) == (instance.image_uuid, instance.image, "host-1")
    assert world.held(instance)
    return found.fault_message or ""


def test_an_image_with_a_trait_that_the_host_has_is_taken_though_the_host_is_full(world: ComputeWorld) -> None:
    instance = running(world)
    rebuild(world, instance, {"trait:CUSTOM_TRUSTED_HOST": "required"})
    assert_goes_on(world, instance)


def test_a_trait_of_any_provider_that_the_instance_holds_will_do(world: ComputeWorld) -> None:
    instance = running(world, specs=GPU)
    rebuild(world, instance, {"trait:COMPUTE_MANAGED_PCI_DEVICE": "required"})
    assert_goes_on(world, instance)


def test_a_trait_of_a_device_that_the_instance_does_not_hold_will_not_do(world: ComputeWorld) -> None:
    instance = running(world)
    rebuild(world, instance, {"trait:COMPUTE_MANAGED_PCI_DEVICE": "required"})
    assert "COMPUTE_MANAGED_PCI_DEVICE" in assert_refused(world, instance)


def test_traits_that_nothing_has_are_named_and_the_instance_stays_as_it_is(world: ComputeWorld) -> None:
    instance = running(world)
    wanted = {f"trait:{name}": "required" for name in ("CUSTOM_ELSEWHERE", "CUSTOM_OTHER", "CUSTOM_TRUSTED_HOST")}
    rebuild(world, instance, wanted)
    told = assert_refused(world, instance)
    assert "CUSTOM_ELSEWHERE, CUSTOM_OTHER" in told
    assert "CUSTOM_TRUSTED_HOST" not in told


@pytest.mark.parametrize("key", ["trait:CUSTOM_TRUSTED_HOST", "traitpci:CUSTOM_TRUSTED_HOST"])
def test_a_trait_that_any_group_of_the_flavor_forbids_is_refused_by_name(world: ComputeWorld, key: str) -> None:
    instance = running(world)
    with world.db.write() as tx:
        flavor = {**instance.flavor, "extra_specs": {key: "forbidden"}}
        instances.update(tx, instance, {"flavor": flavor})
    rebuild(world, instance, {"trait:CUSTOM_TRUSTED_HOST": "required"})
    assert f"'{key}=forbidden'" in assert_refused(world, instance)


def test_a_rebuild_that_goes_on_ends_the_fault_of_one_that_was_refused(world: ComputeWorld) -> None:
    instance = running(world)
    refused = rebuild(world, instance, {"trait:CUSTOM_ELSEWHERE": "required"})
    assert refused.fault_message
    rebuild(world, refused, {"trait:CUSTOM_TRUSTED_HOST": "required"})
    assert_goes_on(world, instance)


def test_an_image_without_demands_needs_no_placement(world: ComputeWorld) -> None:
    instance = running(world)
    world.faults.calls.clear()
    rebuild(world, instance, {"trait:CUSTOM_ELSEWHERE": "forbidden"})
    assert_goes_on(world, instance)
    assert world.faults.calls == []


def test_the_same_image_whose_traits_were_changed_since_is_checked(world: ComputeWorld) -> None:
    instance = running(world)
    rebuild(world, instance, {"trait:CUSTOM_ELSEWHERE": "required"}, instance.image_uuid)
    assert "CUSTOM_ELSEWHERE" in assert_refused(world, instance)


def test_the_same_image_is_not_refused_for_what_the_host_has_lost_since(world: ComputeWorld) -> None:
    instance = running(world, image={"trait:CUSTOM_TRUSTED_HOST": "required"})
    root = world.roots["host-1"]
    world.onlooker.put_traits(root, world.onlooker.get_traits(root).generation, ["COMPUTE_NODE"])
    rebuild(world, instance, {"trait:CUSTOM_TRUSTED_HOST": "required"}, instance.image_uuid)
    assert_goes_on(world, instance)


def test_a_demand_that_can_be_no_trait_is_named(world: ComputeWorld) -> None:
    instance = running(world)
    rebuild(world, instance, {"trait:not a trait": "required"})
    assert "'trait:not a trait'" in assert_refused(world, instance)


@pytest.mark.parametrize("path", ["^/allocations", "/traits"])
@pytest.mark.parametrize(
    ("effect", "times"),
    [pytest.param(*failure, id=name) for name, failure in FAILURES.items() if failure[0] is not lose_answer],
)
def test_a_placement_that_does_not_tell_leaves_the_instance_on_its_old_image(
    world: ComputeWorld, path: str, effect: Effect, times: int | None
) -> None:
    instance = running(world)
    fault = world.faults.add(effect, "GET", path, times=times)
    found = rebuild(world, instance, {"trait:CUSTOM_TRUSTED_HOST": "required"})
    assert fault.struck
    assert assert_refused(world, instance)
    assert found.fault_code == 500


def test_a_rebuild_that_cannot_be_handed_over_leaves_the_instance_on_its_old_image(world: ComputeWorld) -> None:
    instance = running(world)
    world.casts.full = True
    rebuild(world, instance, {})
    assert assert_refused(world, instance)


def test_an_instance_that_was_never_built_is_not_rebuilt(world: ComputeWorld) -> None:
    instance = world.build(world.ask(specs={"resources:VCPU": "9999"}))
    found = rebuild(world, instance, {})
    assert (found.vm_state, found.task_state, found.rebuild) == (VMState.ERROR, None, None)
    assert "has never run" in (found.fault_message or "")


def test_an_instance_that_its_host_could_not_build_is_not_rebuilt_without_what_it_was_to_have(
    world: ComputeWorld,
) -> None:
    built = world.build(world.ask(specs=GPU))
    world.onlooker.delete_allocations(built.uuid)
    with world.db.write() as tx:
        failed = instances.swap(
            tx, built, expect_task=TaskState.SCHEDULING, task_state=None, vm_state=VMState.ERROR, agent_run_id=None
        )
    assert failed is not None
    found = rebuild(world, failed, {})
    assert world.agents["host-1"].rebuilt == []
    assert (found.vm_state, found.task_state) == (VMState.ERROR, None)
    assert "has never run" in (found.fault_message or "")


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2])
@pytest.mark.parametrize("trait", ["CUSTOM_TRUSTED_HOST", "CUSTOM_ELSEWHERE"])
def test_a_conductor_that_dies_while_it_checks_is_replaced_by_the_sweep(
    world: ComputeWorld, trait: str, at: int, applied: bool
) -> None:
    instance = running(world)
    strike = death(at, applied=applied)
    with pytest.raises(Death):
        rebuild(world, instance, {f"trait:{trait}": "required"}, ports=strike.ports(world))  # type: ignore[arg-type]
    assert world.agents["host-1"].rebuilt == []

    world.sweep()

    if trait == "CUSTOM_TRUSTED_HOST":
        assert_goes_on(world, instance)
    else:
        assert trait in assert_refused(world, instance)


def test_a_rebuild_that_its_agent_works_on_is_not_handed_over_again(world: ComputeWorld) -> None:
    instance = running(world)
    found = rebuild(world, instance, {})
    with world.db.write() as tx:
        instances.swap(tx, found, expect_task=TaskState.REBUILDING, agent_run_id="run of host-1")
    world.sweep()
    world.conductor().rebuild_instance(world.context, instance.uuid)
    world.deliver()
    assert world.agents["host-1"].rebuilt == [instance.uuid]


def test_an_instance_that_is_deleted_meanwhile_is_not_rebuilt(world: ComputeWorld) -> None:
    instance = running(world)
    world.mark_deleted(instance)
    world.conductor().rebuild_instance(world.context, instance.uuid)
    world.deliver()
    assert world.agents["host-1"].rebuilt == []
