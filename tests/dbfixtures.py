"""Databases for tests: SQLite files that cost milliseconds, and PostgreSQL and MariaDB where they run.

A server is looked for at ``AUTOCLAVE_TEST_POSTGRESQL`` and ``AUTOCLAVE_TEST_MARIADB`` (SQLAlchemy URLs of an
account that may make databases); by default on this machine.
"""

import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db import arqs, devices, handles, profiles, schema, tables  # noqa: F401 - tables to clear
from autoclave.db.columns import metadata
from autoclave.db.engine import Database
from autoclave.db.tables import AttachType, DeviceType
from autoclave.rules.device_lifecycle import DeviceState

SERVERS = {
    "postgresql": os.environ.get("AUTOCLAVE_TEST_POSTGRESQL", "postgresql+psycopg://postgres@127.0.0.1:5432/postgres"),
    "mariadb": os.environ.get("AUTOCLAVE_TEST_MARIADB", "mysql+pymysql://root@127.0.0.1:3306/mysql"),
}
SERVER_PARAMS = [pytest.param(name, marks=pytest.mark.integration) for name in SERVERS]
ENGINE_PARAMS = ["sqlite", *SERVER_PARAMS]


@cache
def _template() -> Path:
    folder = tempfile.TemporaryDirectory(prefix="autoclave-schema-")
    _template.folder = folder  # type: ignore[attr-defined]  # lives, and is removed, with the process
    path = Path(folder.name) / "template.db"
    database = Database(f"sqlite:///{path}")
    schema.upgrade(database)
    database.dispose()  # the last connection moves the write-ahead log into the file
    return path


def forgo_sync(*engines: sa.Engine) -> None:
    """Let SQLite not wait for the disk: no test cuts the power, and a process that dies loses nothing by it."""
    for engine in engines:
        engine.dispose()
        sa.event.listen(engine, "connect", lambda made, _record: made.execute("PRAGMA synchronous=OFF"))


def sqlite_database(tmp_path: Path, name: str = "autoclave.db") -> Database:
    """A migrated SQLite database of its own; the caller disposes of it."""
    path = tmp_path / name
    shutil.copyfile(_template(), path)
    database = Database(f"sqlite:///{path}")
    forgo_sync(database.writer_engine)
    return database


@contextmanager
def server_database(server: str) -> Iterator[str]:
    """The URL of a new, empty database on *server*, dropped afterwards; skips the test if there is no such server."""
    url = sa.make_url(SERVERS[server])
    admin = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    name = f"autoclave_test_{uuid.uuid4().hex[:12]}"
    try:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"CREATE DATABASE {name}")
    except sa.exc.OperationalError as error:
        pytest.skip(f"no {server} for tests at {url.host}:{url.port}: {error.orig}")
    try:
        yield url.set(database=name).render_as_string(hide_password=False)
    finally:
        with admin.connect() as connection:
            connection.exec_driver_sql(f"DROP DATABASE {name}{' WITH (FORCE)' if server == 'postgresql' else ''}")


@contextmanager
def _migrated(server: str) -> Iterator[Database]:
    with server_database(server) as url:
        database = Database(url)
        try:
            schema.upgrade(database)
            yield database
        finally:
            database.dispose()


@pytest.fixture(scope="session")
def postgresql_database() -> Iterator[Database]:
    """One for all tests; take ``database``, which empties it first."""
    with _migrated("postgresql") as database:
        yield database


@pytest.fixture(scope="session")
def mariadb_database() -> Iterator[Database]:
    """One for all tests; take ``database``, which empties it first."""
    with _migrated("mariadb") as database:
        yield database


def _emptied(database: Database) -> Database:
    with database.write() as tx:
        for table in reversed(metadata.sorted_tables):
            tx.execute(table.delete())
    return database


@pytest.fixture(params=ENGINE_PARAMS)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """A migrated, empty database on each engine."""
    if request.param == "sqlite":
        found = sqlite_database(tmp_path)
        yield found
        found.dispose()
    else:
        yield _emptied(request.getfixturevalue(f"{request.param}_database"))


@pytest.fixture(params=SERVER_PARAMS)
def row_locking_database(request: pytest.FixtureRequest) -> Database:
    """A migrated, empty database on the engines that lock rows, not the whole file."""
    return _emptied(request.getfixturevalue(f"{request.param}_database"))


@pytest.fixture(params=ENGINE_PARAMS)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a database without a schema, on each engine."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
    else:
        with server_database(request.param) as url:
            yield url


_numbers = count(1)


@dataclass(frozen=True)
class Slot:
    """A device with its deployable and one handle."""

    device: devices.DeviceRecord
    deployable: devices.DeployableRecord
    handle_id: int


def make_device(tx: Connection, **values: Any) -> devices.DeviceRecord:
    """A device in a slot of its own; *values* say what matters to the test."""
    number = next(_numbers)
    row_id = devices.insert(
        tx,
        {
            "uuid": str(uuid.uuid4()),
            "type": DeviceType.NVME,
            "vendor": "144d",
            "model": "a808",
            "hostname": "host-1",
            "pci_address": f"0000:{number >> 5 & 0xFF:02x}:{number & 0x1F:02x}.0",
            "device_state": DeviceState.AVAILABLE,
            **values,
        },
    )
    record = devices.get_by_id(tx, row_id)
    assert record is not None
    return record


def make_slot(tx: Connection, **values: Any) -> Slot:
    """A device, see :func:`make_device`, with provider and handle."""
    device = make_device(tx, **values)
    rp_uuid = str(uuid.uuid4())
    deployable_id = devices.insert_deployable(
        tx,
        {
            "uuid": str(uuid.uuid4()),
            "name": f"{device.hostname}_{device.pci_address.upper()}",
            "num_accelerators": 1,
            "device_id": device.id,
            "rp_uuid": rp_uuid,
            "resource_class": "CUSTOM_NVME",
            "driver_name": "nvme_driver",
        },
    )
    made = devices.by_provider(tx, rp_uuid)
    assert made is not None
    deployable, device = made
    return Slot(device, deployable, make_handle(tx, deployable_id, device.pci_address))


def make_handle(tx: Connection, deployable_id: int, identity: str) -> int:
    """A PCI attach handle; returns its id."""
    return handles.insert(
        tx,
        {
            "uuid": str(uuid.uuid4()),
            "deployable_id": deployable_id,
            "attach_type": AttachType.PCI,
            "attach_info": json.dumps({"bus": "0a"}),
            "identity": identity,
        },
    )


def make_profile(tx: Connection, name: str = "fast-drive") -> profiles.ProfileRecord:
    """The profile *name*, made if there is none."""
    found = profiles.find(tx, name=name)
    if found is None:
        groups = [{"resources:CUSTOM_NVME": "1"}]
        profiles.insert(tx, {"uuid": str(uuid.uuid4()), "name": name, "profile_json": json.dumps({"groups": groups})})
        found = profiles.find(tx, name=name)
    assert found is not None
    return found


def make_arq(tx: Connection, **values: Any) -> arqs.ARQRecord:
    """An ARQ of the profile ``fast-drive``; *values* say what matters to the test."""
    row = {
        "uuid": str(uuid.uuid4()),
        "device_profile_id": make_profile(tx).id,
        "device_profile_group_id": 0,
        **values,
    }
    arqs.insert(tx, row)
    record = arqs.get(tx, row["uuid"])
    assert record is not None
    return record
