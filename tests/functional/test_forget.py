"""A forget ends with the device gone, or with the device as it was: never in between."""

from collections.abc import Callable
from typing import Any

import pytest
from agentworld import SANITIZING, AgentWorld
from strikes import Death, death

from autoclave.exceptions import Conflict, NotFound, PlacementConflict, PlacementUnavailable
from autoclave.lifecycle.operator import accept, forget, hold
from autoclave.lifecycle.sweep import sweep
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor
from autoclave.testing.placement.faults import after, answer, refuse

OPERATOR = Cause(Actor.OPERATOR, "ann", reason="sold")
EVENT, PROVIDER, ROW = 1, 2, 3
"""The writes of a forget, in order."""


@pytest.fixture
def world(one_drive: AgentWorld) -> AgentWorld:
    """The drive was offered, and has disappeared."""
    agent = one_drive.start()
    agent.period()
    one_drive.sim.pull(SANITIZING)
    agent.period()
    assert one_drive.device().missing
    return one_drive


def comes_back(world: AgentWorld) -> None:
    world.sim.put_back(SANITIZING)
    look(world)


def assert_as_it_was(world: AgentWorld) -> None:
    """What is left to do is what is to be done for any drive that was away: somebody vouches for it."""
    accept(world.ports, world.device().uuid, OPERATOR)
    world.assert_offered()


def look(world: AgentWorld) -> None:
    """A period of the agent."""
    for agent in world._agents:
        agent.period()


@pytest.mark.parametrize(
    ("effect", "error"),
    [
        (answer(409, "placement.resource_provider.cannot_delete"), PlacementConflict),
        (refuse, PlacementUnavailable),
    ],
)
def test_a_forget_that_is_refused_leaves_no_hold_behind(world: AgentWorld, effect: Any, error: type[Exception]) -> None:
    world.faults.add(effect, method="DELETE")
    with pytest.raises(error):
        forget(world.ports, world.device().uuid, OPERATOR)
    assert (world.device().forgetting, world.device().missing) == (False, True)
    assert world.inventory().reserved == 1
    comes_back(world)
    assert_as_it_was(world)


def test_a_drive_that_comes_back_while_it_is_forgotten_stays_and_the_operator_is_told(world: AgentWorld) -> None:
    at_delete(world, lambda: comes_back(world))
    with pytest.raises(Conflict, match="present on host-1"):
        forget(world.ports, world.device().uuid, OPERATOR)
    assert not world.device().forgetting
    look(world)
    assert_as_it_was(world)


def test_a_drive_that_is_held_while_it_is_forgotten_stays_and_stays_held(world: AgentWorld) -> None:
    device = world.device()
    at_delete(world, lambda: hold(world.ports, device.uuid, Cause(Actor.OPERATOR, "bob", reason="evidence")))
    with pytest.raises(Conflict, match=r"held \(evidence\)"):
        forget(world.ports, device.uuid, OPERATOR)
    assert (world.device().held, world.device().hold_reason) == (True, "evidence")


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("write", [EVENT, PROVIDER, ROW])
def test_a_forget_that_dies_at_any_write_is_finished_by_the_sweep(world: AgentWorld, write: int, applied: bool) -> None:
    uuid = world.device().uuid
    strike = death(write, applied=applied)
    with pytest.raises(Death):
        forget(strike.ports(world), uuid, OPERATOR)
    begun = applied or write != EVENT
    sweep(world.ports, world.context, "conductor-1")
    assert (world.find_device() is None) == begun
    comes_back(world)
    if begun:
        world.assert_offered()
    else:
        assert_as_it_was(world)


def test_a_forget_that_dies_before_the_drive_comes_back_is_undone_by_the_sweep(world: AgentWorld) -> None:
    uuid = world.device().uuid
    with pytest.raises(Death):
        forget(death(ROW, applied=False).ports(world), uuid, OPERATOR)
    comes_back(world)
    assert not world.offered()
    sweep(world.ports, world.context, "conductor-1")
    assert (world.device().uuid, world.device().forgetting) == (uuid, False)
    look(world)
    assert_as_it_was(world)


def test_a_forget_that_the_sweep_overtakes_succeeds_all_the_same(world: AgentWorld) -> None:
    uuid = world.device().uuid
    at_delete(world, lambda: sweep(world.ports, world.context, "conductor-1"))
    forget(world.ports, uuid, OPERATOR)
    assert world.find_device() is None
    with pytest.raises(NotFound):
        forget(world.ports, uuid, OPERATOR)


def at_delete(world: AgentWorld, happens: Callable[[], None]) -> None:
    """Let something happen between the two transactions of a forget: when its provider has been deleted."""
    world.faults.add(after(happens), method="DELETE", times=1)
