"""Cleaning: what makes a device available again, and what does not."""

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from agentworld import PATIENCE, SANITIZING, SECRET, ZEROING, AgentWorld, zeroing_drive

from autoclave.agent import cleaning
from autoclave.agent.manager import AgentManager
from autoclave.drivers.base import CleanableDevice, CleanupControl, Evidence
from autoclave.drivers.nvme import NVMeDriver
from autoclave.rules.device_lifecycle import DeviceState
from autoclave.simulator.faults import EVERY_DRIVE, Fault, FaultKind
from autoclave.simulator.host_volumes import LVM_LABEL, MD_SUPERBLOCK
from autoclave.testing.placement.faults import refuse

pytestmark = pytest.mark.matrix

FAILURES = [
    pytest.param(SANITIZING, [FaultKind.SANITIZE_FAILS], id="the sanitize fails"),
    pytest.param(SANITIZING, [FaultKind.NVME_GARBAGE], id="nvme-cli answers garbage"),
    pytest.param(SANITIZING, [FaultKind.NVME_HANGS], id="nvme-cli hangs"),
    pytest.param(SANITIZING, [FaultKind.NVME_MISSING], id="nvme-cli is gone"),
    pytest.param(SANITIZING, [FaultKind.SANITIZE_FAILS, FaultKind.NVME_EXITS_ZERO], id="nvme-cli hides the failure"),
    pytest.param(SANITIZING, [FaultKind.SANITIZE_FAILS, FaultKind.NVME_JSON_ERRORS], id="nvme-cli fails in JSON"),
    pytest.param(ZEROING, [FaultKind.ZERO_FAILS], id="zeroing fails half-way"),
    pytest.param(ZEROING, [FaultKind.ZERO_LEAVES_DATA], id="zeroing reports success and leaves the data"),
]
DISAPPEARANCES = [
    pytest.param(SANITIZING, None, id="at the first command"),
    pytest.param(SANITIZING, 0, id="as soon as a sanitize runs"),
    pytest.param(SANITIZING, 50, id="half-way through a sanitize"),
    pytest.param(ZEROING, None, id="at the first command before zeroing"),
    pytest.param(ZEROING, 0, id="as soon as it is zeroed"),
]


@pytest.mark.parametrize("address", [SANITIZING, ZEROING])
def test_a_released_drive_is_erased_and_offered_again(world: AgentWorld, address: str) -> None:
    world.start()
    world.bind(address)
    assert not world.offered(address)

    world.clean(address)

    assert not world.sim.find(address, SECRET)
    world.assert_offered(address)


@pytest.mark.parametrize(("address", "kinds"), FAILURES)
def test_a_failed_clean_withholds_the_drive_until_a_clean_succeeds(
    world: AgentWorld, address: str, kinds: list[FaultKind]
) -> None:
    if FaultKind.NVME_HANGS in kinds:
        world.overrides["nvme", "command_timeout"] = 5.0
    world.start()
    world.bind(address)
    world.sim.set_fault(EVERY_DRIVE, *map(Fault, kinds))

    world.clean(address)
    world.assert_withheld(address)
    assert world.device(address).state_reason

    world.sim.clear_faults()
    world.clean(address)
    assert not world.sim.find(address, SECRET)
    world.assert_offered(address)


@pytest.mark.parametrize("address", [SANITIZING, ZEROING])
@pytest.mark.parametrize(
    ("fault", "bytes_on_it"),
    [(FaultKind.HOST_ACTIVATES, LVM_LABEL), (FaultKind.HOST_ASSEMBLES, MD_SUPERBLOCK)],
    ids=["volume group", "array"],
)
def test_volumes_that_came_with_a_drive_are_ended_for_its_erase(
    world: AgentWorld, address: str, fault: FaultKind, bytes_on_it: tuple[int, bytes]
) -> None:
    world.start()
    world.bind(address)
    world.sim.set_fault(address, Fault(fault))
    world.sim.give_to_guest(address)
    world.sim.write(address, *bytes_on_it)
    world.sim.give_back(address)

    world.clean(address)

    assert not world.sim.find(address, SECRET)
    world.assert_offered(address)


def test_operators_clean_does_not_end_volumes(world: AgentWorld) -> None:
    """While the drive waited in error, the operator may have made them."""
    world.start()
    world.bind()
    world.sim.set_fault(SANITIZING, Fault(FaultKind.HOST_ACTIVATES), Fault(FaultKind.VOLUMES_STAY))
    world.sim.give_to_guest(SANITIZING)
    world.sim.write(SANITIZING, *LVM_LABEL)
    world.sim.give_back(SANITIZING)
    world.clean()
    world.assert_withheld()
    assert "vgchange exited with 5" in str(world.device().state_reason)
    world.sim.clear_faults()

    world.clean()

    world.assert_withheld()
    assert "LVM volume vg0-data" in str(world.device().state_reason)
    assert world.sim.find(SANITIZING, SECRET)


def withheld_until_it_is_back_and_clean(world: AgentWorld, agent: AgentManager, address: str) -> None:
    world.assert_withheld(address)
    world.sim.clear_faults()
    world.sim.put_back(address)
    agent.period()
    world.assert_withheld(address)
    world.clean(address)
    assert not world.sim.find(address, SECRET)
    world.assert_offered(address)


