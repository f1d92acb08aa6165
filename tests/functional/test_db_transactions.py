"""Transactions: which are run again when the engine gives them up, what readers see, and how long anybody waits."""

import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db import devices as device_rows
from autoclave.db import engine, history
from autoclave.db.engine import Database
from autoclave.db.tables import devices, dirty_serials
from autoclave.exceptions import DatabaseUnavailable, TransactionAborted
from dbfixtures import make_device

PATIENCE = 60
"""Seconds until a test gives up that waits for another thread."""

Work = Callable[[Connection], None]


class Deadlock:
    """Two transactions that lock two devices in opposite order; the first try of each meets the other's."""

    def __init__(self, database: Database) -> None:
        with database.write() as tx:
            self.uuids = [make_device(tx, vendor="none").uuid for _ in range(2)]
        self.tries = 0
        self._meeting = threading.Barrier(2)
        self._count = threading.Lock()

    def works(self) -> Sequence[Work]:
        return [self._work("first", self.uuids), self._work("second", self.uuids[::-1])]

    def _work(self, name: str, uuids: Sequence[str]) -> Work:
        met = False

        def work(tx: Connection) -> None:
            nonlocal met
            with self._count:
                self.tries += 1
            device = device_rows.get(tx, uuids[0], lock=True)
            assert device is not None
            device_rows.update(tx, device, {"vendor": device.vendor + f" {name}"})
            if not met:
                met = True
                self._meeting.wait(PATIENCE)
            device_rows.get(tx, uuids[1], lock=True)

        return work


def vendors(database: Database, uuids: Sequence[str]) -> list[str]:
    with database.read() as tx:
        return [tx.scalar(sa.select(devices.c.vendor).where(devices.c.uuid == uuid)) or "" for uuid in uuids]


def test_of_a_deadlock_both_transactions_are_carried_out_once(row_locking_database: Database) -> None:
    deadlock = Deadlock(row_locking_database)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(row_locking_database.transact, deadlock.works()))
    # One is given up; on a busy machine each may find the deadlock at the same moment, and both are.
    assert deadlock.tries in (3, 4), "nothing was tried again, or more often than it was given up"
    assert vendors(row_locking_database, deadlock.uuids) == ["none first", "none second"]


def test_without_another_try_the_one_that_was_given_up_has_written_nothing(row_locking_database: Database) -> None:
    deadlock = Deadlock(row_locking_database)

    def once(work: Work) -> Exception | None:
        try:
            with row_locking_database.write() as tx:
                work(tx)
        except TransactionAborted as error:
            return error
        return None

    with ThreadPoolExecutor(2) as pool:
        errors = list(pool.map(once, deadlock.works()))
    # On a busy machine each may find the deadlock at the same moment, and both are given up.
    assert any(errors)
    assert all("deadlock" in str(error).lower() for error in errors if error)
    written = [None if error else f"none {name}" for error, name in zip(errors, ("first", "second"), strict=True)]
    assert vendors(row_locking_database, deadlock.uuids) == [name or "none" for name in written]


def test_a_deadlock_inside_a_savepoint_is_known_for_what_it_is(row_locking_database: Database) -> None:
    """MariaDB ends the transaction with all its savepoints, and then complains of the one that it misses."""
    meeting = threading.Barrier(2)
    tries: list[str] = []

    def note(first: str, second: str) -> None:
        def work(tx: Connection) -> None:
            history.add(tx, first, "M", "device")
            if first not in tries:
                tries.append(first)
                meeting.wait(PATIENCE)
            else:
                tries.append("again")
            history.add(tx, second, "M", "device")

        row_locking_database.transact(work)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(note, ("S1", "S2"), ("S2", "S1")))
    assert "again" in tries
    with row_locking_database.read() as tx:
        assert tx.scalar(sa.select(sa.func.count()).select_from(dirty_serials)) == 2


def test_of_two_that_look_for_what_the_other_is_about_to_insert_one_finds_it(database: Database) -> None:
    meeting = threading.Barrier(2)

    def insert_the_first(serial: str) -> bool:
        met = False

        def work(tx: Connection) -> bool:
            nonlocal met
            if tx.execute(sa.select(dirty_serials.c.id)).first() is not None:
                return False
            if not met and database.backend != "sqlite":  # there, the second does not even begin
                met = True
                meeting.wait(PATIENCE)
            tx.execute(dirty_serials.insert().values(serial=serial, drive_model="M", device_uuid="d"))
            return True

        return database.transact(work, serializable=True)

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(insert_the_first, ("S1", "S2"))) == [False, True]


@pytest.mark.parametrize(
    ("error", "tries"), [(TransactionAborted("given up"), engine.ATTEMPTS), (DatabaseUnavailable("gone"), 1)]
)
def test_only_what_was_surely_not_written_is_tried_again_and_not_for_ever(
    database: Database, error: DatabaseUnavailable, tries: int
) -> None:
    tried = []

    def work(tx: Connection) -> None:
        tried.append(make_device(tx).uuid)
        raise error

    with pytest.raises(type(error)):
        database.transact(work)
    assert len(tried) == tries
    with database.read() as tx:
        assert device_rows.list_all(tx) == []


def timed(database: Database, timeout: int) -> Database:
    """The same database, for somebody who does not wait longer than *timeout* seconds."""
    return Database(database.writer_engine.url.render_as_string(hide_password=False), timeout=timeout)


def test_a_reader_sees_one_moment_whatever_others_commit_meanwhile(database: Database) -> None:
    with database.write() as tx:
        device = make_device(tx)

    with database.read() as reader:
        assert device_rows.get(reader, device.uuid) is not None
        with database.write() as tx:
            device_rows.delete(tx, device)
        assert device_rows.get(reader, device.uuid) is not None
    with database.read() as reader:
        assert device_rows.get(reader, device.uuid) is None


def test_a_lock_that_another_keeps_is_not_waited_for_beyond_the_timeout(row_locking_database: Database) -> None:
    hurried = timed(row_locking_database, 1)
    with row_locking_database.write() as tx:
        device = make_device(tx)

    begun = time.monotonic()
    with row_locking_database.write() as keeper:
        device_rows.get(keeper, device.uuid, lock=True)
        with pytest.raises(DatabaseUnavailable), hurried.write() as tx:
            device_rows.get(tx, device.uuid, lock=True)
    assert time.monotonic() - begun < PATIENCE
    hurried.dispose()


@pytest.mark.parametrize("url", ["postgresql+psycopg://u@127.0.0.1:{}/x", "mysql+pymysql://u@127.0.0.1:{}/x"])
def test_a_server_that_accepts_and_then_says_nothing_is_unavailable(url: str) -> None:
    pytest.importorskip("psycopg" if "psycopg" in url else "pymysql")
    told: list[BaseException] = []

    def ask(database: Database) -> None:
        try:
            with database.read():
                pass
        except DatabaseUnavailable as error:
            told.append(error)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        asking = threading.Thread(
            target=ask, args=[Database(url.format(silent.getsockname()[1]), timeout=1)], daemon=True
        )
        asking.start()
        asking.join(PATIENCE)
    assert told, "it waits for ever"
