"""What the agent makes of the drives that it sees, and of those that it does not see any more."""

import json
import logging
import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from agentworld import HOST, SANITIZING, SECRET, ZEROING, AgentWorld, sanitizing_drive, zeroing_drive

from autoclave.agent.manager import AgentManager
from autoclave.api.admin.devices import waiting_for
from autoclave.db import arqs as arq_rows
from autoclave.db import attributes as attribute_rows
from autoclave.db import devices as device_rows
from autoclave.db import history
from autoclave.db.columns import utcnow
from autoclave.drivers.base import CleanableDevice, CleanupControl, Evidence
from autoclave.drivers.nvme import NVMeDriver
from autoclave.exceptions import Conflict, HardwareError, InvalidConfiguration
from autoclave.lifecycle.operator import accept
from autoclave.lifecycle.sweep import pay_debts
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor, ARQState, DeviceState, must_be_reserved
from autoclave.rules.resource_names import OWNER_CYBORG
from autoclave.simulator.faults import Fault, FaultKind
from autoclave.testing.placement.faults import answer, before, refuse
from dbfixtures import make_arq

OPERATOR = Cause(Actor.OPERATOR, "admin")


class AcmeDriver(NVMeDriver):
    """A vendor's driver, in the place of ours."""

    name = "acme_nvme_driver"

    def cleanup(self, device: CleanableDevice, control: CleanupControl | None = None) -> Evidence:
        return {**super().cleanup(device, control), "by": self.name}


def last_evidence(world: AgentWorld) -> Any:
    with world.db.read() as tx:
        cleaned = [event for event in history.history(tx, world.device().uuid) if event.event == "cleaned"]
    return json.loads(cleaned[-1].evidence or "{}")


def test_a_drive_seen_for_the_first_time_is_available_and_offered_below_its_host(world: AgentWorld) -> None:
    world.start()

    root = world.placement.find_provider(HOST)
    assert root is not None
    for address in (SANITIZING, ZEROING):
        provider = world.provider(address)
        assert provider.parent == root.uuid
        assert OWNER_CYBORG in world.placement.get_traits(provider.uuid).names
        record = world.inventory(address)
        assert (record.total, record.reserved, record.max_unit, record.allocation_ratio) == (1, 0, 1, 1.0)
        world.assert_offered(address)