@pytest.mark.parametrize(("address", "percent"), DISAPPEARANCES)
def test_a_drive_that_vanishes_while_it_is_cleaned_is_withheld_until_it_is_back_and_clean(
    world: AgentWorld, address: str, percent: float | None
) -> None:
    agent = world.start()
    world.bind(address)
    world.sim.set_fault(address, Fault(FaultKind.VANISHES, percent), Fault(FaultKind.SANITIZE_SECONDS, 2))

    world.clean(address)

    assert FaultKind.VANISHES not in world.sim.faults.active([address]), "it never vanished"
    withheld_until_it_is_back_and_clean(world, agent, address)


def test_a_drive_that_has_vanished_before_it_could_be_cleaned_is_withheld_until_it_is_back_and_clean(
    world: AgentWorld,
) -> None:
    agent = world.start()
    world.bind()
    world.sim.pull(SANITIZING)

    world.clean()

    withheld_until_it_is_back_and_clean(world, agent, SANITIZING)


def test_a_clean_that_hangs_ends_in_error_at_its_timeout_and_never_makes_the_drive_available(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.overrides["nvme", "cleanup_timeout"] = 1
    agent = world.start()
    world.bind()
    world.sim.set_fault(SANITIZING, Fault(FaultKind.SANITIZE_HANGS))

    world.clean()
    world.assert_withheld()
    warned = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert any(world.device().uuid in text and "in error" in text for text in warned)

    world.sim.clear_faults()  # the operation in the drive ends now, too late
    agent.period()
    world.assert_withheld()


@pytest.fixture
def go_on(world: AgentWorld) -> Iterator[threading.Event]:
    """A vendor's driver that heeds no deadline: it erases when this is set, and then says so."""
    told = threading.Event()

    class Stubborn(NVMeDriver):
        def cleanup(self, device: CleanableDevice, control: CleanupControl | None = None) -> Evidence:
            assert told.wait(PATIENCE)
            return super().cleanup(device)

    world.vendor = Stubborn
    yield told
    told.set()


def test_evidence_that_a_driver_brings_after_its_deadline_is_not_believed(
    world: AgentWorld, go_on: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaning, "GRACE", 0.1)
    world.overrides["nvme", "cleanup_timeout"] = 4
    agent = world.start()
    world.bind()

    given_up = world.clean()
    world.assert_withheld()
    assert "does not react" in (given_up.state_reason or "")

    refused = world.clean()
    world.assert_withheld()
    assert "still held by a cleanup" in (refused.state_reason or ""), "two workers on one drive"
    assert world.sim.find(SANITIZING, SECRET)

    go_on.set()
    world.wait(lambda: not world.sim.find(SANITIZING, SECRET), "the driver erases")
    worker = f"clean-{SANITIZING}"
    world.wait(lambda: worker not in {thread.name for thread in threading.enumerate()}, "it says so")
    agent.period()
    assert world.device() == refused
    world.assert_withheld()

    world.clean()
    world.assert_offered()


def test_of_two_requests_for_one_clean_one_wins_and_a_late_one_is_ignored(world: AgentWorld) -> None:
    world.start()
    world.bind()
    device = world.device()
    world.ports.cleaners.clean(world.context, device)
    world.casts.duplicate()
    world.casts.duplicate()

    world.casts.deliver()
    world.casts.deliver()
    done = world.outcome()
    world.assert_offered()
    assert done.state_version == device.state_version + 3, "allocated, pending, cleaning, available: once each"

    world.casts.deliver()
    assert world.outcome() == world.device() == done


def test_a_late_request_does_not_touch_the_next_instances_drive(world: AgentWorld) -> None:
    world.start()
    world.bind()
    world.ports.cleaners.clean(world.context, world.device())
    world.casts.duplicate()
    world.casts.deliver()
    world.outcome()

    bound = world.bind()
    world.casts.deliver()

    assert world.device() == bound
    assert world.sim.find(SANITIZING, SECRET)


def test_a_clean_drive_waits_for_placement_and_is_offered_once_it_answers(world: AgentWorld) -> None:
    agent = world.start()
    world.bind()
    world.faults.add(refuse)

    world.clean()
    device = world.device()
    assert device.device_state is DeviceState.AVAILABLE
    assert device.release_pending
    world.faults.clear()
    assert not world.offered()

    agent.period()
    world.assert_offered()


def test_a_namespace_that_cannot_be_made_fails_the_clean(tmp_path: Path) -> None:
    split = zeroing_drive(namespace_management=True, namespaces=2)
    world = AgentWorld(tmp_path, [split])
    try:
        world.start()
        world.bind(ZEROING)
        world.sim.set_fault(ZEROING, Fault(FaultKind.CREATE_NS_NO_ROOM))
        world.clean(ZEROING)
        world.assert_withheld(ZEROING)

        world.sim.clear_faults()
        world.clean(ZEROING)
        assert not world.sim.find(ZEROING, SECRET)
        world.assert_offered(ZEROING)
    finally:
        world.close()
