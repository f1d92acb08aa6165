"""A device moves along an edge of the table, with its history and the ledger of dirty drives, or not at all."""

import json

import pytest

from autoclave.db import devices, history
from autoclave.db.devices import DeviceRecord
from autoclave.db.engine import Database
from autoclave.db.tables import DeviceType
from autoclave.exceptions import StateConflict
from autoclave.lifecycle.transitions import Cause, swap
from autoclave.rules.device_lifecycle import TRANSITIONS, Actor, ARQState, DeviceState, Event, Transition
from dbfixtures import make_arq, make_device, make_handle, make_slot

pytestmark = pytest.mark.matrix


@pytest.mark.parametrize("edge", TRANSITIONS, ids=lambda edge: f"{edge.source}-{edge.event}")
def test_what_a_swap_of_a_locked_row_returns_is_what_the_database_has(database: Database, edge: Transition) -> None:
    cause = Cause(min(edge.actors), "somebody", "req-1", "a reason", {"seen": "it"})
    erased = edge.event is not Event.RELEASE
    with database.write() as tx:
        made = make_device(
            tx,
            type=DeviceType.NVME if erased else DeviceType.GPU,
            device_state=edge.source,
            serial="S1",
            found_serial="S1",
            hold_reason="a demonstration",
            release_pending=edge.source is DeviceState.AVAILABLE,
            progress_percent=12.5,
            progress_stalled=True,
            progress_seconds_left=0.1,
        )
    with database.write() as tx:
        locked = devices.get(tx, made.uuid, lock=True)
        assert locked is not None
        moved = swap(tx, locked, edge.event, cause, {"agent_run_id": "run-1"}, locked=True)
        assert moved == devices.get(tx, made.uuid)
    with database.read() as tx:
        assert moved == devices.get(tx, made.uuid)
    assert (moved.device_state, moved.state_version) == (edge.target, made.state_version + 1)


def test_what_a_swap_returns_of_a_row_that_was_not_locked_has_what_others_wrote(database: Database) -> None:
    [edge] = [edge for edge in TRANSITIONS if edge.event is Event.USED_UP]
    with database.write() as tx:
        seen = make_device(tx)
        devices.update(tx, seen, {"held": True})  # neither the state nor its version
        moved = swap(tx, seen, edge.event, Cause(min(edge.actors), "somebody"))
    assert moved.held


OPERATOR = Cause(Actor.OPERATOR, "ann", "req-7", "because", {"seen": "it"})
AGENT = Cause(Actor.AGENT, "host-1", "req-8", "a reason")
CONDUCTOR = Cause(Actor.CONDUCTOR, "conductor-1", "req-9")
HOLDING = (ARQState.BIND_STARTED, ARQState.BOUND, ARQState.DELETING)
LOSES_TO_A_HOLDER = [
    (DeviceState.ALLOCATED, Event.REQUEST_CLEANING, AGENT),
    (DeviceState.ALLOCATED, Event.MISSED_CLEANUP, AGENT),
    (DeviceState.ERROR, Event.CLEAN_AGAIN, AGENT),
    (DeviceState.ALLOCATED, Event.CANNOT_CLEAN, CONDUCTOR),
    (DeviceState.AVAILABLE, Event.QUARANTINE, OPERATOR),
]
DRIVE = {"serial": "S1", "drive_model": "PM9A3"}


def assert_refused(database: Database, seen: DeviceRecord, event: Event, cause: Cause, message: str) -> None:
    """A refused swap writes nothing: no state, no history, no line in the ledger."""
    with database.read() as tx:
        before = devices.get(tx, seen.uuid)
    with pytest.raises((StateConflict, ValueError), match=message), database.write() as tx:
        swap(tx, seen, event, cause)
    with database.read() as tx:
        assert devices.get(tx, seen.uuid) == before
        assert history.history(tx, seen.uuid) == []
        assert history.among(tx, None) == set()


