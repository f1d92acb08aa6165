"""An agent that dies at any write of a clean, and the next one that finds what it left."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from agentworld import SANITIZING, SECRET, AgentWorld
from sqlalchemy.engine import Connection

from autoclave.db.engine import Database
from autoclave.lifecycle.swap import Cause, swap
from autoclave.rules.device_states import Actor, DeviceState, Event

AGENT = Cause(Actor.AGENT, "host-1")


class Death(BaseException):
    """The process is gone: nothing that would handle an error runs."""


class MortalDatabase(Database):
    """Dies at the write that it is told, and answers nobody afterwards, as a dead process's would."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self._count = threading.Lock()
        self.writes_left: int | None = None
        self.dead = threading.Event()

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with self._count:
            if self.writes_left is not None:
                self.writes_left -= 1
                if self.writes_left <= 0:
                    self.dead.set()
        self._answer()
        with super().write() as tx:
            yield tx

    @contextmanager
    def read(self) -> Iterator[Connection]:
        self._answer()
        with super().read() as tx:
            yield tx

    def _answer(self) -> None:
        if self.dead.is_set():
            raise Death


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


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("write", range(1, 7))
def test_an_agent_that_dies_at_a_write_of_a_clean_leaves_nothing_dirty_on_offer(world: AgentWorld, write: int) -> None:
    mortal = MortalDatabase(f"sqlite:///{world.tmp_path / 'autoclave.db'}")
    agent = world.start(mortal)
    world.bind()
    mortal.writes_left = write
    world.ports.cleaners.clean(world.context, world.device())

    def ended() -> bool:
        return mortal.dead.is_set() or (world.device().device_state in (DeviceState.AVAILABLE, DeviceState.ERROR))

    try:
        world.casts.deliver()
    except Death:
        assert write == 1
    world.wait(ended, "the agent dies, or is done")
    uuid = world.device().uuid
    world.wait(lambda: not world.working(uuid), "the worker is gone")
    world.end(agent)
    mortal.dispose()
    if world.sim.find(SANITIZING, SECRET):
        assert world.device().device_state is not DeviceState.AVAILABLE, "a bind would win a dirty drive"
        assert not world.offered()

    successor = world.start()
    device = world.outcome()
    if device.device_state is DeviceState.ERROR:
        world.assert_withheld()
        world.clean()
    successor.period()
    assert not world.sim.find(SANITIZING, SECRET)
    world.assert_offered()