def test_a_conductor_that_pays_the_debt_of_a_new_drive_does_not_keep_its_provider_from_being_finished(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world.faults.add(before(lambda: pay_debts(world.ports)), method="PUT", path="/traits$", times=1)
    with caplog.at_level(logging.WARNING):
        world.start()
    assert [each.message for each in caplog.records if each.name.startswith("autoclave.agent")] == []
    for address in (SANITIZING, ZEROING):
        world.assert_offered(address)
        assert OWNER_CYBORG in world.onlooker.get_traits(world.provider(address).uuid).names


def test_a_provider_that_somebody_else_manages_is_left_to_them(world: AgentWorld) -> None:
    root = world.placement.create_provider(str(uuid.uuid4()), HOST)
    theirs = world.placement.create_provider(str(uuid.uuid4()), f"{HOST}_{SANITIZING}", root.uuid)

    world.start().period()

    assert world.device(SANITIZING).excluded_reason is not None
    assert world.placement.get_provider(theirs.uuid) == theirs
    world.assert_offered(ZEROING)


def test_a_period_in_which_nothing_changed_costs_ten_statements_and_one_request_for_any_number_of_drives(
    tmp_path: Path,
) -> None:
    costs = []
    for count in (2, 6):
        (tmp_path / str(count)).mkdir()
        drives = [zeroing_drive(f"0000:4{number}:00.0", f"SER-{number}") for number in range(count)]
        world = AgentWorld(tmp_path / str(count), drives)
        try:
            agent = world.start()
            agent.period()  # the first look after the writes verifies them
            statements: list[str] = []

            def note(
                _connection: object, _cursor: object, statement: str, *_: object, to: list[str] = statements
            ) -> None:
                if not statement.startswith("BEGIN"):
                    to.append(statement)

            sa.event.listen(sa.Engine, "before_cursor_execute", note)
            try:
                world.faults.clear()
                agent.period()
            finally:
                sa.event.remove(sa.Engine, "before_cursor_execute", note)
            assert [call.method for call in world.faults.calls] == ["GET"]
            costs.append(len(statements))
        finally:
            world.close()
    assert 0 < costs[0] == costs[1] <= 10


def test_a_drive_that_is_gone_is_missing_and_offered_again_when_it_is_back_and_the_operator_vouches_for_it(
    world: AgentWorld,
) -> None:
    agent = world.start()

    world.sim.pull(SANITIZING)
    agent.period()
    assert world.device().missing
    assert world.inventory().reserved == 1
    world.assert_offered(ZEROING)

    world.sim.put_back(SANITIZING)
    agent.period()
    assert not world.device().missing
    world.assert_withheld()
    agent.period()

    accept(world.ports, world.device().uuid, OPERATOR)
    world.assert_offered()
    agent.period()
    world.assert_offered()


def test_another_drive_in_a_slot_is_offered_only_when_accepted_and_cleaned(world: AgentWorld) -> None:
    world.end(world.start())
    world.sim.insert(SANITIZING, sanitizing_drive(serial="SER-OTHER"))

    agent = world.start()
    world.assert_withheld()
    assert "SER-OTHER" in (world.device().state_reason or "")
    world.clean()
    world.assert_withheld()
    assert world.device().serial == "SER-A"

    accept(world.ports, world.device().uuid, OPERATOR)
    world.assert_withheld()
    agent.period()
    world.clean()
    assert world.device().serial == "SER-OTHER"
    world.assert_offered()


def test_accepted_drive_is_cleaned_at_once_by_its_own_erase(tmp_path: Path) -> None:
    """The operator accepts and cleans within one period: the erase is not that of the drive that was there before."""
    world = AgentWorld(tmp_path, [sanitizing_drive(crypto=True)])
    try:
        agent = world.start()
        assert world.device().cleanup_action == "sanitize_crypto"
        world.sim.insert(SANITIZING, sanitizing_drive(serial="SER-OTHER"))
        agent.period()
        world.assert_withheld()

        accept(world.ports, world.device().uuid, OPERATOR)
        assert world.device().cleanup_action is None, "what the new drive can do is not known yet"
        world.clean()

        assert (world.device().serial, world.device().cleanup_action) == ("SER-OTHER", "sanitize_block")
        assert last_evidence(world)["action"] == "sanitize_block"
        agent.period()
        world.assert_offered()
    finally:
        world.close()


def test_drive_without_an_erase_is_excluded_when_it_is_accepted_and_cleaned(tmp_path: Path) -> None:
    world = AgentWorld(tmp_path, [sanitizing_drive(crypto=True)])
    world.overrides["nvme", "device_spec"] = [json.dumps({"address": SANITIZING, "clear_action": "sanitize"})]
    try:
        agent = world.start()
        world.sim.insert(SANITIZING, zeroing_drive(SANITIZING, "SER-OTHER"))
        agent.period()
        accept(world.ports, world.device().uuid, OPERATOR)

        world.clean()

        world.assert_withheld()
        assert "anitize" in (world.device().excluded_reason or "")
    finally:
        world.close()


def test_drive_that_its_erase_did_not_find_is_missing_until_it_is_back(world: AgentWorld) -> None:
    agent = world.start()
    world.bind()
    world.sim.pull(SANITIZING)
    world.clean()
    world.assert_withheld()
    assert world.device().missing, "the erase has seen it before any period"

    world.sim.put_back(SANITIZING)
    agent.period()
    world.assert_withheld()
    assert not world.device().missing
    assert world.device().state_reason == "it was not in its slot when it was to be erased, and is there again"

    world.clean()
    world.assert_offered()


def test_only_what_is_in_error_and_was_found_can_be_accepted(world: AgentWorld) -> None:
    world.start()
    with pytest.raises(Conflict, match="available"):
        accept(world.ports, world.device().uuid, OPERATOR)


def test_drive_with_a_foreign_provider_is_on_record_and_not_offered(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Nova's [pci] device_spec matches the drive, too: its provider has the name that the drive's would have."""
    root = world.placement.create_provider(str(uuid.uuid4()), HOST)
    name = f"{HOST}_{SANITIZING.upper()}"
    foreign = world.placement.create_provider(str(uuid.uuid4()), name, root.uuid)
    with caplog.at_level(logging.ERROR):
        agent = world.start()
        told = len(caplog.records)
        agent.period()
        agent.period()
    assert len(caplog.records) == told, "once, and not in every period"
    assert name in caplog.text

    device = world.device()
    assert device.device_state is DeviceState.ERROR, "a guest of the other service may have had it"
    assert name in (device.excluded_reason or "")
    assert world.placement.get_inventories(foreign.uuid).records == {}, "the foreign provider is left alone"
    world.clean()
    agent.period()
    assert must_be_reserved(world.device().offer), "it is clean by now, and the name is taken still"
    world.assert_offered(ZEROING)
    world.end(agent)
    agent = world.start()
    assert must_be_reserved(world.device().offer)

    world.placement.delete_provider(foreign.uuid)
    agent.period()
    agent.period()
    assert world.device().excluded_reason is None
    world.assert_offered()


def test_a_dirty_drive_is_not_trusted_in_another_slot(tmp_path: Path) -> None:
    elsewhere = "0000:45:00.0"
    world = AgentWorld(tmp_path)
    try:
        agent = world.start()
        world.bind()
        world.sim.pull(SANITIZING)
        world.sim.insert(elsewhere, sanitizing_drive(elsewhere))
        world.end(agent)

        world.start()
        world.assert_withheld(elsewhere)
        assert world.sim.find(elsewhere, b"secret")
    finally:
        world.close()


def test_a_deleted_provider_is_made_again_with_what_the_row_demands(world: AgentWorld) -> None:
    agent = world.start()
    world.sim.pull(SANITIZING)
    agent.period()
    before = {address: world.provider(address).uuid for address in (SANITIZING, ZEROING)}
    for provider in before.values():
        world.placement.delete_provider(provider)

    agent.period()

    assert {address: world.provider(address).uuid for address in before} == before
    assert world.inventory(SANITIZING).reserved == 1
    world.assert_offered(ZEROING)


def test_the_drives_follow_a_root_provider_that_was_deleted_and_made_anew(world: AgentWorld) -> None:
    agent = world.start()
    old = world.placement.find_provider(HOST)
    assert old is not None
    for doomed in (world.provider(SANITIZING), world.provider(ZEROING), old):
        world.placement.delete_provider(doomed.uuid)
    new = world.placement.create_provider(str(uuid.uuid4()), HOST)

    agent.period()

    for address in (SANITIZING, ZEROING):
        assert world.provider(address).parent == new.uuid
        world.assert_offered(address)


def test_a_period_that_failed_does_not_have_the_next_look_for_the_root_again(world: AgentWorld) -> None:
    agent = world.start()
    root = world.placement.find_provider(HOST)
    assert root is not None
    world.faults.add(answer(503), path="in_tree=", times=1)
    agent.period()
    by_name = world.faults.add(refuse, path="[?&]name=")

    agent.period()

    assert not by_name.struck


def test_a_second_agent_on_a_host_is_refused(world: AgentWorld) -> None:
    world.start()
    with pytest.raises(InvalidConfiguration, match=f"another agent serves host {HOST}"):
        world.build().init_host()


def test_an_operators_hand_edit_that_offers_a_missing_drive_is_put_right(world: AgentWorld) -> None:
    agent = world.start()
    world.sim.pull(SANITIZING)
    agent.period()
    provider = world.provider()
    inventories = world.placement.get_inventories(provider.uuid)
    by_hand = {name: record.__class__(1, 0, 1, 1, 1, 1.0) for name, record in inventories.records.items()}
    world.placement.put_inventories(provider.uuid, inventories.generation, by_hand)
    assert world.offered()

    agent.period()

    assert world.inventory().reserved == 1
    assert world.device().device_state is DeviceState.AVAILABLE


def test_what_an_operator_said_of_a_drive_outlives_what_discovery_says_of_it(world: AgentWorld) -> None:
    agent = world.start()

    def said() -> dict[str, tuple[str, str]]:
        with world.db.read() as tx:
            [deployable] = device_rows.deployables_of(tx, [world.device().id])
            rows = attribute_rows.list_all(tx, deployable_id=deployable.id)
            return {row.key: (row.uuid, row.value) for row in rows}

    with world.db.write() as tx:
        [deployable] = device_rows.deployables_of(tx, [world.device().id])
        attribute_rows.insert(tx, deployable.id, "rack", "A7")
        attribute_rows.insert(tx, deployable.id, "tray", "TRAY_9")
    before = said()
    agent.period()
    assert said() == before, "the operator's words are no news to discovery"

    provider = world.provider()
    with world.db.write() as tx:
        attribute_rows.replace(tx, deployable.id, {"rc": before["rc"][1], "trait0": "HW_NVME_OLD", "trait99": "HW_X"})
    agent.period()

    after = said()
    assert {key: value for key, (_, value) in after.items()} == {key: value for key, (_, value) in before.items()}
    for key in ("rc", "rack", "tray"):
        assert after[key] == before[key], "what did not change is the row that it was"
    traits = world.placement.get_traits(provider.uuid).names
    assert {value for key, (_, value) in after.items() if key.startswith("trait")} | {OWNER_CYBORG} == traits


def test_an_agent_without_nvme_cli_does_not_start(
    world: AgentWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))  # the machine that runs the tests may have a real one
    monkeypatch.setattr("autoclave.hardware.command._SYSTEM_DIRECTORIES", ())
    world.sim.set_fault("*", Fault(FaultKind.NVME_MISSING))
    with pytest.raises(HardwareError, match="nvme"):
        world.build().init_host()


def test_a_drive_is_cleaned_by_the_driver_that_discovers_it_now_whichever_did_before(world: AgentWorld) -> None:
    world.end(world.start())
    world.vendor = AcmeDriver

    world.start()
    world.assert_offered()
    world.bind()
    world.clean()

    world.assert_offered()
    assert last_evidence(world)["by"] == "acme_nvme_driver"


def test_a_drive_that_is_with_a_guest_when_its_driver_is_changed_is_cleaned_by_the_new_one(world: AgentWorld) -> None:
    agent = world.start()
    bound = world.bind()
    with world.db.write() as tx:
        held = make_arq(tx, state=ARQState.BOUND, device_id=bound.id).uuid
    world.end(agent)
    world.vendor = AcmeDriver

    world.start()
    world.assert_promises()
    with world.db.write() as tx:
        arq_rows.delete(tx, held)
    world.clean()

    assert not world.sim.find(SANITIZING, SECRET)
    world.assert_offered()
    assert last_evidence(world)["by"] == "acme_nvme_driver"


def test_a_drive_that_was_released_while_its_driver_was_changed_can_be_cleaned_again(world: AgentWorld) -> None:
    agent = world.start()
    world.bind()
    world.end(agent)
    world.vendor = AcmeDriver

    world.start().period()
    if world.outcome().device_state is DeviceState.ERROR:  # it was looked after before it was looked for
        world.assert_withheld()
        world.clean()

    assert not world.sim.find(SANITIZING, SECRET)
    world.assert_offered()


class Breakable(NVMeDriver):
    """A driver that fails in a way it does not declare while it is broken."""

    broken = False

    def discover(self) -> Any:
        return super().discover() if not self.broken else 1 / 0


@pytest.fixture
def breakable(world: AgentWorld) -> Iterator[type[Breakable]]:
    """The driver of the host's drives."""
    world.vendor = Breakable
    yield Breakable
    Breakable.broken = False


def test_a_driver_that_fails_in_a_way_it_does_not_declare_leaves_the_host_as_it_is(
    world: AgentWorld, breakable: type[Breakable]
) -> None:
    agent = world.start()
    breakable.broken = True
    agent.period()
    world.assert_offered()
    world.end(agent)

    agent = world.start()
    world.assert_offered()
    breakable.broken = False
    world.bind()
    agent.period()
    world.outcome()
    world.assert_offered()


def given_up_by_the_kernel(world: AgentWorld, address: str = SANITIZING) -> Path:
    """The kernel has given the drive up: the function stays, without a driver. Where its driver link was."""
    link = world.sim.paths.sysfs / "bus/pci/devices" / address / "driver"
    link.rename(link.with_name("former-driver"))
    return link


def later(agent: AgentManager, seconds: float) -> None:
    """Let the agent's clock be ahead by so much, and run a period."""
    discovery = agent._discovery
    now = utcnow() + timedelta(seconds=seconds)
    discovery._ports = replace(discovery._ports, clock=lambda: now)
    agent.period()


def test_a_drive_that_cannot_be_looked_at_any_longer_is_not_offered_until_it_is_read_again(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    agent = world.start()
    link = given_up_by_the_kernel(world)

    later(agent, 0)
    later(agent, 299)
    world.assert_offered()

    later(agent, 301)
    device = world.device()
    assert (device.device_state, device.unreadable_reason) == (
        DeviceState.AVAILABLE,
        f"{SANITIZING} is bound to no driver, not to nvme",
    )
    assert world.inventory().reserved == 1
    assert "is not offered until it can be read" in caplog.text
    assert "It cannot be looked at: " in (waiting_for(device) or "")
    world.assert_offered(ZEROING)
    # Another run of the agent has not seen it either.
    world.end(agent)
    agent = world.start()
    assert world.inventory().reserved == 1

    link.with_name("former-driver").rename(link)
    agent.period()
    world.assert_offered()
    with world.db.read() as tx:
        assert [each.event for each in history.history(tx, device.uuid)][-2:] == ["unreadable", "readable"]


def test_drives_of_a_driver_that_cannot_look_are_not_offered_after_the_patience(
    world: AgentWorld, breakable: type[Breakable]
) -> None:
    agent = world.start()
    breakable.broken = True

    later(agent, 0)
    world.assert_offered()
    later(agent, 301)
    assert "ZeroDivisionError" in (world.device().unreadable_reason or "")
    assert world.inventory().reserved == world.inventory(ZEROING).reserved == 1

    breakable.broken = False
    agent.period()
    world.assert_offered()
    world.assert_offered(ZEROING)


def test_a_guest_that_has_the_drive_is_no_doubt_of_it(world: AgentWorld) -> None:
    agent = world.start()
    world.bind()
    world.sim.give_to_guest(SANITIZING)

    later(agent, 0)
    later(agent, 1000)

    assert world.device().unreadable_reason is None


def test_host_that_would_take_the_drives_is_warned_of_once(world: AgentWorld, caplog: pytest.LogCaptureFixture) -> None:
    """The agent serves it nevertheless: a drive that the host takes goes to error."""
    (world.sim.paths.etc / "lvm/lvm.conf").write_text("devices {\n}\n")
    (world.sim.paths.etc / "mdadm/mdadm.conf").unlink()

    world.start().period()

    [warning] = [each.getMessage() for each in caplog.records if "guests give back" in each.getMessage()]
    assert warning.startswith(f"Host {HOST} may use the drives that guests give back. LVM: it would activate")
    assert "mdadm: it would assemble" in warning
    world.assert_offered()


def test_host_that_is_set_up_is_not_warned_of(world: AgentWorld, caplog: pytest.LogCaptureFixture) -> None:
    world.start()
    assert "guests give back" not in caplog.text
