"""Compare and change the revision of the database's schema.

The schema's revision: which one is there, which one is needed, and how to get from one to the other.

One process at a time changes the schema: on SQLite by the write lock, on PostgreSQL by an advisory lock, on
MariaDB by ``GET_LOCK``. SQLite and PostgreSQL do all of an upgrade in one transaction. MariaDB commits
each statement that changes a table; an upgrade that died there goes on where it was when it is run again.

Which revision of the schema a database has. To know it takes no Alembic, which a service does without.
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
"""Seconds to wait for another process that is changing the schema."""

STATEMENT_TIMEOUT = 3600
"""Seconds that one statement of an upgrade may take on a server. One that answers nothing for so long is gone."""

_REMEDY = (
    "put a copy from before in its place and run `autoclave audit --quarantine --yes`; if there is none, move the file "
    "away and start with [nvme] clean_on_discovery = true, which erases every drive that no guest has"
)

_ALEMBICS_OWN = re.compile(r"[0-9a-f]{12}")
"""Revisions as Alembic names them, and so Cyborg's; ours are numbered."""

_PG_LOCK = 0x6175746F636C6176
_OPTION = "[database] connection"

# Alembic keeps the migration that runs in module globals.
_alembic = threading.Lock()


@cache
def _scripts() -> ScriptDirectory:
    return ScriptDirectory.from_config(_config())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "autoclave.db:migrations")
    return config


def head() -> str:
    """The revision that this version of Autoclave needs."""
    revision = _scripts().get_current_head()
    assert revision is not None
    return revision


def require_current(database: Database) -> None:
    """Refuse to work on a schema that is not the one this version was written for.

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
    """Bring the schema to :func:`head`; nothing is written if it is there already.

    :param revision: an earlier revision to stop at, to rehearse the upgrade from it.
    :returns: the revision that was found, None if there was no schema.
    :raises InvalidConfiguration: the schema is newer than this version.
    :raises DatabaseUnavailable: the database does not answer, its file is damaged, or another process has been
        changing the schema for longer than :data:`LOCK_TIMEOUT`.
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
    """A transaction in which no other process changes the schema."""
    guards = {"sqlite": _sqlite, "postgresql": _postgresql, "mysql": _mysql}
    with database.writer_engine.connect() as connection, guards[database.backend](connection):
        yield connection


@contextmanager
def _sqlite(connection: Connection) -> Iterator[None]:
    # SQLite changes a table by making a new one and dropping the old one, and dropping would cascade. The pragma
    # does nothing inside a transaction, so it comes first; a detached connection does not carry it back to the pool.
    connection.detach()
    connection.connection.cursor().execute("PRAGMA foreign_keys=OFF")
    with connection.begin():  # BEGIN IMMEDIATE: the write lock
        yield


def _check_references(connection: Connection) -> None:
    """See to it, before the commit, that the copied tables still refer to rows that exist."""
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
    connection.detach()  # closed for good at the end, and the lock goes with the session
    # Named locks are the server's, not the database's.
    name = sa.func.concat("autoclave.", sa.func.md5(sa.func.database()))
    with connection.begin():
        if connection.scalar(sa.select(sa.func.get_lock(name, LOCK_TIMEOUT))) != 1:
            raise DatabaseUnavailable(f"another process has been changing the schema for {LOCK_TIMEOUT} seconds")
        yield
