"""What somebody else may have written to is offered no more: the agent looks, and believes no silence."""

import shutil
from pathlib import Path

import pytest
from agentworld import HOST, SANITIZING, SECRET, ZEROING, AgentWorld, sanitizing_drive

from autoclave.agent.manager import AgentManager
from autoclave.api.admin.devices import waiting_for
from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import history
from autoclave.drivers.nvme import NVMeDriver
from autoclave.exceptions import Conflict
from autoclave.lifecycle.operator import accept, forget
from autoclave.lifecycle.transitions import Cause, swap
from autoclave.rules.device_lifecycle import Actor, ARQState, DeviceState, Event
from autoclave.simulator.faults import Fault, FaultKind
from autoclave.testing.placement.faults import refuse
from dbfixtures import make_arq

OPERATOR = Cause(Actor.OPERATOR, "admin")


def mount(world: AgentWorld, disk: str) -> str:
    """Have the host mount a disk; returns what the table of mounts was before."""
    table = world.sim.paths.proc / "self/mountinfo"
    before = table.read_text()
    table.write_text(f"{before}99 1 259:99 / /srv/data rw - ext4 /dev/{disk} rw\n")
    return before


def unmount(world: AgentWorld, before: str) -> None:
    (world.sim.paths.proc / "self/mountinfo").write_text(before)


def add_second_path(world: AgentWorld) -> Path:
    """A second controller reaches the drive; returns where sysfs shows it."""
    [controller] = (world.sim.paths.sysfs / "bus/pci/devices" / SANITIZING / "nvme").iterdir()
    subsystems = world.sim.paths.sysfs / "class/nvme-subsystem"
    [subsystem] = [each for each in subsystems.iterdir() if (each / controller.name).exists()]
    second = subsystem / "nvme9"
    second.mkdir()
    (second / "state").write_text("live\n")
    return second


def assert_only_an_erase_brings_it_back(world: AgentWorld, agent: AgentManager) -> None:
    """It holds what somebody wrote, it is withheld for good, and a clean makes it fit to be offered."""
    agent.period()
    agent.period()
    world.assert_withheld()
    assert world.sim.find(SANITIZING, SECRET)
    world.clean()
    assert not world.sim.find(SANITIZING, SECRET)
    world.assert_offered()


def test_a_drive_that_the_host_used_is_not_offered_again_before_it_was_erased(world: AgentWorld) -> None:
    agent = world.start()
    before = mount(world, "nvme0n1")
    world.sim.fill(SANITIZING, SECRET)

    agent.period()
    world.assert_withheld()
    device = world.device()
    assert not device.missing
    assert "this host uses it (nvme0n1 is mounted on /srv/data (ext4))" in (waiting_for(device) or "")
    world.assert_offered(ZEROING)

    unmount(world, before)
    assert_only_an_erase_brings_it_back(world, agent)


def test_the_hosts_own_disk_is_never_taken_on_as_a_device(world: AgentWorld) -> None:
    mount(world, "nvme0n1")
    world.start().period()
    assert world.find_device(SANITIZING) is None
    assert world.onlooker.find_provider(f"{HOST}_{SANITIZING}") is None


def test_a_drive_that_a_second_controller_reached_is_not_offered_again_before_it_was_erased(
    one_drive: AgentWorld,
) -> None:
    agent = one_drive.start()
    second = add_second_path(one_drive)
    one_drive.sim.fill(SANITIZING, SECRET)

    agent.period()
    one_drive.assert_withheld()
    assert "also reached through nvme9" in (one_drive.device().state_reason or "")

    shutil.rmtree(second)
    assert_only_an_erase_brings_it_back(one_drive, agent)


def test_a_new_drive_that_a_second_controller_reaches_is_taken_on_in_error(one_drive: AgentWorld) -> None:
    add_second_path(one_drive)
    one_drive.start()
    one_drive.assert_withheld()
    assert "also reached through nvme9" in (one_drive.device().state_reason or "")