@pytest.mark.parametrize(("state", "event", "cause"), LOSES_TO_A_HOLDER, ids=lambda each: str(each))
@pytest.mark.parametrize("request_state", HOLDING)
def test_a_held_device_is_not_cleaned_or_quarantined(
    database: Database, state: DeviceState, event: Event, cause: Cause, request_state: ARQState
) -> None:
    """A late or doubled message must not take the device from a guest."""
    with database.write() as tx:
        made = make_device(tx, device_state=state, **DRIVE)
        make_arq(tx, state=request_state, device_id=made.id)
    assert_refused(database, made, event, cause, rf"device {made.uuid} is no longer {state} at version")


@pytest.mark.parametrize(("state", "event", "cause"), LOSES_TO_A_HOLDER, ids=lambda each: str(each))
def test_a_request_that_holds_nothing_stops_no_event(
    database: Database, state: DeviceState, event: Event, cause: Cause
) -> None:
    with database.write() as tx:
        made = make_device(tx, device_state=state)
        make_arq(tx, state=ARQState.UNBOUND, device_id=made.id)
        make_arq(tx, state=ARQState.BOUND, device_id=make_device(tx).id)
        assert swap(tx, made, event, cause).device_state is not state


def test_a_card_with_one_handle_is_not_released_while_it_is_held(database: Database) -> None:
    with database.write() as tx:
        slot = make_slot(tx, type=DeviceType.GPU, device_state=DeviceState.ALLOCATED)
        make_arq(tx, state=ARQState.BOUND, device_id=slot.device.id)
    assert_refused(database, slot.device, Event.RELEASE, CONDUCTOR, "is no longer allocated")


def test_a_card_with_a_free_handle_is_released_while_others_are_held(database: Database) -> None:
    with database.write() as tx:
        slot = make_slot(tx, type=DeviceType.GPU, device_state=DeviceState.ALLOCATED)
        make_handle(tx, slot.deployable.id, "second")
        devices.set_accelerators(tx, slot.deployable, 2)
        make_arq(tx, state=ARQState.BOUND, device_id=slot.device.id)
        assert swap(tx, slot.device, Event.RELEASE, CONDUCTOR).device_state is DeviceState.AVAILABLE


def test_an_event_that_the_state_does_not_take_is_refused(database: Database) -> None:
    with database.write() as tx:
        made = make_device(tx, device_state=DeviceState.CLEANING, **DRIVE)
    assert_refused(database, made, Event.BIND, CONDUCTOR, f"device {made.uuid} is cleaning: bind cannot happen")


def test_a_device_without_a_state_is_not_moved(database: Database) -> None:
    with database.write() as tx:
        made = make_device(tx, device_state=None, **DRIVE)
    assert_refused(database, made, Event.BIND, CONDUCTOR, "has no known state; run the online data migrations")


def test_an_actor_that_may_not_cause_the_event_is_refused(database: Database) -> None:
    with database.write() as tx:
        made = make_device(tx, device_state=DeviceState.CLEANING, **DRIVE)
    assert_refused(database, made, Event.CLEANED, OPERATOR, "operator must not cause cleaned")


def test_a_type_that_is_erased_is_not_released(database: Database) -> None:
    """Only its erase makes it available."""
    with database.write() as tx:
        made = make_device(tx, device_state=DeviceState.ALLOCATED, **DRIVE)
    assert_refused(database, made, Event.RELEASE, CONDUCTOR, "is erase: it must not return as it is")


@pytest.mark.parametrize("event", [Event.BIND, Event.DISTRUST])
def test_a_device_that_was_moved_since_it_was_read_is_not_moved_again(database: Database, event: Event) -> None:
    with database.write() as tx:
        seen = make_device(tx, **DRIVE)
        devices.update(tx, seen, {"state_version": seen.state_version + 1})
    assert_refused(database, seen, event, CONDUCTOR, rf"no longer available at version {seen.state_version}")
    with database.write() as tx:
        other = make_device(tx, **{**DRIVE, "serial": "S2"})
        devices.update(tx, other, {"device_state": DeviceState.ERROR})
    assert_refused(database, other, event, CONDUCTOR, "no longer available")


