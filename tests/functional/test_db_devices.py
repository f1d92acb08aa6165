"""The statements about devices and deployables mean the same on SQLite, PostgreSQL and MariaDB."""

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry, DBReferenceError

from autoclave.db import devices
from autoclave.db.engine import Database
from autoclave.db.tables import DeviceStatus, DeviceType, attributes, controlpath_ids, deployables
from autoclave.db.tables import devices as table
from autoclave.exceptions import DatabaseUnavailable
from autoclave.rules.device_lifecycle import ACTIVE, ARQState, DeviceState
from dbfixtures import make_arq, make_device, make_handle, make_slot


def test_a_new_row_is_read_back_typed_and_owes_nothing(database: Database) -> None:
    with database.write() as tx:
        made = make_device(tx, progress_percent=12.5)
    with database.read() as tx:
        found = devices.get(tx, made.uuid)
    assert found == made
    assert found.type is DeviceType.NVME
    assert found.status is DeviceStatus.ENABLED
    assert found.device_state is DeviceState.AVAILABLE
    assert (found.held, found.missing, found.release_pending, found.progress_stalled) == (False,) * 4
    assert found.progress_percent == 12.5
    assert (found.state_version, found.release_number) == (1, 0)


def test_a_moment_keeps_its_fraction_of_a_second(database: Database) -> None:
    with database.write() as tx:
        moments = {make_device(tx).created_at.microsecond for _ in range(5)}
    assert moments != {0}


def test_an_unknown_device_is_none(database: Database) -> None:
    with database.read() as tx:
        assert devices.get(tx, "nobody") is None
        assert devices.get_by_id(tx, 4711) is None
        assert devices.by_provider(tx, "nobody") is None


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ({}, "abc"),
        ({"device_type": "NVME"}, "ac"),
        ({"device_type": DeviceType.GPU}, "b"),
        ({"device_type": "nvme"}, ""),
        ({"device_type": "TOASTER"}, ""),
        ({"device_type": ""}, ""),
        ({"hostname": "host-1"}, "ab"),
        ({"hostname": "HOST-1"}, ""),
        ({"states": [DeviceState.ERROR, DeviceState.AVAILABLE]}, "ac"),
        ({"states": []}, ""),
        ({"release_pending": True}, "c"),
        ({"release_pending": False}, "ab"),
        ({"limit": 2}, "ab"),
        ({"after": "a"}, "bc"),
        ({"after": "a", "limit": 1}, "b"),
        ({"after": "nobody"}, ""),
        ({"hostname": "host-1", "device_type": "NVME"}, "a"),
    ],
)
def test_a_list_holds_what_was_asked_for_in_the_order_of_discovery(
    database: Database, question: dict[str, Any], answer: str
) -> None:
    with database.write() as tx:
        make_device(tx, uuid="a")
        make_device(tx, uuid="b", type=DeviceType.GPU, device_state=None)
        make_device(tx, uuid="c", hostname="host-2", device_state=DeviceState.ERROR, release_pending=True)
    with database.read() as tx:
        assert "".join(device.uuid for device in devices.list_all(tx, **question)) == answer


def test_an_allocated_device_that_only_finished_requests_name_is_held_by_nobody(database: Database) -> None:
    with database.write() as tx:
        made = {}
        for state in ARQState:
            made[state] = make_device(tx, device_state=DeviceState.ALLOCATED)
            make_arq(tx, device_id=made[state].id, state=state)
        lonely = make_device(tx, device_state=DeviceState.ALLOCATED)
        make_device(tx, device_state=DeviceState.AVAILABLE)
        make_device(tx, device_state=DeviceState.ALLOCATED, hostname="host-2")
    with database.read() as tx:
        found = [device.uuid for device in devices.held_in_part(tx, "host-1")]
    assert found == [made[state].uuid for state in ARQState if state not in ACTIVE] + [lonely.uuid]


def test_an_update_writes_the_row_it_was_given_and_no_other(database: Database) -> None:
    with database.write() as tx:
        one, other = make_device(tx), make_device(tx)
        devices.update(tx, one, {"held": True, "hold_reason": "smells"})
        changed = devices.get(tx, one.uuid)
        untouched = devices.get(tx, other.uuid)
    assert changed is not None
    assert (changed.held, changed.hold_reason) == (True, "smells")
    assert changed.updated_at is not None
    assert untouched == other


@pytest.mark.parametrize(
    ("state", "run", "shown"),
    [
        (DeviceState.CLEANING, "run-1", 40.0),
        (DeviceState.CLEANING, "run-0", None),
        (DeviceState.ERROR, "run-1", None),
    ],
)
def test_progress_is_shown_only_by_the_run_that_cleans(
    database: Database, state: DeviceState, run: str, shown: float | None
) -> None:
    with database.write() as tx:
        device = make_device(tx, device_state=state, agent_run_id="run-1")
        devices.set_progress(tx, device.uuid, run, percent=40.0, step="sanitize", stalled=True, seconds_left=9.5)
        found = devices.get(tx, device.uuid)
    assert found is not None
    assert found.progress_percent == shown
    assert found.progress_stalled is (shown is not None)


