"""SQLite keeps what it was told, lets threads and processes take turns, and says in words when it cannot."""

import logging
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import sqlalchemy as sa

from autoclave.db.engine import Database
from autoclave.exceptions import DatabaseUnavailable, InvalidConfiguration

_counter = sa.Table("counter", sa.MetaData(), sa.Column("id", sa.Integer, primary_key=True), sa.Column("n", sa.Integer))


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    found = Database(f"sqlite:///{tmp_path / 'test.db'}")
    with found.write() as tx:
        tx.execute(sa.schema.CreateTable(_counter))
        tx.execute(_counter.insert().values(id=1, n=0))
    yield found
    found.dispose()


def count(database: Database) -> int:
    with database.read() as tx:
        return int(tx.scalar(sa.select(_counter.c.n)))


def read_modify_write(database: Database) -> None:
    with database.write() as tx:
        n = tx.scalar(sa.select(_counter.c.n))
        tx.execute(_counter.update().values(n=n + 1))


@pytest.mark.parametrize("kind", ["write", "read"])
def test_a_power_cut_takes_back_nothing_and_references_hold(database: Database, kind: str) -> None:
    with getattr(database, kind)() as tx:
        pragmas = {
            name: tx.exec_driver_sql(f"PRAGMA {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys", "query_only")
        }
    full = 2
    assert pragmas == {
        "journal_mode": "wal",
        "synchronous": full,
        "foreign_keys": 1,
        "query_only": int(kind == "read"),
    }


def test_a_reader_cannot_write(database: Database) -> None:
    with pytest.raises(DatabaseUnavailable, match="readonly"), database.read() as tx:
        tx.execute(_counter.update().values(n=7))
    assert count(database) == 0


def test_eight_threads_lose_no_update(database: Database) -> None:
    with ThreadPoolExecutor(8) as pool:
        for outcome in [pool.submit(read_modify_write, database) for _ in range(400)]:
            outcome.result()
    assert count(database) == 400


def test_a_second_process_loses_no_update(database: Database, tmp_path: Path) -> None:
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "import test_engine as t\n"
        "d = t.Database(sys.argv[2])\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "for _ in range(150): t.read_modify_write(d)\n"
    )
    url = f"sqlite:///{tmp_path / 'test.db'}"
    argv = [sys.executable, "-c", script, str(Path(__file__).parent), url]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout
        assert other.stdin
        assert other.stdout.readline() == "ready\n"
        other.stdin.write("go\n")
        other.stdin.flush()
        with ThreadPoolExecutor(4) as pool:
            for outcome in [pool.submit(read_modify_write, database) for _ in range(150)]:
                outcome.result()
        other.stdin.close()
        assert other.wait() == 0
    assert count(database) == 300


def test_an_exception_takes_the_transaction_back(database: Database) -> None:
    def write_and_fail() -> None:
        with database.write() as tx:
            tx.execute(_counter.update().values(n=7))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()
    assert count(database) == 0


def test_a_reader_does_not_wait_for_a_writer_and_sees_what_was_before(database: Database) -> None:
    with database.write() as tx:
        tx.execute(_counter.update().values(n=7))
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(count, database).result() == 0
    assert count(database) == 7


def test_a_read_is_one_view_whatever_is_committed_meanwhile(database: Database) -> None:
    with database.read() as tx:
        before = tx.scalar(sa.select(_counter.c.n))
        read_modify_write(database)
        assert tx.scalar(sa.select(_counter.c.n)) == before
    assert count(database) == 1


def test_a_file_that_another_process_locks_too_long_is_unavailable(database: Database, tmp_path: Path) -> None:
    other = Database(f"sqlite:///{tmp_path / 'test.db'}")
    sa.event.listen(other.writer_engine, "connect", lambda dbapi, _: dbapi.execute("PRAGMA busy_timeout=20"))
    with database.write(), pytest.raises(DatabaseUnavailable, match="locked"), other.write():
        pass
    other.dispose()


def test_an_integrity_error_is_not_taken_for_a_database_that_is_away(database: Database) -> None:
    from oslo_db.exception import DBDuplicateEntry

    with pytest.raises(DBDuplicateEntry), database.write() as tx:
        tx.execute(_counter.insert().values(id=1, n=0))


def test_a_missing_table_is_not_taken_for_a_database_that_is_away(database: Database) -> None:
    from oslo_db.exception import DBNonExistentTable

    with pytest.raises(DBNonExistentTable), database.read() as tx:
        tx.exec_driver_sql("SELECT * FROM nowhere")


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("sqlite:///{}/no/such/directory/a.db", "unable to open database file"),
        ("sqlite:///{}/garbage.db", "file is not a database"),
        ("postgresql+psycopg://someone@127.0.0.1:1/x", "refused"),
        ("mysql+pymysql://someone@127.0.0.1:1/x", "refused"),
    ],
)
def test_a_database_that_cannot_be_reached_is_unavailable_in_one_line(
    tmp_path: Path, url: str, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "oslo_db")
    (tmp_path / "garbage.db").write_bytes(b"not SQLite " * 100)
    away = Database(url.format(tmp_path))
    for kind in (away.read, away.write):
        with pytest.raises(DatabaseUnavailable, match=said) as raised, kind():
            pass
        assert "\n" not in str(raised.value)
    away.dispose()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("autoclave.db", "not an SQLAlchemy URL"),
        ("postgresql+psycopg://a@host:notaport/autoclave", "not an SQLAlchemy URL"),
        ("oracle://someone@127.0.0.1/x", "oracle is not supported"),
        ("postgresql+nosuchdriver://127.0.0.1/x", "no driver for this URL"),
        ("sqlite://", "SQLite needs a file"),
        ("sqlite:///:memory:", "SQLite needs a file"),
    ],
)
def test_an_unusable_url_is_refused_by_the_name_of_its_option(url: str, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said) as raised:
        Database(url)
    assert raised.value.option == "[database] connection"


def test_a_transaction_of_the_same_process_waits_for_its_turn(database: Database) -> None:
    order: list[str] = []
    begun = threading.Event()

    def second() -> None:
        begun.set()
        with database.write() as tx:
            order.append(f"second sees {tx.scalar(sa.select(_counter.c.n))}")

    with ThreadPoolExecutor(1) as pool:
        with database.write() as tx:
            outcome = pool.submit(second)
            begun.wait()
            tx.execute(_counter.update().values(n=5))
            order.append("first")
        outcome.result()
    assert order == ["first", "second sees 5"]


def test_a_new_file_that_another_process_writes_first_is_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    other.execute("BEGIN IMMEDIATE")
    other.execute("CREATE TABLE first (id INTEGER)")
    waiting = threading.Timer(0.3, other.execute, ["COMMIT"])
    waiting.start()
    database = Database(f"sqlite:///{path}")
    with database.read() as tx:
        assert sa.inspect(tx).get_table_names() == ["first"]
        assert tx.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    waiting.join()
    other.close()
    database.dispose()
