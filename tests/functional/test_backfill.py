"""Devices that have no state yet get one (the NVMe specification's online data migration), on each engine."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import sqlalchemy as sa

from autoclave.db import arqs as arq_rows
from autoclave.db import backfill as backlog
from autoclave.db import devices as device_rows
from autoclave.db import history
from autoclave.db.columns import utcnow
from autoclave.db.devices import DeviceRecord
from autoclave.db.engine import Database
from autoclave.db.tables import DeviceType, devices
from autoclave.lifecycle import backfill
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import ACTIVE, Actor, ARQState, DeviceState
from dbfixtures import make_arq, make_device, make_handle, make_slot
from oldrows import bound_by_the_release_before

pytestmark = pytest.mark.matrix

OPERATOR = Cause(Actor.OPERATOR, "anna@controller", "req-1")
STATES, LINKS, LEASES = backfill.MIGRATIONS


def run_all(database: Database, **options: Any) -> dict[str, tuple[int, int]]:
    """Every migration; what each needed and completed."""
    outcomes = {m.name: backfill.run(database, m, OPERATOR, **options) for m in backfill.MIGRATIONS}
    return {name: (outcome.needed, outcome.completed) for name, outcome in outcomes.items()}


def state_of(database: Database, device: DeviceRecord) -> DeviceState | None:
    return again(database, device).device_state


def again(database: Database, device: DeviceRecord) -> DeviceRecord:
    with database.read() as tx:
        found = device_rows.get(tx, device.uuid)
    assert found is not None
    return found


@pytest.mark.parametrize("state", list(ARQState))
def test_a_device_is_allocated_if_a_request_holds_it_and_available_otherwise(
    database: Database, state: ARQState
) -> None:
    with database.write() as tx:
        slot = make_slot(tx, device_state=None)
        make_arq(tx, state=state, device_id=slot.device.id, deployable_id=slot.deployable.id)
    run_all(database)
    wanted = DeviceState.ALLOCATED if state in ACTIVE else DeviceState.AVAILABLE
    assert state_of(database, slot.device) is wanted


@pytest.mark.parametrize(("bound", "state"), [(0, "available"), (1, "available"), (2, "allocated")])
def test_a_device_with_several_handles_is_allocated_when_none_is_free(
    database: Database, bound: int, state: str
) -> None:
    with database.write() as tx:
        slot = make_slot(tx, device_state=None, type=DeviceType.NIC)
        second = make_handle(tx, slot.deployable.id, "second")
        for handle in (slot.handle_id, second)[:bound]:
            make_arq(tx, state=ARQState.BOUND, deployable_id=slot.deployable.id, attach_handle_id=handle)
    run_all(database)
    assert state_of(database, slot.device) == state


def test_the_history_says_who_gave_the_state_and_on_whose_word(database: Database) -> None:
    with database.write() as tx:
        slot = make_slot(tx, device_state=None)
    run_all(database)
    with database.read() as tx:
        (event,) = history.history(tx, slot.device.uuid)
    assert (event.from_state, event.to_state, event.event) == (None, "available", "backfill")
    assert event.actor == "operator anna@controller"
    assert event.reason is not None
    assert "operator's word" in event.reason
    assert event.evidence == '{"handles": 1, "requests": 0}'
    assert again(database, slot.device).state_version == slot.device.state_version + 1


def test_a_state_that_a_service_has_written_is_not_written_over(database: Database) -> None:
    with database.write() as tx:
        slots = [make_slot(tx, device_state=state) for state in DeviceState]
    assert run_all(database)["backfill_device_state"] == (0, 0)
    with database.write() as tx:
        for slot in slots:
            assert backfill.put_right(tx, slot.device.id, OPERATOR) is None
    for slot in slots:
        assert again(database, slot.device) == slot.device


def test_an_idle_drive_that_is_known_to_be_dirty_is_not_offered(database: Database) -> None:
    with database.write() as tx:
        slot = make_slot(tx, device_state=None, serial="SER-A", drive_model="M")
        history.add(tx, "SER-A", "M", "another-device")
    run_all(database)
    assert state_of(database, slot.device) is DeviceState.ERROR


def test_a_drive_in_a_guest_is_dirty_from_the_backfill_on(database: Database) -> None:
    with database.write() as tx:
        slot = make_slot(tx, device_state=None, serial="SER-A", drive_model="M")
        bound_by_the_release_before(tx, slot)
    run_all(database)
    with database.read() as tx:
        assert history.contains(tx, "SER-A", "M")


def test_nothing_is_lowered_that_was_raised_in_placement_before(database: Database) -> None:
    with database.write() as tx:
        slot = make_slot(tx, device_state=None)
    run_all(database)
    assert not again(database, slot.device).release_pending, "reserved=total may be an operator's hold"


def test_a_bind_of_the_release_before_during_the_backfill_is_found_by_the_next(database: Database) -> None:
    with database.write() as tx:
        slot = make_slot(tx, device_state=None)
    run_all(database)
    with database.write() as tx:
        arq = bound_by_the_release_before(tx, slot)
    assert run_all(database)["link_accelerator_requests"] == (1, 1)
    assert state_of(database, slot.device) is DeviceState.ALLOCATED
    with database.read() as tx:
        assert [held.uuid for held in arq_rows.active_of_device(tx, slot.device.id)] == [arq]
        assert backfill.was_backfilled(tx, again(database, slot.device))


def test_a_bind_or_unbind_that_the_release_before_left_half_way_can_be_swept(database: Database) -> None:
    with database.write() as tx:
        slots = [make_slot(tx, device_state=None) for _ in range(3)]
        for slot, state in zip(slots, (ARQState.BIND_STARTED, ARQState.DELETING, ARQState.BOUND), strict=True):
            bound_by_the_release_before(tx, slot, state)
    assert run_all(database)["lease_unfinished_requests"] == (2, 2)
    with database.read() as tx:
        assert not arq_rows.expired(tx, utcnow()), "who began them may still be at work"
        left = arq_rows.expired(tx, utcnow() + backfill.PATIENCE)
    assert {arq.state for arq in left} == {ARQState.BIND_STARTED, ARQState.DELETING}


def test_only_the_rows_of_one_host_are_put_right_on_its_behalf(database: Database) -> None:
    with database.write() as tx:
        mine, other = (make_slot(tx, device_state=None, hostname=name) for name in ("host-1", "host-2"))
        for slot in (mine, other):
            bound_by_the_release_before(tx, slot, ARQState.DELETING)
    assert run_all(database, hostname="host-1") == dict.fromkeys([STATES.name, LEASES.name], (1, 1)) | {
        LINKS.name: (0, 0)
    }
    assert state_of(database, mine.device) is DeviceState.ALLOCATED
    assert state_of(database, other.device) is None


def test_a_limit_is_kept_and_the_rest_done_later(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backfill, "BATCH", 2)
    with database.write() as tx:
        for _ in range(5):
            make_device(tx, device_state=None)
    assert run_all(database, limit=3)[STATES.name] == (5, 3)
    assert run_all(database, limit=3)[STATES.name] == (2, 2)
    assert run_all(database, limit=3)[STATES.name] == (0, 0)


def test_a_backfill_that_was_cut_short_keeps_what_it_did_and_is_run_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill, "BATCH", 2)
    with database.write() as tx:
        made = [make_device(tx, device_state=None) for _ in range(5)]

    def dies_at_the_fourth(tx: sa.Connection, device_id: int, cause: Cause) -> DeviceRecord | None:
        if device_id == made[3].id:
            raise KeyboardInterrupt
        return put_right(tx, device_id, cause)

    put_right = backfill.put_right
    monkeypatch.setattr(backfill, "put_right", dies_at_the_fourth)
    with pytest.raises(KeyboardInterrupt):
        run_all(database)
    assert [state_of(database, device) is None for device in made] == [False, False, True, True, True]
    monkeypatch.setattr(backfill, "put_right", put_right)
    assert run_all(database)[STATES.name] == (3, 3)
    with database.read() as tx:
        assert [len(history.history(tx, device.uuid)) for device in made] == [1] * 5


def at_once(*works: Callable[[], None]) -> list[BaseException]:
    """Run them in threads of their own, as close together as can be; what they raised."""
    start, failures = threading.Barrier(len(works), timeout=60), []

    def begin(work: Callable[[], None]) -> None:
        start.wait()
        try:
            work()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=begin, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return failures


def test_backfills_at_once_give_every_device_one_state_and_one_line_of_history(database: Database) -> None:
    with database.write() as tx:
        slots = [make_slot(tx, device_state=None, hostname=f"host-{number % 2}") for number in range(60)]
        for slot in slots[::3]:
            bound_by_the_release_before(tx, slot)
    entries = [lambda: run_all(database), lambda: run_all(database), lambda: run_all(database, hostname="host-1")]
    assert at_once(*entries) == []
    for number, slot in enumerate(slots):
        with database.read() as tx:
            assert len(history.history(tx, slot.device.uuid)) == 1
        assert state_of(database, slot.device) == ("available" if number % 3 else "allocated")


def test_a_backfill_beside_binds_of_the_release_before_offers_nothing_that_a_guest_has(database: Database) -> None:
    with database.write() as tx:
        slots = [make_slot(tx, device_state=None) for _ in range(40)]

    def bind_them() -> None:
        for slot in reversed(slots):
            with database.write() as tx:
                bound_by_the_release_before(tx, slot)

    assert at_once(lambda: run_all(database), bind_them) == []
    run_all(database)
    assert {state_of(database, slot.device) for slot in slots} == {DeviceState.ALLOCATED}
    with database.read() as tx:
        assert backlog.devices_with_unlinked_requests(tx) == []
        assert tx.scalar(sa.select(sa.func.count()).where(devices.c.device_state.is_(None))) == 0
