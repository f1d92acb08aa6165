"""A drive that its serial number does not tell from others is offered only where its slot may identify it."""

from collections.abc import Iterator
from pathlib import Path

import agentworld
import pytest
from agentworld import SANITIZING, SECRET, ZEROING, AgentWorld, sanitizing_drive, zeroing_drive

from autoclave.db import devices as device_rows
from autoclave.db import history
from autoclave.exceptions import InvalidConfiguration
from autoclave.lifecycle.operator import accept
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor, DeviceState

NONE = "0000000000"
OPERATOR = Cause(Actor.OPERATOR, "admin")


@pytest.fixture
def nameless(tmp_path: Path) -> Iterator[AgentWorld]:
    """A host with a drive that has no serial number of its own, and another that has one."""
    made = AgentWorld(tmp_path, [sanitizing_drive(serial=NONE), zeroing_drive()])
    yield made
    made.close()


@pytest.fixture
def allowed(nameless: AgentWorld) -> AgentWorld:
    """The same, where the operator lets the slot identify the drive."""
    nameless.overrides["nvme", "identify_by_slot"] = [SANITIZING]
    return nameless


def test_drive_without_a_serial_number_is_excluded_with_the_way_out(nameless: AgentWorld) -> None:
    nameless.start()

    device = nameless.device()
    assert device.serial is None
    assert f"add identify_by_slot = {SANITIZING} to [nvme]" in (device.excluded_reason or "")
    assert nameless.inventory().reserved == 1
    nameless.assert_offered(ZEROING)


def test_drive_without_a_serial_number_ends_no_others_offer(
    allowed: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed.start()
    allowed.assert_offered()
    former = allowed.device()
    allowed.end_all()

    # Another host has a drive that says the same of itself.
    monkeypatch.setattr(agentworld, "HOST", "host-2")
    allowed.overrides["agent", "data_dir"] = str(allowed.tmp_path / "data-2")
    allowed.start()

    allowed.assert_offered()
    with allowed.db.read() as tx:
        first = device_rows.get(tx, former.uuid)
    assert first is not None
    assert (first.device_state, first.missing) == (DeviceState.AVAILABLE, False)


def test_drive_that_its_slot_identifies_is_erased_between_two_guests(allowed: AgentWorld) -> None:
    allowed.start()
    allowed.bind()
    assert allowed.sim.find(SANITIZING, SECRET)

    allowed.clean()

    assert not allowed.sim.find(SANITIZING, SECRET)
    allowed.assert_offered()


def test_another_model_in_a_slot_that_identifies_is_another_drive(allowed: AgentWorld) -> None:
    agent = allowed.start()
    allowed.sim.pull(SANITIZING)
    allowed.sim.insert(SANITIZING, sanitizing_drive(serial="11111111", model="Other Model"))

    agent.period()

    allowed.assert_withheld()
    assert "another drive is in the slot" in (allowed.device().state_reason or "")
    accept(allowed.ports, allowed.device().uuid, OPERATOR)
    agent.period()
    allowed.clean()
    allowed.assert_offered()


def test_drive_without_a_serial_number_in_the_slot_of_one_that_has_one_is_another(world: AgentWorld) -> None:
    agent = world.start()
    world.sim.pull(SANITIZING)
    world.sim.insert(SANITIZING, sanitizing_drive(serial=NONE))

    agent.period()

    world.assert_withheld()
    assert "another drive is in the slot" in (world.device().state_reason or "")


def test_drives_with_one_serial_number_are_both_offered_once_their_slots_identify_them(tmp_path: Path) -> None:
    both = [sanitizing_drive(serial="SHARED-1"), zeroing_drive(serial="SHARED-1", subsystem="nqn.of.the.second")]
    world = AgentWorld(tmp_path, both)
    agent = world.start()
    device = world.device(ZEROING)
    assert device.device_state is DeviceState.ERROR
    assert "add identify_by_slot with each of the addresses to [nvme]" in (device.state_reason or "")
    world.end(agent)

    world.overrides["nvme", "identify_by_slot"] = [SANITIZING, ZEROING]
    world.start()
    for address in (SANITIZING, ZEROING):
        if world.device(address).device_state is not DeviceState.AVAILABLE:
            world.clean(address)

    for address in (SANITIZING, ZEROING):
        world.assert_offered(address)
        assert world.device(address).serial is None
    world.bind(SANITIZING)
    world.assert_offered(ZEROING)
    world.close()


def test_ledger_has_no_drive_without_a_serial_number(allowed: AgentWorld) -> None:
    allowed.start()
    allowed.bind()

    with allowed.db.read() as tx:
        assert not history.among(tx, {"", NONE})


@pytest.mark.parametrize("entry", ["0000:41:00", "*", "nvme0"])
def test_slot_that_identifies_is_an_exact_address(allowed: AgentWorld, entry: str) -> None:
    allowed.overrides["nvme", "identify_by_slot"] = [entry]

    with pytest.raises(InvalidConfiguration, match="identify_by_slot"):
        allowed.start()