def test_a_drive_that_another_driver_had_is_not_offered_again_before_it_was_erased(one_drive: AgentWorld) -> None:
    agent = one_drive.start()
    one_drive.sim.fill(SANITIZING, SECRET)
    one_drive.sim.give_to_guest(SANITIZING)  # by hand: no request of ours has it

    agent.period()
    one_drive.assert_withheld()
    assert "bound to vfio-pci" in (one_drive.device().state_reason or "")

    one_drive.sim.give_back(SANITIZING)
    assert_only_an_erase_brings_it_back(one_drive, agent)


def test_a_drive_that_a_guest_of_ours_has_stays_allocated(one_drive: AgentWorld) -> None:
    agent = one_drive.start()
    with one_drive.db.write() as tx:
        device = swap(tx, one_drive.device(), Event.BIND, Cause(Actor.CONDUCTOR, "conductor-1"))
        arq = make_arq(tx, device_id=device.id)
        arq_rows.swap(tx, arq.uuid, [arq.state], ARQState.BOUND, {})
    one_drive.sim.give_to_guest(SANITIZING)

    agent.period()

    assert one_drive.device().device_state is DeviceState.ALLOCATED


def test_a_drive_that_a_guest_has_is_not_erased_whatever_its_state_says(one_drive: AgentWorld) -> None:
    one_drive.start()
    with one_drive.db.write() as tx:
        device = swap(tx, one_drive.device(), Event.DISTRUST, Cause(Actor.AGENT, HOST))
        arq = make_arq(tx, device_id=device.id)
        arq_rows.swap(tx, arq.uuid, [arq.state], ARQState.BOUND, {})
    one_drive.sim.fill(SANITIZING, SECRET)

    assert one_drive.clean().device_state is DeviceState.ERROR

    assert one_drive.sim.find(SANITIZING, SECRET)


def test_a_drive_that_no_driver_has_at_the_moment_stays_as_it_is(one_drive: AgentWorld) -> None:
    agent = one_drive.start()
    (one_drive.sim.paths.sysfs / "bus/pci/devices" / SANITIZING / "driver").unlink()

    agent.period()

    one_drive.assert_offered()


