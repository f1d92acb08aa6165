"""What must not be offered is told to Placement by any conductor, too: the agent of the host may be gone for good."""

from collections.abc import Callable
from pathlib import Path

import pytest
from agentworld import HOST, SANITIZING, ZEROING, AgentWorld
from tenant import conductor

from autoclave.db.tables import devices
from autoclave.lifecycle import operator, reserve
from autoclave.lifecycle.reclaim import distrust
from autoclave.lifecycle.reserve import Withdrawals
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor, DeviceState
from autoclave.testing.placement.faults import answer, refuse

OPERATOR = Cause(Actor.OPERATOR, "ann", "req-1", "smells")

Word = Callable[[AgentWorld, str], object]
WORDS: dict[str, Word] = {
    "disable": lambda world, uuid: operator.disable(world.ports, uuid, OPERATOR),
    "hold": lambda world, uuid: operator.hold(world.ports, uuid, OPERATOR),
    "distrust": lambda world, uuid: distrust(world.db, world.placement, uuid, world.device().state_version, OPERATOR),
}


@pytest.fixture
def world(one_drive: AgentWorld) -> AgentWorld:
    """The drive is offered, and its host's agent is gone."""
    one_drive.end(one_drive.start())
    return one_drive


@pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
def test_a_device_of_a_host_without_an_agent_is_offered_no_more_though_placement_was_away(
    world: AgentWorld, word: Word
) -> None:
    world.faults.add(refuse)
    word(world, world.device().uuid)
    sweeper = conductor(world)
    sweeper.sweep()
    assert world.inventory().reserved == 0
    world.faults.clear()
    sweeper.sweep()
    assert world.inventory().reserved == 1


def test_it_is_told_once_by_each_conductor_and_again_when_it_is_withdrawn_again(world: AgentWorld) -> None:
    uuid = world.device().uuid
    operator.disable(world.ports, uuid, OPERATOR)
    sweeper = conductor(world)
    sweeper.sweep()
    told = world.onlooker.get_inventories(world.provider().uuid).generation
    sweeper.sweep()
    assert world.onlooker.get_inventories(world.provider().uuid).generation == told

    operator.enable(world.ports, uuid, OPERATOR)
    sweeper.sweep()
    world.assert_offered()
    world.faults.add(refuse)
    operator.disable(world.ports, uuid, OPERATOR)
    world.faults.clear()
    sweeper.sweep()
    assert world.inventory().reserved == 1


def test_a_round_tells_of_a_few_and_the_next_of_the_rest(world: AgentWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reserve, "ROUND", 0)
    world.faults.add(refuse)
    operator.hold(world.ports, world.device().uuid, OPERATOR)
    world.faults.clear()
    withdrawals = Withdrawals(world.ports)
    withdrawals.tell()
    assert world.inventory().reserved == 0
    monkeypatch.setattr(reserve, "ROUND", 1)
    withdrawals.tell()
    assert world.inventory().reserved == 1


def test_a_device_that_has_no_state_yet_is_left_to_the_backfill(world: AgentWorld) -> None:
    with world.db.write() as tx:
        mine = devices.update().where(devices.c.hostname == HOST, devices.c.pci_address == SANITIZING)
        tx.execute(mine.values(device_state=None))
    sweeper = conductor(world)
    sweeper.sweep()
    assert world.inventory().reserved == 0
    sweeper.init_host()
    assert world.device().device_state is DeviceState.AVAILABLE
    world.assert_offered()


def test_a_device_whose_provider_is_gone_keeps_no_sweep_from_the_others(world: AgentWorld) -> None:
    operator.disable(world.ports, world.device().uuid, OPERATOR)
    world.onlooker.delete_provider(world.provider().uuid)
    sweeper = conductor(world)
    sweeper.sweep()
    world.faults.clear()
    sweeper.sweep()
    assert list(world.faults.calls) == []


def test_a_device_that_placement_refuses_keeps_no_other_from_being_told_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reserve, "ROUND", 1)
    world = AgentWorld(tmp_path)
    try:
        world.start()
        world.faults.add(refuse)
        for address in (SANITIZING, ZEROING):
            operator.disable(world.ports, world.device(address).uuid, OPERATOR)
        world.faults.clear()
        world.faults.add(answer(400), method="PUT", path=world.provider(SANITIZING).uuid)
        withdrawals = Withdrawals(world.ports)
        withdrawals.tell()
        withdrawals.tell()
        assert (world.inventory(SANITIZING).reserved, world.inventory(ZEROING).reserved) == (0, 1)
        world.faults.clear()
        withdrawals.tell()
        assert world.inventory(SANITIZING).reserved == 1
    finally:
        world.close()
