"""The layout of a drive is recorded when it is first offered, and nothing is offered whose layout is another one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from agentworld import HOST, SANITIZING, SECRET, AgentWorld, sanitizing_drive

from autoclave.api.admin.devices import waiting_for
from autoclave.db import devices as device_rows
from autoclave.drivers.base import CleanableDevice, CleanupControl, Evidence
from autoclave.drivers.nvme import NVMeDriver
from autoclave.exceptions import Conflict
from autoclave.lifecycle import operator
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor, DeviceState
from autoclave.rules.drive_layout import DriveLayout
from autoclave.simulator.drive_spec import MIB
from autoclave.simulator.faults import Fault, FaultKind

FACTORY = DriveLayout.from_fields({"namespaces": [{"blocks": 4 * MIB // 512, "block_bytes": 512}]})
METADATA, LARGE_BLOCKS = 7, 4
"""LBA formats of a simulated drive: 4096 bytes with 64 of metadata, and 4096 bytes."""
OPERATOR = Cause(Actor.OPERATOR, "admin")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., AgentWorld]]:
    """Makes a world of one drive that has Format NVM and nothing else to change its layout."""
    made = []

    def make(**features: Any) -> AgentWorld:
        wanted = {"namespace_management": False, "format_nvm": True, **features}
        made.append(AgentWorld(tmp_path, [sanitizing_drive(**wanted)]))
        return made[0]

    yield make
    for world in made:
        world.close()


def recorded(world: AgentWorld) -> DriveLayout | None:
    return DriveLayout.from_json(world.device().layout)


def forget_record(world: AgentWorld) -> None:
    """Make the row one that an agent of the release before has written."""
    with world.db.write() as tx:
        device_rows.update(tx, world.device(), {"layout": None})


def shown_size(world: AgentWorld) -> int:
    return int((world.sim.paths.sysfs / "block/nvme0n1/size").read_text()) * 512


def test_layout_is_recorded_when_a_drive_is_first_offered(make: Callable[..., AgentWorld]) -> None:
    world = make()
    world.start()
    world.assert_offered()
    assert recorded(world) == FACTORY


def test_row_without_a_record_takes_it_when_available(make: Callable[..., AgentWorld]) -> None:
    """A row of the release before: what a guest makes of its drive is not recorded."""
    world = make()
    agent = world.start()
    world.bind()
    forget_record(world)
    agent.period()
    assert recorded(world) is None
    world.sim.set_fault(SANITIZING, Fault(FaultKind.SANITIZE_FAILS))
    world.clean()
    world.assert_withheld()
    agent.period()
    assert recorded(world) is None
    world.sim.clear_faults()
    world.clean()
    forget_record(world)
    agent.period()
    assert recorded(world) == FACTORY
    world.assert_offered()


@pytest.mark.parametrize("lba_format", [METADATA, LARGE_BLOCKS])
@pytest.mark.parametrize("features", [{}, {"block": False, "write_zeroes": True}, {"block": False}])
def test_tenants_format_is_undone_before_the_next_offer(
    make: Callable[..., AgentWorld], lba_format: int, features: dict[str, bool]
) -> None:
    """With metadata, the host shows a disk of size 0: a sanitize handed it on, and a zeroing failed for ever."""
    world = make(**features)
    agent = world.start()
    world.bind()
    world.sim.format(SANITIZING, lba_format)
    world.clean()
    world.assert_offered()
    assert shown_size(world) == 4 * MIB
    assert recorded(world) == FACTORY
    assert not world.sim.find(SANITIZING, SECRET)
    agent.period()
    world.assert_offered()


def test_format_that_cannot_be_restored_is_an_error_until_accepted(make: Callable[..., AgentWorld]) -> None:
    """The operator restores the format, or accepts the found one, which is recorded anew."""
    world = make()
    agent = world.start()
    world.bind()
    world.sim.format(SANITIZING, LARGE_BLOCKS)
    world.sim.set_fault(SANITIZING, Fault(FaultKind.FORMAT_REFUSED))
    world.clean()
    world.assert_withheld()
    reason = world.device().state_reason or ""
    assert "namespace 1 has LBA format 4 (4096+0), recorded is 0 (512+0)" in reason
    agent.period()
    found = DriveLayout.from_json(world.device().found_layout)
    assert found is not None
    assert found.namespaces[0].block_bytes == 4096
    world.clean()
    world.assert_withheld()

    accepted = operator.accept(world.ports, world.device().uuid, OPERATOR)
    assert (accepted.device_state, accepted.found_layout) == (DeviceState.ERROR, None)
    world.clean()
    world.assert_offered()
    assert recorded(world) == found
    agent.period()
    world.assert_offered()


def test_layout_on_record_leaves_nothing_to_accept(make: Callable[..., AgentWorld]) -> None:
    """An operator who formats the drive by hand ends the difference."""
    world = make()
    agent = world.start()
    world.bind()
    world.sim.format(SANITIZING, METADATA)
    world.sim.set_fault(SANITIZING, Fault(FaultKind.FORMAT_REFUSED))
    world.clean()
    agent.period()
    assert world.device().found_layout
    world.sim.clear_faults()
    world.sim.format(SANITIZING, 0)
    agent.period()
    assert world.device().found_layout is None
    with pytest.raises(Conflict, match="nothing to accept"):
        operator.accept(world.ports, world.device().uuid, OPERATOR)
    world.clean()
    world.assert_offered()


def test_layout_of_a_pulled_drive_is_not_accepted(make: Callable[..., AgentWorld]) -> None:
    """What was found in the slot is gone with its drive."""
    world = make()
    agent = world.start()
    agent.period()
    world.sim.format(SANITIZING, LARGE_BLOCKS)
    agent.period()
    assert world.device().found_layout
    world.sim.pull(SANITIZING)
    agent.period()
    assert (world.device().missing, world.device().found_layout) == (True, None)
    with pytest.raises(Conflict, match="nothing to accept"):
        operator.accept(world.ports, world.device().uuid, OPERATOR)


def test_layout_that_changes_while_available_ends_the_offer(make: Callable[..., AgentWorld]) -> None:
    """A program on the host has formatted the drive: the next tenant would get its layout."""
    world = make()
    agent = world.start()
    agent.period()
    world.assert_offered()
    world.sim.format(SANITIZING, LARGE_BLOCKS)
    agent.period()
    world.assert_withheld()
    assert "namespace 1 has LBA format 4 (4096+0), recorded is 0 (512+0)" in (world.device().state_reason or "")
    world.clean()
    world.assert_offered()
    assert world.device().found_layout is None
    assert recorded(world) == FACTORY


def test_changed_layout_is_reported_once(make: Callable[..., AgentWorld]) -> None:
    """The reason says what happened; what waits says what to do about it. Neither repeats the other."""
    world = make()
    agent = world.start()
    agent.period()
    world.sim.format(SANITIZING, LARGE_BLOCKS)
    agent.period()
    changed = "namespace 1 has LBA format 4 (4096+0), recorded is 0 (512+0)"
    assert world.device().state_reason == f"its layout was changed while it was available: {changed}"
    assert waiting_for(world.device()) == (
        f"It is not proved clean (its layout was changed while it was available: {changed}): clean it again, which "
        f"restores the layout on record, or accept the found layout by `autoclave device accept {HOST}/{SANITIZING}` "
        "before."
    )


def test_layout_without_a_namespace_is_not_offered_for_accept(make: Callable[..., AgentWorld]) -> None:
    """What cannot be recorded cannot be accepted: the reason names the clean alone."""
    world = make(namespace_management=True)
    agent = world.start()
    agent.period()
    with world.sim.drive(SANITIZING) as drive:
        drive.delete_namespace(1)
        world.sim.sync_namespaces(drive)
    agent.period()
    world.assert_withheld()
    waits = waiting_for(world.device()) or ""
    assert "has no namespace" in waits
    assert "clean it again" in waits
    assert "accept" not in waits
    world.clean()
    world.assert_offered()
    assert recorded(world) == FACTORY


def test_clean_without_a_record_records_what_it_has_proved(make: Callable[..., AgentWorld]) -> None:
    """The guest of an upgraded row may come and go before the first look."""
    world = make()
    world.start()
    world.bind()
    forget_record(world)
    world.clean()
    assert recorded(world) == FACTORY


def test_service_killed_in_an_erase_leaves_the_record(make: Callable[..., AgentWorld]) -> None:
    """The format was restored, and the agent dies before the proof: the next clean ends with the same layout."""
    world = make()
    agent = world.start()
    world.bind()
    world.sim.format(SANITIZING, METADATA)
    world.sim.set_fault(SANITIZING, Fault(FaultKind.SANITIZE_HANGS))
    world.ask_to_clean()
    world.wait(lambda: "sanitize" in (world.device().progress_step or ""), "the sanitize has begun")
    world.end(agent)
    world.start()
    world.assert_withheld()
    assert recorded(world) == FACTORY
    world.sim.clear_faults()
    world.clean()
    world.assert_offered()
    assert recorded(world) == FACTORY
    assert shown_size(world) == 4 * MIB


def test_zeroed_drive_of_two_namespaces_is_offered_with_one(make: Callable[..., AgentWorld]) -> None:
    """The specification's single namespace becomes the record, and the next clean has nothing to restore."""
    world = make(block=False, write_zeroes=True, namespace_management=True, namespaces=2)
    agent = world.start()
    for _ in range(2):
        world.bind()
        world.clean()
        world.assert_offered()
        agent.period()
        world.assert_offered()
        assert recorded(world) == FACTORY


