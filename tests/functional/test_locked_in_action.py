"""The action that discovery has chosen is the one that is done, until the device is idle again (NVMe specification)."""

import threading
import time
from collections.abc import Iterator

import pytest
from agentworld import PATIENCE, SANITIZING, ZEROING, AgentWorld
from tenant import Tenant

from autoclave.agent.manager import AgentManager
from autoclave.db import history
from autoclave.drivers.base import CleanableDevice, CleanupControl, Evidence
from autoclave.drivers.nvme import NVMeDriver
from autoclave.rules.device_lifecycle import DeviceState
from autoclave.simulator.faults import Fault, FaultKind

BLOCK = '{"address": "*:41:00.*", "clear_action": "sanitize", "clear_strategy": "block"}'
ZERO = '{"address": "*:41:00.*", "clear_action": "zero"}'


def configured(world: AgentWorld, entry: str, agent: AgentManager | None = None) -> AgentManager:
    """An agent that was started with *entry*, in the place of *agent*."""
    if agent is not None:
        world.end(agent)
    world.overrides["nvme", "device_spec"] = [entry]
    return world.start()


def give_back(world: AgentWorld, tenant: Tenant) -> None:
    """The instance is deleted, and its drive erased."""
    tenant.delete()
    tenant.give_up()
    world.casts.deliver()
    assert world.outcome().device_state is DeviceState.AVAILABLE


def was_erased_by(world: AgentWorld) -> list[str | None]:
    with world.db.read() as tx:
        told = [line.reason for line in history.history(tx, world.device().uuid)]
    return [reason for reason in told if reason and reason.startswith("cleaned by")]


def test_another_policy_while_a_guest_has_the_drive_counts_from_its_next_idle_moment_on(one_drive: AgentWorld) -> None:
    agent = configured(one_drive, BLOCK)
    tenant = Tenant(one_drive)
    tenant.bind()
    tenant.write()
    agent = configured(one_drive, ZERO, agent)
    agent.period()
    assert one_drive.device().device_state is DeviceState.ALLOCATED
    assert one_drive.device().cleanup_action == "sanitize_block"

    give_back(one_drive, tenant)
    assert was_erased_by(one_drive) == ["cleaned by sanitize_block"]
    agent.period()
    assert one_drive.device().cleanup_action == "write_zeroes"

    tenant = Tenant(one_drive)
    tenant.bind()
    tenant.write()
    give_back(one_drive, tenant)
    assert was_erased_by(one_drive) == ["cleaned by sanitize_block", "cleaned by write_zeroes"]


def test_change_of_policy_is_a_line_in_the_history(one_drive: AgentWorld) -> None:
    agent = configured(one_drive, BLOCK)
    agent = configured(one_drive, ZERO, agent)
    agent.period()
    agent = configured(one_drive, '{"address": "*:41:00.*", "clear_action": "format"}', agent)
    configured(one_drive, BLOCK, agent)
    with one_drive.db.read() as tx:
        lines = history.history(tx, one_drive.device().uuid)
    first, second, third = [line.reason or "" for line in lines if line.event == "policy"]
    assert first == "cleanup_action is write_zeroes, and was sanitize_block"
    assert second.startswith("cleanup_action is none, and was write_zeroes; excluded: clear_action=format")
    assert third.startswith("cleanup_action is sanitize_block, and was none; no longer excluded: clear_action=format")


def test_a_drive_in_error_is_cleaned_again_by_the_same_action_unless_the_operator_has_chosen_another(
    one_drive: AgentWorld,
) -> None:
    agent = configured(one_drive, ZERO)
    one_drive.bind()
    one_drive.sim.set_fault(SANITIZING, Fault(FaultKind.ZERO_FAILS, 50))
    for _ in range(2):
        one_drive.clean()
        agent.period()
        one_drive.assert_withheld()
        assert one_drive.device().cleanup_action == "write_zeroes"

    configured(one_drive, BLOCK, agent)
    assert one_drive.device().cleanup_action == "sanitize_block"
    one_drive.sim.clear_faults()
    one_drive.clean()
    assert was_erased_by(one_drive) == ["cleaned by sanitize_block"]
    one_drive.assert_offered()


@pytest.fixture
def go_on(world: AgentWorld) -> Iterator[threading.Event]:
    """A driver whose erases end when this is set."""
    told = threading.Event()

    class Slow(NVMeDriver):
        def cleanup(self, device: CleanableDevice, control: CleanupControl | None = None) -> Evidence:
            assert told.wait(PATIENCE)
            return super().cleanup(device, control)

    world.vendor = Slow
    yield told
    told.set()


def test_no_more_drives_are_erased_at_a_time_than_the_operator_allows(
    world: AgentWorld, go_on: threading.Event
) -> None:
    world.overrides["agent", "max_concurrent_cleanups"] = 1
    world.start()
    for address in (SANITIZING, ZEROING):
        world.bind(address)
    for address in (SANITIZING, ZEROING):
        world.ask_to_clean(address)
    world.wait(lambda: world.device(SANITIZING).device_state is DeviceState.CLEANING, "the first begins")
    until = time.monotonic() + 1  # so that a second worker, if there was one, would have begun
    while time.monotonic() < until:
        assert world.device(ZEROING).device_state is DeviceState.PENDING_CLEANING
        time.sleep(0.05)
    go_on.set()
    for address in (SANITIZING, ZEROING):
        assert world.outcome(address).device_state is DeviceState.AVAILABLE