def test_what_was_seen_of_a_guest_says_nothing_of_the_drive_that_was_erased_since(
    one_drive: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = one_drive.start()
    look = NVMeDriver.discover
    one_drive.bind()
    one_drive.sim.give_to_guest(SANITIZING)

    def slow_look(driver: NVMeDriver) -> object:
        seen = look(driver)
        if one_drive.device().device_state is DeviceState.ALLOCATED:
            one_drive.sim.give_back(SANITIZING)
            one_drive.clean()
        return seen

    monkeypatch.setattr(NVMeDriver, "discover", slow_look)
    agent._discovery.run(one_drive.context)

    one_drive.assert_offered()


def test_a_function_that_is_dead_when_the_agent_starts_keeps_its_drive_on_record(one_drive: AgentWorld) -> None:
    one_drive.end(one_drive.start())
    vendor = one_drive.sim.paths.sysfs / "bus/pci/devices" / SANITIZING / "vendor"
    known = vendor.read_text()
    vendor.write_text("0xffff\n")

    agent = one_drive.start()
    assert not one_drive.device().missing

    vendor.write_text(known)
    agent.period()
    one_drive.assert_offered()


def test_a_dirty_drive_is_known_by_the_serial_number_that_is_found_even_if_the_row_has_none(
    one_drive: AgentWorld,
) -> None:
    agent = one_drive.start()
    device = one_drive.device()
    assert device.serial is not None
    with one_drive.db.write() as tx:
        device_rows.update(tx, device, {"serial": None, "drive_model": None})
        history.add(tx, device.serial, device.drive_model or "", device.uuid)

    agent.period()

    one_drive.assert_withheld()
    assert one_drive.device().serial == device.serial


def test_a_drive_that_was_away_is_not_offered_before_it_was_erased_or_vouched_for(one_drive: AgentWorld) -> None:
    agent = one_drive.start()
    leave(one_drive, agent)
    one_drive.sim.put_back(SANITIZING)
    one_drive.sim.fill(SANITIZING, SECRET)

    agent.period()
    assert "gone from the host for a while" in (waiting_for(one_drive.device()) or "")
    assert_only_an_erase_brings_it_back(one_drive, agent)
    assert one_drive.device().found_serial is None


def test_an_operator_does_not_vouch_for_what_a_guest_has_had_since(one_drive: AgentWorld) -> None:
    agent = one_drive.start()
    leave(one_drive, agent)
    one_drive.sim.put_back(SANITIZING)
    agent.period()
    one_drive.clean()
    one_drive.bind()
    one_drive.sim.set_fault(SANITIZING, Fault(FaultKind.SANITIZE_FAILS))
    one_drive.clean()

    with pytest.raises(Conflict, match="nothing to accept"):
        accept(one_drive.ports, one_drive.device().uuid, OPERATOR)
    one_drive.assert_withheld()


def test_an_operator_does_not_vouch_for_what_another_slot_has_had_since(one_drive: AgentWorld) -> None:
    agent = one_drive.start()
    leave(one_drive, agent)
    one_drive.sim.put_back(SANITIZING)
    agent.period()
    device = one_drive.device()
    with one_drive.db.write() as tx:
        history.remove(tx, device.serial or "", device.drive_model or "")
        history.add(tx, device.serial or "", device.drive_model or "", "another slot")

    with pytest.raises(Conflict, match="another slot"):
        accept(one_drive.ports, device.uuid, OPERATOR)
    one_drive.assert_withheld()


def test_an_operator_does_not_vouch_for_a_drive_that_is_gone_again(one_drive: AgentWorld) -> None:
    agent = one_drive.start()
    leave(one_drive, agent)
    one_drive.sim.put_back(SANITIZING)
    agent.period()
    leave(one_drive, agent)

    with pytest.raises(Conflict, match="nothing to accept"):
        accept(one_drive.ports, one_drive.device().uuid, OPERATOR)
    one_drive.sim.put_back(SANITIZING)
    agent.period()
    one_drive.assert_withheld()
    one_drive.clean()
    one_drive.assert_offered()


def test_a_drive_that_stayed_while_the_agent_was_down_is_offered_on(one_drive: AgentWorld) -> None:
    one_drive.end(one_drive.start())
    one_drive.start().period()
    one_drive.assert_offered()


def leave(world: AgentWorld, agent: AgentManager) -> None:
    """The drive leaves the host, and the agent sees it."""
    world.sim.pull(SANITIZING)
    agent.period()
    assert world.device().missing


def assert_still_dirty_after_forgetting(world: AgentWorld, agent: AgentManager) -> None:
    """Its drive is not taken for a new one, though nothing else is remembered of the slot."""
    world.sim.pull(SANITIZING)
    agent.period()
    forget(world.ports, world.device().uuid, OPERATOR)
    assert world.find_device() is None
    world.sim.put_back(SANITIZING)
    agent.period()
    world.assert_withheld()
    assert world.sim.find(SANITIZING, SECRET)
    world.clean()
    world.assert_offered()


def test_a_drive_that_was_never_trusted_is_not_trusted_because_its_slot_was_forgotten(one_drive: AgentWorld) -> None:
    one_drive.sim.fill(SANITIZING, SECRET)
    second = add_second_path(one_drive)
    agent = one_drive.start()
    one_drive.assert_withheld()
    shutil.rmtree(second)

    assert_still_dirty_after_forgetting(one_drive, agent)


def test_a_drive_whose_first_erase_failed_is_dirty_for_good(one_drive: AgentWorld) -> None:
    one_drive.overrides["nvme", "clean_on_discovery"] = True
    one_drive.sim.fill(SANITIZING, SECRET)
    one_drive.sim.set_fault(SANITIZING, Fault(FaultKind.SANITIZE_FAILS))
    agent = one_drive.start()
    assert one_drive.outcome().device_state is DeviceState.ERROR
    one_drive.end(agent)
    one_drive.sim.clear_faults()
    del one_drive.overrides["nvme", "clean_on_discovery"]

    assert_still_dirty_after_forgetting(one_drive, one_drive.start())


def test_a_drive_that_could_not_be_identified_at_first_is_dirty_once_its_serial_number_is_known(
    one_drive: AgentWorld,
) -> None:
    one_drive.sim.fill(SANITIZING, SECRET)
    one_drive.sim.give_to_guest(SANITIZING)
    agent = one_drive.start()
    one_drive.assert_withheld()
    one_drive.sim.give_back(SANITIZING)
    agent.period()

    assert_still_dirty_after_forgetting(one_drive, agent)


def test_a_drive_that_was_accepted_is_dirty_until_it_was_cleaned(one_drive: AgentWorld) -> None:
    agent = one_drive.start()
    one_drive.sim.insert(SANITIZING, sanitizing_drive(serial="SER-OTHER"))
    one_drive.sim.fill(SANITIZING, SECRET)
    agent.period()
    accept(one_drive.ports, one_drive.device().uuid, OPERATOR)

    assert_still_dirty_after_forgetting(one_drive, agent)


def test_a_bind_that_is_taken_back_leaves_what_another_slot_knows_of_the_drive(one_drive: AgentWorld) -> None:
    one_drive.start()
    device = one_drive.device()
    drive = (device.serial or "", device.drive_model or "")
    conductor = Cause(Actor.CONDUCTOR, "conductor-1")
    for noted_elsewhere in (False, True):
        with one_drive.db.write() as tx:
            bound = swap(tx, one_drive.device(), Event.BIND, conductor)
            assert history.contains(tx, *drive)
            if noted_elsewhere:
                history.remove(tx, *drive)
                history.add(tx, *drive, "another slot")
            swap(tx, bound, Event.TAKE_BIND_BACK, conductor)
            assert history.contains(tx, *drive) is noted_elsewhere


def test_what_discovery_withdraws_itself_is_withdrawn_at_once_and_blamed_on_nobody(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    agent = world.start()
    world.sim.pull(SANITIZING)
    world.sim.insert(ZEROING, sanitizing_drive(ZEROING, "SER-OTHER"))
    world.faults.clear()

    agent.period()

    assert [call.method for call in world.faults.calls[:4]] == ["GET", "PUT", "GET", "PUT"]
    assert world.inventory(SANITIZING).reserved == 1
    world.assert_withheld(ZEROING)
    assert "Something other than Autoclave" not in caplog.text


def test_a_withdrawal_that_placement_did_not_hear_of_is_blamed_on_nobody_either(
    one_drive: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    agent = one_drive.start()
    one_drive.sim.pull(SANITIZING)
    one_drive.faults.add(refuse)
    agent.period()
    assert one_drive.inventory().reserved == 0
    one_drive.faults.clear()

    agent.period()

    assert one_drive.inventory().reserved == 1
    assert "Something other than Autoclave" not in caplog.text


def test_another_drive_that_was_in_the_slot_before_is_not_taken_for_the_one_that_was_cleaned_since(
    world: AgentWorld,
) -> None:
    # It is seen, taken out, and put in again after the known drive was cleaned: no old news.
    world.end(world.start())
    world.sim.insert(SANITIZING, sanitizing_drive(serial="SER-OTHER"))
    agent = world.start()
    assert world.device().found_serial == "SER-OTHER"
    world.sim.insert(SANITIZING, sanitizing_drive())
    world.clean()
    world.assert_offered()

    world.sim.insert(SANITIZING, sanitizing_drive(serial="SER-OTHER"))
    agent.period()
    world.assert_withheld()
    assert "SER-OTHER" in (world.device().state_reason or "")
