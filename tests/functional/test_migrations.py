"""The schema after all revisions is the one that the statements are written for, and no row is lost on the way."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from migrating import PowerCutError, deaths, dying_at, sync
from oslo_db.exception import DBDuplicateEntry, DBError

from autoclave.db import schema
from autoclave.db.columns import metadata
from autoclave.db.engine import Database, current_revision
from autoclave.exceptions import DatabaseUnavailable, InvalidConfiguration
from autoclave.rules.device_lifecycle import DeviceState
from dbfixtures import make_device
from oldrows import address, column, insert, old_device

pytestmark = pytest.mark.matrix

HEAD = "0019_one_inventory"


@pytest.fixture
def empty(empty_url: str) -> Iterator[Database]:
    found = Database(empty_url)
    yield found
    found.dispose()


def shape(database: Database) -> dict[str, Any]:
    """All that an inspector can see, by table."""
    with database.writer_engine.connect() as connection:
        inspector = sa.inspect(connection)
        return {
            table: {
                "columns": {column["name"]: str(column["type"]) for column in inspector.get_columns(table)},
                "checks": {
                    check["name"]: "".join(str(check["sqltext"]).split()).replace("`", "")
                    for check in inspector.get_check_constraints(table)
                },
                "uniques": sorted(str(unique["name"]) for unique in inspector.get_unique_constraints(table)),
                "indexes": sorted(str(index["name"]) for index in inspector.get_indexes(table)),
                "references": sorted(
                    (str(key["name"]), key["referred_table"], str(key["options"].get("ondelete")))
                    for key in inspector.get_foreign_keys(table)
                ),
                "primary": inspector.get_pk_constraint(table)["constrained_columns"],
            }
            for table in inspector.get_table_names()
            if table != "alembic_version"
        }


def test_the_schema_is_the_one_that_the_statements_are_written_for(empty: Database) -> None:
    schema.upgrade(empty)
    options = {"compare_type": True, "compare_server_default": True}
    with empty.read() as tx:
        assert compare_metadata(MigrationContext.configure(tx, opts=options), metadata) == []


def test_the_schema_has_every_constraint_by_its_name(empty: Database, tmp_path: Path) -> None:
    with empty.writer_engine.begin() as connection:
        metadata.create_all(connection)
    wanted = shape(empty)
    with empty.writer_engine.begin() as connection:
        metadata.drop_all(connection)
    schema.upgrade(empty)
    assert shape(empty) == wanted


@pytest.mark.parametrize(
    ("table", "bad"),
    [
        ("devices", {"type": "TOASTER"}),
        ("devices", {"type": "nvme"}),
        ("devices", {"status": "tired"}),
        ("devices", {"device_state": "spotless"}),
        ("devices", {"device_state": "AVAILABLE"}),
        ("attach_handles", {"attach_type": "GLUE"}),
        ("extended_accelerator_requests", {"state": "Lost"}),
    ],
)
def test_the_engine_itself_refuses_a_value_that_is_not_in_the_table_of_states(
    database: Database, table: str, bad: dict[str, str]
) -> None:
    with database.write() as tx:
        device = make_device(tx)
        insert(tx, "device_profiles", id=1, uuid="p", name="p", profile_json="{}")
        insert(
            tx, "deployables", id=1, uuid="d", name="d", num_accelerators=1, device_id=device.id, rp_uuid="d",
            resource_class="X", driver_name="x",
        )  # fmt: skip
    good = {
        "devices": {"uuid": "u", "type": "NVME", "vendor": "v", "model": "m", "hostname": "h", "status": "enabled",
                    "pci_address": "a", "device_state": "error", "reclaim": "erase"},
        "attach_handles": {"uuid": "u", "deployable_id": 1, "attach_type": "PCI", "attach_info": "", "identity": ""},
        "extended_accelerator_requests": {"uuid": "u", "state": "Bound", "device_profile_id": 1,
                                          "device_profile_group_id": 0},
    }[table]  # fmt: skip
    with pytest.raises(DBError, match=r"(?i)check|constraint"), database.write() as tx:
        insert(tx, table, **{**good, **bad})
    with database.write() as tx:
        insert(tx, table, **good)


@pytest.mark.parametrize("state", [*DeviceState, None])
def test_every_state_of_the_table_can_be_stored(database: Database, state: DeviceState | None) -> None:
    with database.write() as tx:
        assert make_device(tx, device_state=state).device_state is state


def test_one_slot_is_one_device(database: Database) -> None:
    with database.write() as tx:
        make_device(tx, hostname="h", pci_address="0000:01:00.0")
        make_device(tx, hostname="other", pci_address="0000:01:00.0")
    with pytest.raises(DBDuplicateEntry), database.write() as tx:
        make_device(tx, hostname="h", pci_address="0000:01:00.0")


def test_a_migration_that_dies_anywhere_is_finished_by_the_next_one(empty: Database) -> None:
    schema.upgrade(empty, "0001_base")
    with empty.write() as tx:
        old_device(tx, 1, address("0a"))
    before = shape(empty)
    for statement in deaths(empty):
        try:
            with dying_at(empty, statement):
                schema.upgrade(empty)
        except PowerCutError:
            if empty.backend in ("sqlite", "postgresql"):
                assert shape(empty) == before, f"statement {statement}"
                assert current_revision(empty) == "0001_base"
            assert current_revision(empty) != HEAD  # MariaDB keeps what it has done
        else:
            break
    assert statement > 3
    assert current_revision(empty) == HEAD
    with empty.read() as tx:
        assert compare_metadata(MigrationContext.configure(tx, opts={"compare_type": True}), metadata) == []
    assert column(empty, "devices", "pci_address") == ["0000:0a:00.0"]


def test_a_first_schema_that_died_anywhere_is_finished_by_the_next_one(empty: Database) -> None:
    for statement in deaths(empty):
        try:
            with dying_at(empty, statement):
                schema.upgrade(empty, "0001_base")
        except PowerCutError:
            if empty.backend in ("sqlite", "postgresql"):
                assert shape(empty) == {}, f"statement {statement}"
        else:
            break
    assert statement > 3
    schema.upgrade(empty)
    with empty.read() as tx:
        assert compare_metadata(MigrationContext.configure(tx, opts={"compare_type": True}), metadata) == []


def test_references_hold_again_after_a_migration(empty: Database) -> None:
    schema.upgrade(empty)
    with pytest.raises(DBError), empty.write() as tx:
        insert(tx, "attributes", uuid="a", deployable_id=99, key="k", value="v")


def test_two_processes_that_migrate_at_once_do_not_disturb_each_other(empty_url: str) -> None:
    script = (
        "import sys\n"
        "from autoclave.db import schema\n"
        "from autoclave.db.engine import Database\n"
        "d = Database(sys.argv[1])\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "print(schema.upgrade(d))\n"
    )
    argv = [sys.executable, "-c", script, empty_url]
    processes = [
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("go\n")
        process.stdin.flush()
    outcomes = [(*process.communicate(), process.returncode) for process in processes]
    assert [(code, error) for _, error, code in outcomes] == [(0, "")] * 3
    assert sorted(found.strip() for found, _, _ in outcomes) == [HEAD, HEAD, "None"]


def test_a_database_is_refused_until_its_schema_is_made(empty: Database) -> None:
    with pytest.raises(InvalidConfiguration, match=r"no schema.*autoclave db sync"):
        schema.require_current(empty)
    schema.upgrade(empty, "0001_base")
    with pytest.raises(InvalidConfiguration, match=f"schema 0001_base.*needs {HEAD}.*autoclave db sync"):
        schema.require_current(empty)
    schema.upgrade(empty)
    schema.require_current(empty)


def test_a_schema_of_a_newer_release_is_refused_and_left_alone(empty: Database) -> None:
    schema.upgrade(empty)
    with empty.write() as tx:
        tx.execute(sa.text("UPDATE alembic_version SET version_num = '0099_future'"))
    for refuse in (schema.require_current, schema.upgrade):
        with pytest.raises(InvalidConfiguration, match=r"0099_future.*upgrade Autoclave"):
            refuse(empty)
    assert current_revision(empty) == "0099_future"


def test_an_unreachable_database_is_not_taken_for_an_empty_one() -> None:
    away = Database("postgresql+psycopg://someone@127.0.0.1:1/x")
    for ask in (current_revision, schema.require_current, schema.upgrade):
        with pytest.raises(DatabaseUnavailable, match="refused"):
            ask(away)


def test_db_sync_says_from_which_revision_to_which(empty_url: str, tmp_path: Path) -> None:
    database = Database(empty_url)
    shown = sa.make_url(empty_url).render_as_string()
    schema.upgrade(database, "0001_base")
    assert sync(empty_url, tmp_path) == f"{shown}: upgraded from 0001_base to {HEAD}\n"
    assert sync(empty_url, tmp_path) == f"{shown}: already at {HEAD}\n"
    database.dispose()


def test_db_sync_makes_a_schema_in_an_empty_database(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'new.db'}"
    assert sync(url, tmp_path) == f"{url}: upgraded from an empty database to {HEAD}\n"


def test_db_sync_without_a_database_names_the_option(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"\[database\] connection"):
        sync("", tmp_path)


@pytest.mark.parametrize("revision", ["b47c8f2d1e3a", "9625668549b5", "a35b4295a0e5"])
def test_the_database_of_cyborg_is_refused_with_what_to_do_and_left_alone(empty: Database, revision: str) -> None:
    with empty.write() as tx:
        tx.execute(sa.text("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)"))
        tx.execute(sa.text(f"INSERT INTO alembic_version VALUES ('{revision}')"))
        tx.execute(sa.text("CREATE TABLE devices (id INTEGER)"))
    for refuse in (schema.require_current, schema.upgrade):
        with pytest.raises(InvalidConfiguration, match=f"{revision}.*Cyborg.*empty database.*Coming from Cyborg"):
            refuse(empty)
    assert current_revision(empty) == revision
    with empty.read() as tx:
        assert set(sa.inspect(tx).get_table_names()) == {"alembic_version", "devices"}
