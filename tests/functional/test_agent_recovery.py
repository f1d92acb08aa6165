"""An agent that dies at any write of a clean, and the next one that finds what it left."""

import contextlib
import logging
import subprocess
from collections.abc import Iterator
from dataclasses import replace

import pytest
import sqlalchemy as sa
from agentworld import HOST, SANITIZING, SECRET, AgentWorld
from strikes import Death, Strike, death
from tenant import Tenant

from autoclave.agent import cleaning, recovery
from autoclave.agent.manager import AgentManager
from autoclave.db import devices as device_rows
from autoclave.db.tables import devices
from autoclave.drivers.loader import FakeDriver
from autoclave.drivers.nvme import NVMeDriver
from autoclave.exceptions import RPCUnavailable
from autoclave.hardware.journal import ToolJournal
from autoclave.lifecycle.transitions import Cause, swap
from autoclave.rpc.port import AGENT_TOPIC
from autoclave.rules.device_lifecycle import Actor, DeviceState, Event
from autoclave.services.workers import AgentService
from autoclave.testing.placement.faults import refuse
from dbfixtures import make_device

pytestmark = pytest.mark.matrix

AGENT = Cause(Actor.AGENT, "host-1")
CLEAN_WRITES = 7
"""pending_cleaning; cleaning; twice progress; available; reserved=0; the debt is paid."""


@pytest.fixture
def world(one_drive: AgentWorld) -> AgentWorld:
    return one_drive


def killed_in_the_middle_of_a_clean(world: AgentWorld, state: DeviceState) -> None:
    """A guest has written on the drive; the agent that was to erase it came as far as *state*."""
    world.bind()
    with world.db.write() as tx:
        device = swap(tx, world.device(), Event.REQUEST_CLEANING, AGENT, {"agent_run_id": "a run that is dead"})
        if state is DeviceState.CLEANING:
            swap(tx, device, Event.START_CLEANING, AGENT)


@pytest.mark.parametrize("state", [DeviceState.PENDING_CLEANING, DeviceState.CLEANING])
def test_a_clean_that_its_agent_did_not_survive_is_an_error_for_the_next(world: AgentWorld, state: DeviceState) -> None:
    world.end(world.start())
    killed_in_the_middle_of_a_clean(world, state)

    world.start()

    world.assert_withheld()
    assert state.value in (world.device().state_reason or "")
    world.clean()
    assert not world.sim.find(SANITIZING, SECRET)
    world.assert_offered()