def test_erase_of_a_vendors_driver_has_its_layout_recorded_anew(make: Callable[..., AgentWorld]) -> None:
    """Its evidence names no layout, so what it made of the drive is the layout that is offered."""

    class Vendors(NVMeDriver):
        def cleanup(self, device: CleanableDevice, control: CleanupControl | None = None) -> Evidence:
            evidence = super().cleanup(device, control)
            world.sim.format(SANITIZING, LARGE_BLOCKS)
            return {name: value for name, value in evidence.items() if name != "layout"}

    world = make()
    world.vendor = Vendors
    agent = world.start()
    world.bind()
    world.clean()
    assert recorded(world) is None
    agent.period()
    world.assert_offered()
    now = recorded(world)
    assert now is not None
    assert now.namespaces[0].block_bytes == 4096


def test_another_drive_brings_no_record(make: Callable[..., AgentWorld]) -> None:
    """Accepting another drive in the slot drops the record; the new drive's layout is recorded anew."""
    world = make()
    agent = world.start()
    world.sim.pull(SANITIZING)
    agent.period()
    world.sim.insert(SANITIZING, sanitizing_drive(serial="SER-NEW", size_bytes=2 * MIB))
    agent.period()
    accepted = operator.accept(world.ports, world.device().uuid, OPERATOR)
    assert accepted.layout is None
    world.clean()
    world.assert_offered()
    now = recorded(world)
    assert now is not None
    assert now.namespaces[0].blocks == 2 * MIB // 512


def test_dirty_drive_takes_its_record_to_another_slot(make: Callable[..., AgentWorld]) -> None:
    """It was moved with its guest's format: that is not what the new slot records."""
    slot = "0000:44:00.0"
    world = make()
    agent = world.start()
    world.bind()
    world.sim.format(SANITIZING, METADATA)
    world.sim.pull(SANITIZING)
    agent.period()
    world.sim.insert(slot, sanitizing_drive(slot, namespace_management=False, format_nvm=True))
    world.overrides["nvme", "device_spec"] = ['{"address": "*"}']
    world.end(agent)
    world.start()
    world.assert_withheld(slot)
    world.clean(slot)
    world.assert_offered(slot)
    assert DriveLayout.from_json(world.device(slot).layout) == FACTORY
