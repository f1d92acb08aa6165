"""An agent that dies at any write of a clean, and the next one that finds what it left."""

import contextlib

import pytest
from agentworld import SANITIZING, SECRET, AgentWorld
from strikes import Death, Strike, death

from autoclave.agent import cleanup
from autoclave.agent.manager import AgentManager
from autoclave.lifecycle.swap import Cause, swap
from autoclave.rules.device_states import Actor, DeviceState, Event

AGENT = Cause(Actor.AGENT, "host-1")
CLEAN_WRITES = 7
"""pending_cleaning; cleaning; twice progress; available; reserved=0; the debt is paid."""


@pytest.fixture
def world(one_drive: AgentWorld) -> AgentWorld:
    return one_drive


@pytest.mark.parametrize("state", [DeviceState.PENDING_CLEANING, DeviceState.CLEANING])
def test_a_clean_that_its_agent_did_not_survive_is_an_error_for_the_next(world: AgentWorld, state: DeviceState) -> None:
    world.end(world.start())
    world.bind()
    with world.db.write() as tx:
        device = swap(tx, world.device(), Event.REQUEST_CLEANING, AGENT, {"agent_run_id": "a run that is dead"})
        if state is DeviceState.CLEANING:
            swap(tx, device, Event.START_CLEANING, AGENT)

    world.start()

    world.assert_withheld()
    assert state.value in (world.device().state_reason or "")
    world.clean()
    assert not world.sim.find(SANITIZING, SECRET)
    world.assert_offered()


def test_a_drive_that_nobody_holds_is_cleaned_at_the_start(world: AgentWorld) -> None:
    world.end(world.start())
    world.bind()

    world.start()

    world.outcome()
    assert not world.sim.find(SANITIZING, SECRET)
    world.assert_offered()


def test_a_drive_that_nobody_holds_is_cleaned_by_the_next_period(world: AgentWorld) -> None:
    agent = world.start()
    world.bind()

    agent.period()

    world.outcome()
    assert not world.sim.find(SANITIZING, SECRET)
    world.assert_offered()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No progress is written on account of the time, so that the writes of a clean can be counted."""
    monkeypatch.setattr(cleanup, "PROGRESS_INTERVAL", 3600)


def clean_by(world: AgentWorld, strike: Strike, at: int | None) -> AgentManager:
    """An agent cleans a drive that was written on; returns when no worker is left, done or dead."""
    agent = world.start(strike.ports(world))
    bound = world.bind()
    strike.arm(at)
    world.ports.cleaners.clean(world.context, bound)
    with contextlib.suppress(Death):
        world.casts.deliver()
    if at is not None:
        world.wait(strike.struck.is_set, "the agent dies")
    world.wait(lambda: not world.working(bound.uuid), "the worker is gone")
    return agent


@pytest.mark.usefixtures("unhurried")
def test_a_clean_writes_as_often_as_is_struck_below(world: AgentWorld) -> None:
    counted = death()
    clean_by(world, counted, None)
    world.assert_offered()
    assert counted.calls == CLEAN_WRITES


@pytest.mark.usefixtures("unhurried")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, CLEAN_WRITES + 1))
def test_an_agent_that_dies_at_any_write_of_a_clean_leaves_nothing_dirty_on_offer(
    world: AgentWorld, at: int, applied: bool
) -> None:
    agent = clean_by(world, death(applied=applied), at)
    world.end(agent)
    world.assert_promises()

    successor = world.start()
    world.assert_promises()
    if world.outcome().device_state is DeviceState.ERROR:
        world.assert_withheld()
        world.clean()
    successor.period()
    assert not world.sim.find(SANITIZING, SECRET)
    world.assert_offered()
