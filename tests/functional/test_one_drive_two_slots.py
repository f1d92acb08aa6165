"""One drive is in one slot: on record in two, it is offered in neither, and bound once at most."""

from collections.abc import Sequence

import agentworld
import pytest
from agentworld import HOST, SANITIZING, SECRET, AgentWorld
from tenant import Tenant

from autoclave.agent.manager import AgentManager
from autoclave.db import devices as device_rows
from autoclave.db import history
from autoclave.db.devices import DeviceRecord
from autoclave.exceptions import Conflict
from autoclave.lifecycle.operator import forget
from autoclave.lifecycle.sweep import pay_debts
from autoclave.lifecycle.transitions import Cause, swap
from autoclave.rules.device_lifecycle import Actor, ARQState, DeviceState, Event

NEW_NAME = "host-renamed"
CONDUCTOR = Cause(Actor.CONDUCTOR, "conductor-1")


def rename(world: AgentWorld, monkeypatch: pytest.MonkeyPatch, name: str = NEW_NAME) -> AgentManager:
    """The same hardware is served under another name, which is what everything in *world* is about from now on.

    The data directory of the former name would be refused.
    """
    world.end_all()
    monkeypatch.setattr(agentworld, "HOST", name)
    world.overrides["agent", "data_dir"] = str(world.tmp_path / ("data" if name == HOST else f"data of {name}"))
    return world.start()


def rows(world: AgentWorld) -> Sequence[DeviceRecord]:
    with world.db.read() as tx:
        return device_rows.list_all(tx)


def vouch_for_both(world: AgentWorld) -> None:
    """As an older version left it: either row is available, and offered."""
    with world.db.write() as tx:
        for device in device_rows.list_all(tx):
            device_rows.update(
                tx, device, {"device_state": DeviceState.AVAILABLE, "missing": False, "release_pending": True}
            )
            history.remove(tx, device.serial or "", device.drive_model or "")
    pay_debts(world.ports)


def test_a_host_that_changes_its_name_does_not_offer_its_drives_twice(
    one_drive: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_drive.start()
    one_drive.assert_offered()
    former = one_drive.device()

    rename(one_drive, monkeypatch)
    one_drive.assert_withheld()
    assert f"the same drive is on record at {former.slot} too" in (one_drive.device().state_reason or "")

    monkeypatch.setattr(agentworld, "HOST", HOST)  # which nobody serves any more
    one_drive.assert_withheld()
    assert one_drive.device().missing
    assert f"is on record at {SANITIZING} of host {NEW_NAME} too" in (one_drive.device().state_reason or "")


def test_a_drive_that_was_moved_is_offered_once_it_was_cleaned_and_its_former_slot_can_be_forgotten(
    one_drive: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_drive.start()
    former = one_drive.device()
    rename(one_drive, monkeypatch)
    one_drive.clean()
    one_drive.assert_offered()

    forget(one_drive.ports, former.uuid, Cause(Actor.OPERATOR, "admin"))

    assert [row.hostname for row in rows(one_drive)] == [NEW_NAME]
    one_drive.assert_offered()


def test_two_hosts_that_both_see_a_drive_are_believed_neither(
    one_drive: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_drive.start()
    rename(one_drive, monkeypatch)
    one_drive.clean()
    one_drive.assert_offered()

    rename(one_drive, monkeypatch, HOST)
    one_drive.assert_withheld()
    one_drive.clean()

    one_drive.assert_offered()
    assert {row.hostname: row.device_state for row in rows(one_drive)} == {
        HOST: DeviceState.AVAILABLE,
        NEW_NAME: DeviceState.ERROR,
    }


def test_a_drive_that_another_row_has_given_to_a_guest_is_bound_to_nobody_else(
    one_drive: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_drive.start()
    second = Tenant(one_drive)
    rename(one_drive, monkeypatch)
    vouch_for_both(one_drive)
    first = Tenant(one_drive)
    first.bind()
    first.write()

    with pytest.raises(Conflict, match="it is error"):
        second.bind()

    assert second.states() == {ARQState.BIND_FAILED}
    monkeypatch.setattr(agentworld, "HOST", HOST)
    one_drive.assert_withheld()


def test_a_bind_loses_that_another_row_of_the_drive_has_overtaken(one_drive: AgentWorld) -> None:
    """The other's row has not been distrusted, as if both were bound at one moment: the ledger decides."""
    one_drive.start()
    tenant = Tenant(one_drive)
    device = one_drive.device()
    with one_drive.db.write() as tx:
        history.add(tx, device.serial or "", device.drive_model or "", "forgotten-device")

    with pytest.raises(Conflict, match=f"its drive {device.serial} is known to be dirty, as device forgotten-device"):
        tenant.bind()

    assert one_drive.device().device_state is DeviceState.AVAILABLE
    assert not one_drive.sim.find(SANITIZING, SECRET)


def test_a_bind_that_is_taken_back_leaves_the_other_row_distrusted_and_the_drive_clean(
    one_drive: AgentWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    one_drive.start()
    former = one_drive.device()
    rename(one_drive, monkeypatch)
    vouch_for_both(one_drive)
    with one_drive.db.write() as tx:
        bound = swap(tx, one_drive.device(), Event.BIND, CONDUCTOR)
        swap(tx, bound, Event.TAKE_BIND_BACK, CONDUCTOR)
        assert not history.contains(tx, former.serial or "", former.drive_model or "")
    assert {row.hostname: row.device_state for row in rows(one_drive)} == {
        HOST: DeviceState.ERROR,
        NEW_NAME: DeviceState.AVAILABLE,
    }