def test_a_move_is_written_into_the_history_with_its_cause(database: Database) -> None:
    with database.write() as tx:
        made = make_device(tx, **DRIVE)
        swap(tx, made, Event.QUARANTINE, OPERATOR)
        [line] = history.history(tx, made.uuid)
    assert (line.device_uuid, line.serial, line.event, line.actor) == (made.uuid, "S1", "quarantine", "operator ann")
    assert (line.from_state, line.to_state) == ("available", "error")
    assert (line.request_id, line.reason, json.loads(line.evidence or "")) == ("req-7", "because", {"seen": "it"})


def test_a_cause_without_a_name_is_its_actor(database: Database) -> None:
    with database.write() as tx:
        made = make_device(tx)
        swap(tx, made, Event.QUARANTINE, Cause(Actor.OPERATOR, ""))
        [line] = history.history(tx, made.uuid)
    assert (line.actor, line.request_id, line.reason) == ("operator", None, None)


def test_a_move_ends_the_progress_of_an_erase(database: Database) -> None:
    with database.write() as tx:
        made = make_device(
            tx,
            device_state=DeviceState.CLEANING,
            progress_percent=12.5,
            progress_step="writing zeroes",
            progress_stalled=True,
            progress_seconds_left=9.0,
        )
        failed = swap(tx, made, Event.CLEANING_FAILED, AGENT)
    assert (failed.progress_percent, failed.progress_step, failed.progress_seconds_left) == (None, None, None)
    assert failed.progress_stalled is False
    assert failed.state_reason == "a reason"
    assert failed.updated_at is not None


def test_only_a_device_that_becomes_available_owes_an_offer(database: Database) -> None:
    with database.write() as tx:
        made = make_device(tx, device_state=DeviceState.CLEANING, release_number=3, **DRIVE)
        cleaned = swap(tx, made, Event.CLEANED, AGENT)
        bound = swap(tx, cleaned, Event.BIND, CONDUCTOR)
    assert (cleaned.release_pending, cleaned.release_number) == (True, 4)
    assert (bound.release_pending, bound.release_number) == (False, 4)


def test_an_erase_ends_the_wait_for_another_drive(database: Database) -> None:
    found = {"found_serial": "S2", "found_drive_model": "PM9A3"}
    with database.write() as tx:
        made = make_device(tx, device_state=DeviceState.CLEANING, **DRIVE, **found)
        cleaned = swap(tx, made, Event.CLEANED, AGENT)
        failing = make_device(tx, device_state=DeviceState.CLEANING, serial="S3", **found)
        failed = swap(tx, failing, Event.CLEANING_FAILED, AGENT)
    assert (cleaned.found_serial, cleaned.found_drive_model) == (None, None)
    assert (failed.found_serial, failed.found_drive_model) == ("S2", "PM9A3")


# The ledger of dirty drives


@pytest.mark.parametrize("model", ["PM9A3", None])
def test_a_drive_is_dirty_from_its_bind_to_its_erase(database: Database, model: str | None) -> None:
    with database.write() as tx:
        made = make_device(tx, serial="S1", drive_model=model)
        bound = swap(tx, made, Event.BIND, CONDUCTOR)
        assert history.among(tx, None) == {("S1", model or "")}
        assert history.noted_by(tx, "S1", model or "") == made.uuid
        pending = swap(tx, bound, Event.REQUEST_CLEANING, AGENT)
        cleaning = swap(tx, pending, Event.START_CLEANING, AGENT)
        assert history.among(tx, None) == {("S1", model or "")}
        swap(tx, cleaning, Event.CLEANED, AGENT)
        assert history.among(tx, None) == set()


@pytest.mark.parametrize("model", ["PM9A3", None])
def test_a_bind_that_is_taken_back_leaves_the_drive_clean(database: Database, model: str | None) -> None:
    with database.write() as tx:
        bound = swap(tx, make_device(tx, serial="S1", drive_model=model), Event.BIND, CONDUCTOR)
        swap(tx, bound, Event.TAKE_BIND_BACK, CONDUCTOR)
        assert history.among(tx, None) == set()


