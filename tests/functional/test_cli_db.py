"""``autoclave db version`` and ``autoclave db online-data-migrations``: output and exit codes."""

import io
import socket
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import sqlalchemy as sa
from cliff.app import App
from cliff.command import Command
from cliff.commandmanager import CommandManager

from autoclave.cli.db import DbOnlineDataMigrations, DbSync, DbVersion
from autoclave.db import devices as device_rows
from autoclave.db import schema
from autoclave.db.engine import Database
from autoclave.exceptions import DatabaseUnavailable, InvalidConfiguration
from autoclave.lifecycle import backfill
from dbfixtures import make_device

PATIENCE = 60

Run = Callable[..., tuple[int, str]]


def url_of(database: Database) -> str:
    return database.writer_engine.url.render_as_string(hide_password=False)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Runs a command on a database; its exit code and what it said."""

    def run(command: type[Command], url: str, *arguments: str, timeout: int = 30) -> tuple[int, str]:
        config = tmp_path / "autoclave.conf"
        config.write_text(f"[database]\nconnection = {url}\ntimeout = {timeout}\n")
        output = io.StringIO()
        app = App("autoclave", "test", CommandManager("autoclave.test"), stdout=output, stderr=output)
        made = command(app, None)
        parsed = made.get_parser("x").parse_args(["--config-file", str(config), *arguments])
        return made.run(parsed), output.getvalue()

    return run


def without_state(database: Database, number: int) -> None:
    with database.write() as tx:
        for _ in range(number):
            make_device(tx, device_state=None)


def left(database: Database) -> int:
    with database.read() as tx:
        return sum(device.device_state is None for device in device_rows.list_all(tx))


def test_all_rows_are_put_right_and_counted(database: Database, run: Run) -> None:
    without_state(database, 3)
    code, said = run(DbOnlineDataMigrations, url_of(database))
    assert code == 0
    assert "| backfill_device_state     | 3            | 3         |" in said
    assert left(database) == 0
    code, said = run(DbOnlineDataMigrations, url_of(database))
    assert code == 0
    assert "| backfill_device_state     | 0            | 0         |" in said


def test_a_limited_run_is_repeated_until_it_has_nothing_to_do(database: Database, run: Run) -> None:
    without_state(database, 3)
    codes = [run(DbOnlineDataMigrations, url_of(database), "--max-count", "2")[0] for _ in range(3)]
    assert codes == [1, 1, 0]
    assert left(database) == 0


@pytest.mark.parametrize("number", ["0", "-1", "many", "1.5", ""])
def test_a_count_that_is_none_is_refused_as_elsewhere_in_openstack(tmp_path: Path, run: Run, number: str) -> None:
    code, said = run(DbOnlineDataMigrations, f"sqlite:///{tmp_path / 'none.db'}", f"--max-count={number}")
    assert code == 127
    assert "--max-count" in said


def test_a_database_that_fails_is_told_apart_from_one_that_is_done(
    database: Database, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_state(database, 1)

    def fails(*_arguments: object, **_options: object) -> None:
        raise DatabaseUnavailable("it went away")

    monkeypatch.setattr(backfill, "run", fails)
    code, said = run(DbOnlineDataMigrations, url_of(database))
    assert code == 2
    assert "backfill_device_state failed and must be run again: it went away" in said


def test_rows_are_not_touched_before_the_schema_is_the_one_that_is_needed(empty_url: str, run: Run) -> None:
    database = Database(empty_url)
    schema.upgrade(database, "0001_base")
    database.dispose()
    with pytest.raises(InvalidConfiguration, match="autoclave db sync"):
        run(DbOnlineDataMigrations, empty_url)


def test_the_version_is_shown_before_and_after(empty_url: str, run: Run) -> None:
    shown = sa.make_url(empty_url).render_as_string()
    code, said = run(DbVersion, empty_url)
    assert (code, said) == (0, f"{shown}: no schema; this version needs {schema.head()}\n")
    run(DbSync, empty_url)
    assert run(DbVersion, empty_url)[1] == f"{shown}: {schema.head()}; this version needs {schema.head()}\n"


@pytest.mark.parametrize("command", [DbSync, DbVersion, DbOnlineDataMigrations])
@pytest.mark.parametrize(
    ("url", "shown", "remedy"),
    [
        ("postgresql+psycopg://u:secret@127.0.0.1:1/x", "postgresql+psycopg://u:***@127.0.0.1:1/x", "user, password"),
        ("mysql+pymysql://u:secret@127.0.0.1:1/x", "mysql+pymysql://u:***@127.0.0.1:1/x", "user, password"),
        ("sqlite:////nowhere/a.db", "sqlite:////nowhere/a.db", "may write to it and to its directory"),
    ],
    ids=["postgresql", "mariadb", "sqlite"],
)
def test_a_database_that_cannot_be_reached_is_named_by_option_and_url_with_what_to_look_at(
    command: type[Command], url: str, shown: str, remedy: str, run: Run
) -> None:
    with pytest.raises(DatabaseUnavailable) as raised:
        run(command, url)
    said = str(raised.value)
    assert said.startswith(f"[database] connection: {shown} cannot be used: ")
    assert remedy in said
    assert "secret" not in said


@pytest.mark.parametrize("url", ["postgresql+psycopg://u@127.0.0.1:{}/x", "mysql+pymysql://u@127.0.0.1:{}/x"])
def test_a_server_that_says_nothing_does_not_keep_db_sync_for_ever(url: str, run: Run) -> None:
    told: list[BaseException] = []

    def sync(port: int) -> None:
        try:
            run(DbSync, url.format(port), timeout=1)
        except DatabaseUnavailable as error:
            told.append(error)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        syncing = threading.Thread(target=sync, args=[silent.getsockname()[1]], daemon=True)
        syncing.start()
        syncing.join(PATIENCE)
    assert told, "it waits for ever"
