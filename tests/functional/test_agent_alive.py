"""An agent says that it is alive while it looks at its host, however long that takes; but not if it is stuck there."""

import logging
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import pytest
from agentworld import HOST, PATIENCE, SANITIZING, AgentWorld

from autoclave.agent.manager import AgentManager
from autoclave.conductor.compute_hosts import ComputeHosts
from autoclave.conf.agent import patience_with_agents
from autoclave.db import agents
from autoclave.db.columns import utcnow
from autoclave.lifecycle.ports import Ports
from autoclave.rpc.agent_api import AgentAPI
from autoclave.services.workers import AgentService
from autoclave.testing.placement.faults import before

PERIOD = timedelta(minutes=1)
HANGING = timedelta(minutes=15)


class Life:
    """One agent, and the time that it and everybody else live in."""

    def __init__(self, world: AgentWorld) -> None:
        world.overrides["agent", "periodic_interval"] = PERIOD.total_seconds()
        self.world = world
        self.now = utcnow()
        self.ports: Ports = replace(world.ports, clock=lambda: self.now)
        self.agent: AgentManager = world.start(self.ports)

    @property
    def unheard(self) -> str | None:
        """What conductors say of its host."""
        patience = patience_with_agents(self.world.configuration())
        return ComputeHosts(self.ports, AgentAPI(self.world.transport), patience).unheard(HOST)

    def pass_time(self, how_long: timedelta) -> None:
        """Time passes, and the heart beats."""
        end = self.now + how_long
        while self.now < end:
            self.now += PERIOD
            self.agent.beat()

    def during_discovery(self, what: Callable[[], None]) -> None:
        """A period, in the middle of whose discovery something happens."""
        fault = self.world.faults.add(before(what), times=1)
        self.world.sim.pull(SANITIZING)
        self.agent.period()
        assert fault.struck == 1


@pytest.fixture
def life(one_drive: AgentWorld) -> Life:
    return Life(one_drive)


def test_a_host_whose_agent_looks_at_it_for_longer_than_three_periods_is_not_taken_for_dead(life: Life) -> None:
    seen: list[str | None] = []

    def long_look() -> None:
        for _ in range(8):
            life.pass_time(PERIOD)
            seen.append(life.unheard)

    life.during_discovery(long_look)
    assert seen == [None] * 8


def test_an_agent_whose_heart_does_not_beat_is_taken_for_dead(life: Life) -> None:
    life.now += 4 * PERIOD
    assert life.unheard == "has an agent that was last seen 240 s ago"


def test_an_agent_that_is_stuck_in_its_look_is_not_reported_alive_until_it_goes_on(
    life: Life, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[str | None] = []

    def hangs() -> None:
        life.pass_time(HANGING)
        seen.append(life.unheard)

    with caplog.at_level(logging.ERROR):
        life.during_discovery(hangs)
    assert seen == ["has an agent that was last seen 360 s ago"], "it was said until it had hung for ten minutes"
    assert "it is stuck" in caplog.text
    life.pass_time(PERIOD)
    assert life.unheard is None


def test_one_that_is_stuck_ends_when_another_has_come_to_serve_its_host(life: Life) -> None:
    def hangs() -> None:
        life.pass_time(HANGING)
        assert not life.world.told_to_end.is_set()
        life.world.overrides["agent", "data_dir"] = str(life.world.tmp_path / "elsewhere")
        life.world.build(life.ports).init_host()
        life.pass_time(PERIOD)
        assert life.world.told_to_end.is_set()

    life.during_discovery(hangs)


def test_the_service_says_so_from_before_its_first_look_on(one_drive: AgentWorld) -> None:
    one_drive.overrides["agent", "periodic_interval"] = 0.1
    looked, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        looked.set()
        assert go_on.wait(PATIENCE)

    def last_seen() -> datetime:
        with one_drive.db.read() as tx:
            found = agents.get(tx, HOST)
        assert found is not None
        return found.last_seen

    one_drive.faults.add(before(wait), times=1)
    service = AgentService(one_drive.configuration(), one_drive.ports, one_drive.transport)
    starting = threading.Thread(target=service.start)
    starting.start()
    try:
        assert looked.wait(PATIENCE)
        for _ in range(3):
            then = last_seen()
            one_drive.wait(lambda then=then: last_seen() > then, "it says again that it is alive")
    finally:
        go_on.set()
        starting.join(PATIENCE)
        service.stop()
