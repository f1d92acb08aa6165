"""Compare and change the revision of the database's schema.

One process at a time changes the schema. SQLite uses the write lock, PostgreSQL an advisory lock, and MariaDB
``GET_LOCK``. On SQLite and PostgreSQL, an upgrade is one transaction. MariaDB commits each statement that changes a
table; an interrupted upgrade continues when it is run again.

A service reads the revision without importing Alembic.
"""

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy.engine import Connection

from autoclave.db.engine import Database, current_revision, recorded_revision, require_sound, translated_errors
from autoclave.exceptions import DatabaseUnavailable, InvalidConfiguration

LOCK_TIMEOUT = 60
"""Seconds to wait for another process that changes the schema."""

STATEMENT_TIMEOUT = 3600
"""Seconds that one statement of an upgrade may take; a server that does not answer for so long is dead."""

_REMEDY = (
    "put a copy from before in its place and run `autoclave audit --quarantine --yes`; if there is none, move the file "
    "away and start with [nvme] clean_on_discovery = true, which erases every drive that no guest has"
)

_ALEMBICS_OWN = re.compile(r"[0-9a-f]{12}")
"""Revisions as named by Alembic, and therefore by Cyborg; those of Autoclave are numbered."""

_PG_LOCK = 0x6175746F636C6176
_OPTION = "[database] connection"

# Alembic keeps the running migration in module globals.
_alembic = threading.Lock()


@cache
def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "autoclave.db:migrations")
    return config


def head() -> str:
    """Return the revision that this version of Autoclave needs."""
    revision = _scripts().get_current_head()
    assert revision is not None
    return revision


def require_current(database: Database) -> None:
    """Refuse a schema of another revision than this version needs.

    :raises InvalidConfiguration: the schema is older or newer.
    :raises DatabaseUnavailable: the database does not answer.
    """
    found = current_revision(database)
    if found == head():
        return
    _refuse_unknown(found)
    raise InvalidConfiguration(
        f"the database has {f'schema {found}' if found else 'no schema'}, this version needs {head()}; run "
        "'autoclave db sync'",
        option=_OPTION,
    )


def upgrade(database: Database, revision: str | None = None) -> str | None:
    """Upgrade the schema to :func:`head`; write nothing if it is there already.

    :param revision: an earlier revision to stop at, to rehearse the upgrade from it.
    :returns: the revision before the upgrade, None if there was no schema.
    :raises InvalidConfiguration: the schema is newer than this version.
    :raises DatabaseUnavailable: the database does not answer, its file is damaged, or another process has been changing
        the schema for longer than :data:`LOCK_TIMEOUT`.
    """
    if database.backend == "sqlite":
        require_sound(Path(database.writer_engine.url.database or ""), _REMEDY)
    with _alembic, translated_errors(), _exclusive(database) as connection:
        found = recorded_revision(connection)
        target = revision or head()
        if found == target:
            return found
        _refuse_unknown(found)
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, target)
        if database.backend == "sqlite":
            _check_references(connection)
        return found


def _refuse_unknown(revision: str | None) -> None:
    if revision is None:
        return
    if _ALEMBICS_OWN.fullmatch(revision):
        raise InvalidConfiguration(
            f"the database has schema {revision}, which is not one of Autoclave's: it belongs to another service, "
            "such as Cyborg, and was left as it is; name a new, empty database, and see the page "
            "'Coming from Cyborg' of the documentation",
            option=_OPTION,
        )
    try:
        _scripts().get_revision(revision)
    except CommandError as error:
        raise InvalidConfiguration(
            f"the database has schema {revision}, which this version of Autoclave does not know: it was made by a "
            "newer one; upgrade Autoclave, or name another database",
            option=_OPTION,
        ) from error


@contextmanager
def _exclusive(database: Database) -> Iterator[Connection]:
    """Open a transaction in which no other process changes the schema."""
    guards = {"sqlite": _sqlite, "postgresql": _postgresql, "mysql": _mysql}
    with database.writer_engine.connect() as connection, guards[database.backend](connection):
        yield connection


@contextmanager
def _sqlite(connection: Connection) -> Iterator[None]:
    # SQLite changes a table by copying and dropping it, and the drop would cascade. The pragma has no effect inside a
    # transaction, so it comes first. A detached connection does not return it to the pool.
    connection.detach()
    connection.connection.cursor().execute("PRAGMA foreign_keys=OFF")
    with connection.begin():  # BEGIN IMMEDIATE: the write lock
        yield


def _check_references(connection: Connection) -> None:
    """Verify, before the commit, that the copied tables refer to existing rows."""
    broken = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    if broken:
        raise InvalidConfiguration(
            f"rows refer to others that do not exist, nothing was changed: {sorted({row[0] for row in broken})}",
            option=_OPTION,
        )


@contextmanager
def _postgresql(connection: Connection) -> Iterator[None]:
    with connection.begin():
        connection.execute(sa.text(f"SET LOCAL lock_timeout = '{LOCK_TIMEOUT}s'"))
        connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _PG_LOCK})
        yield


@contextmanager
def _mysql(connection: Connection) -> Iterator[None]:
    connection.detach()  # closed at the end, which releases the lock of the session
    # Named locks belong to the server, not to the database.
    name = sa.func.concat("autoclave.", sa.func.md5(sa.func.database()))
    with connection.begin():
        if connection.scalar(sa.select(sa.func.get_lock(name, LOCK_TIMEOUT))) != 1:
            raise DatabaseUnavailable(f"another process has been changing the schema for {LOCK_TIMEOUT} seconds")
        yield