@pytest.mark.parametrize("model", ["PM9A3", None])
def test_a_drive_that_is_distrusted_is_dirty_until_it_is_accepted(database: Database, model: str | None) -> None:
    with database.write() as tx:
        made = make_device(tx, serial="S1", drive_model=model)
        distrusted = swap(tx, made, Event.DISTRUST, AGENT)
        assert history.among(tx, None) == {("S1", model or "")}
        swap(tx, distrusted, Event.ACCEPT, OPERATOR)
        assert history.among(tx, None) == set()


def test_what_another_slot_knows_of_a_drive_outlives_an_accept(database: Database) -> None:
    with database.write() as tx:
        made = make_device(tx, device_state=DeviceState.ERROR, **DRIVE)
        history.add(tx, "S1", "PM9A3", "another-device")
        swap(tx, made, Event.ACCEPT, OPERATOR)
        assert history.noted_by(tx, "S1", "PM9A3") == "another-device"


def test_neither_a_card_nor_a_drive_without_a_serial_number_is_in_the_ledger(database: Database) -> None:
    with database.write() as tx:
        card = make_device(tx, type=DeviceType.GPU, serial="S1", drive_model="A2")
        nameless = make_device(tx, serial=None, drive_model="PM9A3")
        for device in (card, nameless):
            bound = swap(tx, device, Event.BIND, CONDUCTOR)
            assert bound.device_state is DeviceState.ALLOCATED
        assert history.among(tx, None) == set()


@pytest.mark.parametrize("event", [Event.BIND, Event.DISTRUST])
@pytest.mark.parametrize("model", ["PM9A3", None])
def test_what_happens_to_a_drive_ends_its_offer_in_other_slots(
    database: Database, event: Event, model: str | None
) -> None:
    drive = {"serial": "S1", "drive_model": model}
    with database.write() as tx:
        here, there = make_device(tx, **drive), make_device(tx, hostname="host-2", **drive)
        gone = make_device(tx, hostname="host-3", missing=True, **drive)
        alike = make_device(tx, hostname="host-2", serial="S1", drive_model="another model")
        neighbour = make_device(tx, serial="S2", drive_model=model)
        bound = make_device(tx, hostname="host-4", device_state=DeviceState.ALLOCATED, **drive)
        cause = Cause(Actor.CONDUCTOR, "conductor-1", "req-9", "a reason", {"seen": "it"})
        swap(tx, here, event, cause)
        ended, [line] = devices.get(tx, there.uuid), history.history(tx, there.uuid)
        assert ended is not None
        assert ended.device_state is DeviceState.ERROR
        assert not ended.release_pending
        assert (ended.state_reason or "").startswith(f"its drive S1 is on record at {here.slot} too")
        assert (line.event, line.actor, line.request_id) == ("distrust", "conductor conductor-1", "req-9")
        assert (line.reason, json.loads(line.evidence or "{}")) == (ended.state_reason, {})
        for untouched in (gone, alike, neighbour, bound):
            assert devices.get(tx, untouched.uuid) == untouched


def test_a_drive_known_to_be_dirty_is_not_bound_and_the_noter_is_named(database: Database) -> None:
    with database.write() as tx:
        other = make_device(tx, hostname="host-2", device_state=DeviceState.ALLOCATED, serial="S1")
        made, nameless = make_device(tx, **DRIVE), make_device(tx, serial="S1", drive_model=None)
        forgotten = make_device(tx, serial="S9", drive_model="PM9A3")
        history.add(tx, "S1", "PM9A3", other.uuid)
        history.add(tx, "S1", "", other.uuid)
        history.add(tx, "S9", "PM9A3", "a-forgotten-one")
    at = f"its drive S1 is known to be dirty, as the device at {other.slot} has noted"
    refusals = {
        made: f"device {made.uuid} must not be bound: {at}",
        nameless: f"device {nameless.uuid} must not be bound: {at}",
        forgotten: (
            f"device {forgotten.uuid} must not be bound: its drive S9 is known to be dirty, as device a-forgotten-one, "
            "forgotten since, has noted"
        ),
    }
    for device, message in refusals.items():
        with pytest.raises(StateConflict) as refused, database.write() as tx:
            swap(tx, device, Event.BIND, CONDUCTOR)
        assert str(refused.value) == message
