"""Whatever goes wrong while instances are built and deleted, in any combination: nothing is held by nobody."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from computeworld import ComputeWorld, NotingAgent
from failing_placement import FAILURES
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from strikes import Death, death, no_database

from autoclave.db import instances
from autoclave.db.instances import InstanceRecord
from autoclave.exceptions import AutoclaveError
from autoclave.objects.base import RequestContext
from autoclave.rules.device_lifecycle import ARQState
from autoclave.rules.instance_states import TaskState, VMState
from autoclave.testing.placement import FakePlacement

pytestmark = pytest.mark.thorough

TWO_DRIVES = {"accel:device_profile": "two-drives"}


@dataclass(frozen=True)
class Mishap:
    """Placement fails some requests."""

    failure: str
    method: str
    path: str
    skip: int
    times: int | None


@dataclass(frozen=True)
class Step:
    """:param what: happens to the instance of that number; *at* is the write at which a conductor dies."""

    what: str
    number: int
    at: int


MISHAPS = st.builds(
    Mishap,
    failure=st.sampled_from(sorted(FAILURES)),
    method=st.sampled_from(["GET", "PUT", "DELETE", ".*"]),
    path=st.sampled_from(["^/allocations", "/inventories", "allocation_candidates", ""]),
    skip=st.integers(0, 5),
    times=st.sampled_from([1, 2, 5, None]),
)
STEPS = st.builds(
    Step,
    what=st.sampled_from(["build", "build and die", "lose the database", "delete", "sweep", "sweep late", "recover"]),
    number=st.integers(0, 1),
    at=st.integers(1, 18),
)


def carry_out(world: ComputeWorld, step: Step, instance: InstanceRecord) -> None:
    """One step; what a service raises is in its log, and its next round comes."""
    conductor = world.conductor()
    try:
        if step.what == "build":
            conductor.build_instance(world.context, instance.uuid)
        elif step.what == "build and die":
            strike = death(step.at, applied=step.at % 2 == 0)
            world.conductor(strike.ports(world)).build_instance(world.context, instance.uuid)  # type: ignore[arg-type]
        elif step.what == "lose the database":
            strike = no_database(step.at, applied=step.at % 2 == 0)
            world.conductor(strike.ports(world)).build_instance(world.context, instance.uuid)  # type: ignore[arg-type]
        elif step.what == "delete" and world.find(instance) is not None:
            world.mark_deleted(instance)
            conductor.delete_instance(world.context, instance.uuid)
        elif step.what == "recover":
            world.faults.clear()
        elif step.what.startswith("sweep"):
            world.sweep(hours=1 if step.what == "sweep late" else 0)
    except Death:
        event("a conductor died")
    except AutoclaveError as error:
        event(type(error).__name__)
    world.deliver()


@dataclass
class Agent(NotingAgent):
    """Runs guests that are no trouble. It sees Placement as it is."""

    world: Any = None

    def build_instance(self, context: RequestContext, instance_uuid: str, groups: dict[str, list[str]]) -> None:
        with self.world.db.write() as tx:
            found = instances.get(tx, instance_uuid)
            if found is not None and (found.host, found.vm_state) == ("host-1", VMState.BUILDING):
                instances.swap(tx, found, expect_task=TaskState.SCHEDULING, vm_state=VMState.ACTIVE, task_state=None)

    def delete_instance(self, context: RequestContext, instance_uuid: str) -> None:
        ports = replace(self.world.ports, placement=self.world.onlooker)
        self.world.conductor(ports).arq_delete_for_instance(context, instance_uuid)
        self.world.onlooker.delete_allocations(instance_uuid)
        with self.world.db.write() as tx:
            assert instances.delete(tx, instance_uuid)


def assert_settled(world: ComputeWorld, instance: InstanceRecord) -> None:
    """Its guest runs with all that it needs, or it holds nothing."""
    found = world.find(instance)
    mine = [arq for arq in world.arqs() if arq.instance_uuid == instance.uuid]
    if found is not None and found.vm_state is VMState.ACTIVE:
        event("it runs")
        assert found.host == "host-1"
        assert [arq.state for arq in mine] == [ARQState.BOUND] * 2
        assert len(world.held(instance)) == 3
        return
    event("it is gone" if found is None else "it failed")
    assert mine == []
    assert world.held(instance) == {}
    if found is not None:
        assert (found.vm_state, found.task_state, found.host) == (VMState.ERROR, None, None)
        assert found.fault_message


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(mishaps=st.lists(MISHAPS, max_size=3), steps=st.lists(STEPS, min_size=1, max_size=7))
def test_after_any_mishaps_and_a_sweep_no_instance_is_in_limbo_and_none_holds_what_it_does_not_need(
    mishaps: Sequence[Mishap], steps: Sequence[Step]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        world = ComputeWorld(Path(directory), FakePlacement())
        world.add_host(drives=3, agent=Agent(world=world))
        world.add_profile()
        asked = [world.ask(specs=TWO_DRIVES) for _ in range(2)]
        world.faults.clear()
        for mishap in mishaps:
            effect, _ = FAILURES[mishap.failure]
            world.faults.add(effect, mishap.method, mishap.path, mishap.skip, mishap.times)
        for step in steps:
            carry_out(world, step, asked[step.number])

        world.faults.clear()
        world.sweep()
        world.sweep()

        for instance in asked:
            assert_settled(world, instance)
        assert len(world.arqs()) == 2 * sum(world.held(each) != {} for each in asked)
        world.close()