def test_recovery_is_after_the_rpc_server_and_before_the_first_discovery(
    world: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.end(world.start())
    killed_in_the_middle_of_a_clean(world, DeviceState.CLEANING)
    seen: list[tuple[str, bool, DeviceState | None]] = []

    def served() -> bool:
        try:
            return world.transport.find(AGENT_TOPIC, HOST, "1.1") is not None
        except RPCUnavailable:
            return False

    class Onlooker(NVMeDriver):
        def init_host(self) -> None:
            seen.append(("init_host", served(), world.device().device_state))
            super().init_host()

        def discover(self):  # type: ignore[no-untyped-def]
            seen.append(("discover", served(), world.device().device_state))
            return super().discover()

    monkeypatch.setattr("autoclave.services.workers.load_drivers", lambda conf, paths: [Onlooker(conf, paths)])
    service = AgentService(world.configuration(), world.ports, world.transport)
    try:
        service.start()
    finally:
        service.stop()

    assert seen == [("init_host", False, DeviceState.CLEANING), ("discover", True, DeviceState.ERROR)]


def test_the_devices_of_other_hosts_are_left_to_their_agents(world: AgentWorld) -> None:
    with world.db.write() as tx:
        cleaning = make_device(tx, hostname="host-2", device_state=DeviceState.CLEANING)
        unheld = make_device(tx, hostname="host-2", device_state=DeviceState.ALLOCATED)
    world.start().period()
    with world.db.read() as tx:
        assert device_rows.get(tx, cleaning.uuid) == cleaning
        assert device_rows.get(tx, unheld.uuid) == unheld


def test_a_drive_that_a_request_holds_is_left_to_it_by_a_restart(world: AgentWorld) -> None:
    agent = world.start()
    tenant = Tenant(world)
    tenant.bind()
    tenant.write()
    world.end(agent)

    world.start().period()

    assert world.device().device_state is DeviceState.ALLOCATED
    assert world.sim.find(SANITIZING, SECRET)


def test_what_is_not_cleaned_and_nobody_holds_is_offered_again_at_the_start(world: AgentWorld) -> None:
    world.vendor = FakeDriver
    world.end(world.start())
    with world.db.write() as tx:
        tx.execute(sa.update(devices).values(device_state=DeviceState.ALLOCATED))

    world.start()

    with world.db.read() as tx:
        [device] = device_rows.list_all(tx)
        [deployable] = device_rows.deployables_of(tx)
    assert device.device_state is DeviceState.AVAILABLE
    [record] = world.onlooker.get_inventories(deployable.rp_uuid).records.values()
    assert (record.total, record.reserved) == (16, 0)


def test_a_reserved_that_is_too_low_is_warned_of_and_raised_at_the_start(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.end(world.start())
    killed_in_the_middle_of_a_clean(world, DeviceState.CLEANING)
    unreserve(world)
    world.start()
    world.assert_withheld()

    agent = world._agents[0]
    world.end(agent)
    unreserve(world)
    with caplog.at_level(logging.WARNING):
        world.start()
    world.assert_withheld()
    [told] = [record.getMessage() for record in caplog.records if "must not be offered" in record.getMessage()]
    assert "has reserved=0, but device" in told


def test_a_reserved_that_somebody_raised_is_warned_of_and_left_alone(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.end(world.start())
    unreserve(world, 1)
    with caplog.at_level(logging.WARNING):
        world.start()
    assert any("taken for an operator's hold" in record.getMessage() for record in caplog.records)
    assert world.inventory().reserved == 1
    assert world.device().device_state is DeviceState.AVAILABLE


def test_a_clean_cut_short_is_an_error_though_placement_is_away_which_is_told_when_it_is_back(
    world: AgentWorld,
) -> None:
    world.end(world.start())
    killed_in_the_middle_of_a_clean(world, DeviceState.CLEANING)
    unreserve(world)
    away = world.faults.add(refuse, times=None)
    agent = world.start()
    assert world.device().device_state is DeviceState.ERROR
    away.times = away.struck

    agent.period()

    world.assert_withheld()


def unreserve(world: AgentWorld, reserved: int = 0) -> None:
    """Somebody writes ``reserved`` by hand."""
    provider = world.provider()
    [(name, record)] = world.onlooker.get_inventories(provider.uuid).records.items()
    generation = world.onlooker.get_provider(provider.uuid).generation
    world.onlooker.put_inventories(provider.uuid, generation, {name: replace(record, reserved=reserved)})


@pytest.fixture
def tool() -> Iterator[subprocess.Popen[bytes]]:
    """A tool that does not end by itself, in a session of its own as all of them are."""
    process = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_drive_that_a_tool_of_a_killed_agent_still_works_on_is_not_cleaned_until_the_tool_has_ended(
    world: AgentWorld, tool: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "SURVIVOR_PATIENCE", 0.1)
    world.end(world.start())
    killed_in_the_middle_of_a_clean(world, DeviceState.CLEANING)
    journal = ToolJournal(world.tmp_path / "data" / "tools" / HOST)
    journal.for_device(world.device().uuid).started(tool.pid, ["/usr/sbin/nvme", "write-zeroes"])

    world.start()
    world.assert_withheld()
    refused = world.clean()

    world.assert_withheld()
    assert "a tool of an earlier agent still works on the drive" in (refused.state_reason or "")
    assert world.sim.find(SANITIZING, SECRET)

    tool.kill()
    tool.wait()
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


def test_a_drive_released_while_its_agent_stops_is_cleaned_by_the_next(world: AgentWorld) -> None:
    agent = world.start()
    world.bind()

    agent.stop()
    world.ask_to_clean()

    assert world.device().device_state is DeviceState.ALLOCATED
    world.end(agent)
    world.start()
    world.outcome()
    assert not world.sim.find(SANITIZING, SECRET)
    world.assert_offered()


def test_a_journal_that_cannot_be_read_keeps_one_drive_from_being_cleaned_and_says_so(world: AgentWorld) -> None:
    world.end(world.start())
    world.bind()
    journal = world.tmp_path / "data" / "tools" / HOST / f"{world.device().uuid}.json"
    journal.parent.mkdir(parents=True, exist_ok=True)
    journal.write_text("")

    agent = world.start()
    world.outcome()
    agent.period()

    world.assert_withheld()
    assert str(journal) in (world.device().state_reason or "")
    journal.unlink()
    world.clean()
    assert not world.sim.find(SANITIZING, SECRET)
    world.assert_offered()


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No progress is written on account of the time, so that the writes of a clean can be counted."""
    monkeypatch.setattr(cleaning, "PROGRESS_INTERVAL", 3600)


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
