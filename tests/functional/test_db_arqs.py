"""A request is moved by exactly one of those who try, on SQLite, PostgreSQL and MariaDB alike."""

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from autoclave.db import arqs
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.rules.device_lifecycle import ACTIVE, BINDABLE, ARQState
from dbfixtures import make_arq, make_slot

ROUNDS = 15


def test_of_two_binders_exactly_one_wins_each_request(database: Database) -> None:
    with database.write() as tx:
        uuids = [make_arq(tx).uuid for _ in range(ROUNDS)]
    start = threading.Barrier(2, timeout=60)

    def bind(owner: str) -> list[bool]:
        won = []
        for uuid in uuids:
            start.wait()
            with database.write() as tx:
                won.append(arqs.swap(tx, uuid, BINDABLE, ARQState.BIND_STARTED, {"lease_owner": owner}))
        return won

    with ThreadPoolExecutor(2) as pool:
        mine, theirs = pool.map(bind, ["mine", "theirs"])
    assert [a + b for a, b in zip(mine, theirs, strict=True)] == [1] * ROUNDS
    with database.read() as tx:
        owners = [arq.lease_owner for arq in arqs.get_many(tx, uuids)]
    assert owners == ["mine" if won else "theirs" for won in mine]


def test_a_swap_moves_only_from_the_states_it_names(database: Database) -> None:
    with database.write() as tx:
        made = {state: make_arq(tx, state=state).uuid for state in ARQState}
        moved = {s for s, uuid in made.items() if arqs.swap(tx, uuid, BINDABLE, ARQState.BIND_STARTED)}
        assert not arqs.swap(tx, "nobody", BINDABLE, ARQState.BIND_STARTED)
    assert moved == BINDABLE
    with database.read() as tx:
        for state, uuid in made.items():
            found = arqs.get(tx, uuid)
            assert found is not None
            assert found.state is (ARQState.BIND_STARTED if state in BINDABLE else state)


def test_a_swap_to_the_same_state_counts_as_won(database: Database) -> None:
    """MariaDB counts rows that changed, not rows that matched, unless it is told otherwise."""
    with database.write() as tx:
        uuid = make_arq(tx, state=ARQState.DELETING).uuid
        for _ in range(2):
            assert arqs.swap(tx, uuid, {ARQState.DELETING}, ARQState.DELETING)


def test_a_lease_that_was_taken_over_moves_nothing(database: Database) -> None:
    with database.write() as tx:
        uuid = make_arq(tx, state=ARQState.BIND_STARTED, lease_owner="sweeper").uuid
        assert not arqs.swap(tx, uuid, {ARQState.BIND_STARTED}, ARQState.BOUND, lease_owner="req-1")
        assert arqs.swap(
            tx, uuid, {ARQState.BIND_STARTED}, ARQState.BIND_FAILED, {"state_reason": "late"}, lease_owner="sweeper"
        )
        found = arqs.get(tx, uuid, lock=True)
    assert found is not None
    assert (found.state, found.state_reason) == (ARQState.BIND_FAILED, "late")


def test_a_swap_whose_transaction_fails_moved_nothing(database: Database) -> None:
    with database.write() as tx:
        uuid = make_arq(tx).uuid

    def swap_and_fail() -> None:
        with database.write() as tx:
            assert arqs.swap(tx, uuid, BINDABLE, ARQState.BIND_STARTED)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        swap_and_fail()
    with database.read() as tx:
        found = arqs.get(tx, uuid)
    assert found is not None
    assert found.state is ARQState.INITIAL


def test_only_work_that_was_begun_and_ran_out_is_expired(database: Database) -> None:
    now = utcnow()
    past, future = now - timedelta(milliseconds=1), now + timedelta(milliseconds=1)
    with database.write() as tx:
        for state in ARQState:
            make_arq(tx, uuid=f"{state} past", state=state, lease_expires_at=past)
            make_arq(tx, uuid=f"{state} future", state=state, lease_expires_at=future)
            make_arq(tx, uuid=f"{state} none", state=state)
        make_arq(tx, uuid="at this moment", state=ARQState.DELETING, lease_expires_at=now)
    with database.read() as tx:
        found = [arq.uuid for arq in arqs.expired(tx, now)]
    assert found == ["BindStarted past", "Deleting past", "at this moment"]


def test_a_device_is_held_by_the_requests_that_are_active(database: Database) -> None:
    with database.write() as tx:
        mine, other = make_slot(tx), make_slot(tx)
        for state in ARQState:
            make_arq(tx, uuid=state, state=state, device_id=mine.device.id)
        make_arq(tx, state=ARQState.BOUND, device_id=other.device.id)
    with database.read() as tx:
        assert {arq.state for arq in arqs.active_of_device(tx, mine.device.id)} == ACTIVE


def test_requests_are_found_by_instance_and_by_uuid_in_order(database: Database) -> None:
    with database.write() as tx:
        for uuid, instance in (("c", "vm-1"), ("a", "vm-1"), ("b", "vm-2")):
            make_arq(tx, uuid=uuid, instance_uuid=instance)
        arqs.delete(tx, "nobody")
    with database.read() as tx:
        assert [arq.uuid for arq in arqs.of_instance(tx, "vm-1")] == ["c", "a"]
        assert [arq.uuid for arq in arqs.get_many(tx, ["b", "nobody", "c"])] == ["c", "b"]
        assert arqs.get_many(tx, []) == []
    with database.write() as tx:
        arqs.delete(tx, "c")
        assert arqs.get(tx, "c") is None
        assert arqs.get(tx, "a") is not None


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ({}, "abc"),
        ({"uuids": ["c", "a", "nobody"]}, "ac"),
        ({"uuids": []}, ""),
        ({"project_id": "p1"}, "ab"),
        ({"project_id": "P1"}, ""),
        ({"instance_uuid": "vm"}, "b"),
        ({"states": [ARQState.BOUND, ARQState.DELETING]}, "b"),
        ({"states": []}, ""),
        ({"after": "a"}, "bc"),
        ({"after": "a", "limit": 1}, "b"),
        ({"after": "nobody"}, ""),
    ],
)
def test_views_hold_what_was_asked_for(database: Database, question: dict[str, Any], answer: str) -> None:
    with database.write() as tx:
        make_arq(tx, uuid="a", project_id="p1")
        make_arq(tx, uuid="b", project_id="p1", instance_uuid="vm", state=ARQState.BOUND)
        make_arq(tx, uuid="c", project_id=None)
    with database.read() as tx:
        assert "".join(view.arq.uuid for view in arqs.views(tx, **question)) == answer


def test_a_view_shows_profile_and_handle(database: Database) -> None:
    with database.write() as tx:
        slot = make_slot(tx)
        free = make_arq(tx)
        bound = make_arq(tx, state=ARQState.BOUND, attach_handle_id=slot.handle_id, delete_when_unbound=True)
    with database.read() as tx:
        first, second = arqs.views(tx)
    assert first.arq == free
    assert second.arq == bound
    assert (first.device_profile_name, second.device_profile_name) == ("fast-drive", "fast-drive")
    assert (first.attach_handle_type, first.attach_handle_uuid, first.attach_handle_info) == ("", None, None)
    assert (second.attach_handle_type, second.attach_handle_info) == ("PCI", '{"bus": "0a"}')
    assert second.arq.delete_when_unbound is True
