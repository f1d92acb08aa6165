"""One agent serves a host. A second one does not start, and one that was taken for dead ends."""

import logging
from dataclasses import replace
from datetime import timedelta

import pytest
from agentworld import HOST, SANITIZING, SECRET, AgentWorld

from autoclave.db.columns import utcnow
from autoclave.exceptions import InvalidConfiguration
from autoclave.lifecycle.operator import forget
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor, DeviceState

PERIOD = 60.0


@pytest.fixture
def world(one_drive: AgentWorld) -> AgentWorld:
    one_drive.overrides["agent", "periodic_interval"] = PERIOD
    return one_drive


def later(world: AgentWorld, periods: float) -> Ports:
    """The world some periods from now."""
    return replace(world.ports, clock=lambda: utcnow() + timedelta(seconds=periods * PERIOD))


def elsewhere(world: AgentWorld) -> None:
    """The next agent is configured for the same host, but lives on another machine."""
    world.overrides["agent", "data_dir"] = str(world.tmp_path / "elsewhere")


def test_a_second_agent_of_a_host_does_not_start_while_the_first_is_seen(world: AgentWorld) -> None:
    first = world.start()
    elsewhere(world)

    for _ in range(2):  # having been refused gives it no right
        second = world.build(later(world, 2))
        with pytest.raises(InvalidConfiguration, match=f"serves host {HOST}") as refused:
            second.init_host()
        assert "resource_provider_name" in str(refused.value)
        second.stop()

    first.period()
    assert not world.told_to_end.is_set()


def test_an_agent_that_was_killed_starts_again_at_once(world: AgentWorld) -> None:
    for _ in range(2):
        killed = world.build()
        killed.init_host()
        killed.stop()  # the kernel lets go of the lock, and nobody else is told

    world.start()
    world.assert_offered()


def test_an_agent_takes_the_place_of_one_that_was_not_seen_for_long(world: AgentWorld) -> None:
    world.build().init_host()
    elsewhere(world)

    world.build(later(world, 4)).init_host()


def test_an_agent_whose_place_was_taken_lets_go_of_its_drives_says_so_and_ends(
    caplog: pytest.LogCaptureFixture, world: AgentWorld
) -> None:
    taken_for_dead = world.start()
    bound = world.bind()
    elsewhere(world)
    world.build(later(world, 4)).init_host()

    with caplog.at_level(logging.CRITICAL):
        taken_for_dead.period()
    world.ask_to_clean()

    assert world.told_to_end.is_set()
    assert f"Another agent serves host {HOST}" in caplog.text
    assert world.device() == bound, "it has touched it"
    assert world.device().device_state is DeviceState.ALLOCATED
    assert world.sim.find(SANITIZING, SECRET)


def test_the_drives_of_a_host_that_is_lost_can_be_forgotten_once_an_agent_elsewhere_has_missed_them(
    world: AgentWorld,
) -> None:
    lost = world.start()
    world.bind()
    world.end(lost)
    elsewhere(world)
    world.sim.pull(SANITIZING)

    stand_in = world.start(later(world, 4))
    world.outcome()
    stand_in.period()
    world.assert_withheld()
    device = world.device()
    assert device.missing
    forget(world.ports, device.uuid, Cause(Actor.OPERATOR, "admin"))

    assert world.find_device() is None
    stand_in.period()
    assert world.find_device() is None
