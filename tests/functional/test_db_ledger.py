"""A dirty drive is known by its serial number and model, on SQLite, PostgreSQL and MariaDB."""

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import sqlalchemy as sa

from autoclave.db import history
from autoclave.db.engine import Database


def test_a_drive_is_dirty_from_the_first_note_to_the_proof(database: Database) -> None:
    with database.write() as tx:
        assert not history.contains(tx, "S1", "M")
        history.add(tx, "S1", "M", "d")
        history.add(tx, "S1", "M", "another slot")
        history.add(tx, "S2", "M", "d")
        assert history.contains(tx, "S1", "M")
        assert not history.contains(tx, "s1", "M")
        assert not history.contains(tx, "S1", "other model")
    with database.write() as tx:
        history.remove(tx, "S1", "M")
        history.remove(tx, "S1", "M")
        assert not history.contains(tx, "S1", "M")
        assert history.contains(tx, "S2", "M")


def test_the_dirty_ones_among_many_are_found_at_once(database: Database) -> None:
    with database.write() as tx:
        history.add(tx, "S1", "M", "d")
        history.add(tx, "S2", "N", "d")
    with database.read() as tx:
        assert history.among(tx, ["S1", "S3"]) == {("S1", "M")}
        assert history.among(tx, []) == set()


def test_a_drive_that_two_hosts_note_at_once_is_noted_and_both_go_on(row_locking_database: Database) -> None:
    engine = row_locking_database.writer_engine
    second_inserts = threading.Event()

    def before(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        if sql.startswith("INSERT INTO dirty_serials") and threading.current_thread() is not threading.main_thread():
            second_inserts.set()

    def note() -> None:
        with row_locking_database.write() as tx:
            history.add(tx, "S1", "M", "two")
            history.add(tx, "S2", "M", "two")

    sa.event.listen(engine, "before_cursor_execute", before)
    try:
        with ThreadPoolExecutor(1) as pool:
            with row_locking_database.write() as tx:
                history.add(tx, "S1", "M", "one")
                outcome = pool.submit(note)
                assert second_inserts.wait(30)
            outcome.result()
    finally:
        sa.event.remove(engine, "before_cursor_execute", before)
    with row_locking_database.read() as tx:
        assert history.among(tx, ["S1", "S2"]) == {("S1", "M"), ("S2", "M")}