def test_a_forgotten_device_takes_along_all_that_hangs_on_it_and_nothing_else(database: Database) -> None:
    with database.write() as tx:
        gone, kept = make_slot(tx), make_slot(tx)
        child = devices.insert_deployable(
            tx,
            {
                "uuid": str(uuid.uuid4()),
                "name": "child",
                "num_accelerators": 1,
                "device_id": gone.device.id,
                "parent_id": gone.deployable.id,
                "root_id": gone.deployable.id,
                "rp_uuid": str(uuid.uuid4()),
                "resource_class": "CUSTOM_NVME",
                "driver_name": "nvme_driver",
            },
        )
        make_handle(tx, child, "child")
        for slot in (gone, kept):
            tx.execute(
                attributes.insert().values(uuid=slot.device.uuid, deployable_id=slot.deployable.id, key="k", value="v")
            )
            tx.execute(
                controlpath_ids.insert().values(
                    uuid=slot.device.uuid, device_id=slot.device.id, cpid_type="PCI", cpid_info=""
                )
            )
        devices.delete(tx, gone.device)
    with database.read() as tx:
        assert [device.uuid for device in devices.list_all(tx)] == [kept.device.uuid]
        assert [d.rp_uuid for d in devices.deployables_of(tx)] == [kept.deployable.rp_uuid]
        assert tx.scalars(sa.select(attributes.c.uuid)).all() == [kept.device.uuid]
        assert tx.scalars(sa.select(controlpath_ids.c.uuid)).all() == [kept.device.uuid]


def test_a_device_that_a_request_names_cannot_be_forgotten(database: Database) -> None:
    with database.write() as tx:
        slot = make_slot(tx)
        make_arq(tx, device_id=slot.device.id, attach_handle_id=slot.handle_id, state=ARQState.BOUND)
    with pytest.raises(DBReferenceError), database.write() as tx:
        devices.delete(tx, slot.device)
    with database.read() as tx:
        assert devices.get(tx, slot.device.uuid) == slot.device


def test_deployables_are_found_by_device_and_by_provider(database: Database) -> None:
    with database.write() as tx:
        one, two, three = make_slot(tx), make_slot(tx), make_slot(tx)
        devices.set_resource_class(tx, two.deployable, "CUSTOM_OTHER")
    with database.read() as tx:
        assert devices.by_provider(tx, one.deployable.rp_uuid) == (one.deployable, one.device)
        asked = devices.deployables_of(tx, [three.device.id, two.device.id])
        assert [d.uuid for d in asked] == [two.deployable.uuid, three.deployable.uuid]
        assert [d.resource_class for d in asked] == ["CUSTOM_OTHER", "CUSTOM_NVME"]
        assert devices.deployables_of(tx, []) == []
        assert len(devices.deployables_of(tx)) == 3


@pytest.mark.parametrize("column", ["uuid", "name", "rp_uuid"])
def test_a_second_deployable_of_the_same_identity_is_refused_as_a_duplicate(database: Database, column: str) -> None:
    with database.write() as tx:
        slot = make_slot(tx)
    row = {
        "uuid": "u",
        "name": "n",
        "rp_uuid": "p",
        "num_accelerators": 1,
        "device_id": slot.device.id,
        "resource_class": "CUSTOM_NVME",
        "driver_name": "nvme_driver",
    }
    with pytest.raises(DBDuplicateEntry), database.write() as tx:
        devices.insert_deployable(tx, {**row, column: getattr(slot.deployable, column)})
    with database.read() as tx:
        assert tx.scalar(sa.select(sa.func.count()).select_from(deployables)) == 1


def test_a_locked_device_changes_for_one_transaction_at_a_time(database: Database) -> None:
    with database.write() as tx:
        made = make_device(tx)

    def count_up(_: int) -> None:
        with database.write() as tx:
            found = devices.get(tx, made.uuid, lock=True)
            assert found is not None
            devices.update(tx, found, {"release_number": found.release_number + 1})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count_up, range(40)))
    with database.read() as tx:
        found = devices.get_by_id(tx, made.id)
    assert found is not None
    assert found.release_number == 40


def test_of_two_transactions_that_block_each_other_who_is_told_has_done_nothing(
    row_locking_database: Database,
) -> None:
    with row_locking_database.write() as tx:
        one, two = make_device(tx), make_device(tx)
    both_hold_one = threading.Barrier(2, timeout=60)

    def lock(first: devices.DeviceRecord, second: devices.DeviceRecord, name: str) -> str:
        try:
            with row_locking_database.write() as tx:
                devices.update(tx, first, {"hold_reason": name})
                both_hold_one.wait()
                devices.update(tx, second, {"hold_reason": name})
        except DatabaseUnavailable:
            return "told"
        return name

    with ThreadPoolExecutor(2) as pool:
        outcomes = [pool.submit(lock, one, two, "a"), pool.submit(lock, two, one, "b")]
        ended = sorted(outcome.result() for outcome in outcomes)
    # On a busy machine each may find out at the same moment, and both are told.
    assert ended in (["a", "told"], ["b", "told"], ["told", "told"])
    with row_locking_database.read() as tx:
        written = {device.hold_reason for device in devices.list_all(tx)}
    assert written == {None if ended[0] == "told" else ended[0]}


def test_a_row_that_stays_locked_too_long_is_unavailable(row_locking_database: Database) -> None:
    patience = {
        "postgresql": "SET LOCAL lock_timeout = '50ms'",
        "mysql": "SET SESSION innodb_lock_wait_timeout = 1",
    }[row_locking_database.backend]
    impatient = Database(row_locking_database.writer_engine.url.render_as_string(hide_password=False))
    with row_locking_database.write() as tx:
        made = make_device(tx)

    def try_it() -> None:
        with impatient.write() as tx:
            tx.exec_driver_sql(patience)
            devices.get(tx, made.uuid, lock=True)

    with row_locking_database.write() as holder:
        assert devices.get(holder, made.uuid, lock=True)
        with ThreadPoolExecutor(1) as pool, pytest.raises(DatabaseUnavailable, match=r"(?i)lock"):
            pool.submit(try_it).result()
    impatient.dispose()
    with row_locking_database.read() as tx:
        assert tx.scalar(sa.select(sa.func.count()).select_from(table)) == 1
