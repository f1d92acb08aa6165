"""Open the database, and run transactions in it.

SQLite gets two engines on one file. Writers begin with BEGIN IMMEDIATE and wait for one lock. A transaction that
reads before it writes then cannot fail with "database is locked". Readers never wait. ``synchronous=FULL`` keeps a
committed ``allocated`` across a power failure, because Placement may have been updated already.

PostgreSQL and MariaDB get one engine. Writers run at READ COMMITTED and lock rows by ``FOR UPDATE``. A decision about
rows that do not exist yet needs a serializable transaction. Readers run at REPEATABLE READ, so that all statements see
one snapshot. These engines may abort one of several transactions; :meth:`Database.transact` retries it.
"""

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from oslo_db import exception as db_exc
from oslo_db.sqlalchemy import exc_filters
from oslo_log import log as logging
from sqlalchemy.engine import Connection, Engine, make_url

from autoclave.db.columns import utcnow
from autoclave.exceptions import DatabaseUnavailable, InvalidConfiguration, TransactionAborted

LOG = logging.getLogger(__name__)


# A plain DatabaseError, not a subclass, means that SQLite cannot read the file.
_NO_ANSWER = (sa.exc.OperationalError, sa.exc.DatabaseError)

# Error numbers of MariaDB and MySQL for a violated CHECK, which PyMySQL calls operational.
_CHECK_FAILED = {4025, 3819}

# Errors of a transaction that was aborted in favour of another. MariaDB's numbers: deadlock (in Galera also at the
# commit), and a row changed under a snapshot. PostgreSQL's are states. Excluded is 1205, a lock not acquired within
# [database] timeout: that wait is too long to be repeated.
_GIVEN_UP = {1213, 1020, "40P01", "40001"}


@contextmanager
def translated_errors() -> Iterator[None]:
    """Translate errors, to distinguish a database that did not answer from a refused statement.

    :raises TransactionAborted: the engine broke a deadlock, or could not serialize the transaction.
    :raises DatabaseUnavailable: the connection was lost or refused, or a lock was not acquired.
    :raises oslo_db.exception.DBError: the statement violates a constraint, or names what does not exist; a subclass
        specifies it, such as DBDuplicateEntry.
    """
    try:
        yield
    except db_exc.DBNonExistentTable:  # operational for SQLite, but the schema is missing
        raise
    except (db_exc.DBError, sa.exc.OperationalError) as error:  # oslo.db passes unknown errors through
        cause = error.inner_exception if isinstance(error, db_exc.DBError) else error
        if _codes(cause) & _CHECK_FAILED:
            raise db_exc.DBError(cause) from error
        given_up = cause if _codes(cause) & _GIVEN_UP else _ended_savepoint(error)
        if given_up is not None:
            raise TransactionAborted(f"the database gave this up: {_plain(given_up)}") from error
        if isinstance(error, db_exc.DBConnectionError | db_exc.DBDeadlock) or type(cause) in _NO_ANSWER:
            raise DatabaseUnavailable(f"the database did not carry this out: {_plain(cause)}") from error
        raise


def _codes(error: BaseException | None) -> set[object]:
    """Return PostgreSQL's SQLSTATE, or the error number of MariaDB and MySQL."""
    original = getattr(error, "orig", None)
    return {getattr(original, "sqlstate", None), *getattr(original, "args", ())[:1]}


def _ended_savepoint(error: BaseException) -> BaseException | None:
    """Return the error by which MariaDB aborted a transaction, if *error* reports its missing savepoint."""
    missed: object = getattr(error, "cause", None)  # set by oslo.db
    inner = missed.inner_exception if isinstance(missed, db_exc.DBError) else None
    return inner if _codes(inner) & _GIVEN_UP else None


def _plain(error: BaseException | None) -> str:
    """Return the engine's message on one line, without the statement."""
    return " ".join(str(getattr(error, "orig", None) or error).split())


Result = TypeVar("Result")

BACKENDS = ("sqlite", "postgresql", "mysql", "mariadb")
"""Supported engines, by their names in URLs."""

ATTEMPTS = 10
"""Maximum number of attempts for a transaction that the engine aborts."""
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
"""Maximum seconds before the second attempt and before any attempt; ten attempts take about two seconds."""

CONNECT_TIMEOUT = 10
"""Maximum seconds for opening a connection, even if statements have no timeout."""
_GRACE = 5
"""Seconds after the server's own timeout when the client aborts a statement."""

_SQLITE_BUSY_TIMEOUT = 30
"""Seconds for which a writer of the file waits for another process."""

_SQLITE_PRAGMAS = (
    f"PRAGMA busy_timeout={1000 * _SQLITE_BUSY_TIMEOUT}",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
)


class Database:
    """Connect the threads of one process to one database.

    :param url: SQLAlchemy URL (``[database] connection``). Its connection options, such as ``?connect_timeout=3``, take
        precedence.
    :param timeout: maximum seconds for one statement on PostgreSQL and MariaDB, including its waits for locks; None for
        no limit, as a migration needs.
    :raises InvalidConfiguration: the URL cannot be parsed, or names an unsupported engine.
    """

    def __init__(self, url: str | sa.URL, *, timeout: int | None = None) -> None:
        try:
            parsed = make_url(url)
        except (sa.exc.ArgumentError, ValueError) as error:  # ValueError: the port is not a number
            raise InvalidConfiguration(
                "not an SQLAlchemy URL; write for example sqlite:////var/lib/autoclave/autoclave.db",
                option="[database] connection",
            ) from error
        self.shown = parsed.render_as_string(hide_password=True)
        """The URL without its password, for operators."""
        self.backend = parsed.get_backend_name()
        if self.backend not in BACKENDS:
            raise InvalidConfiguration(
                f"{self.backend} is not supported; use {', '.join(BACKENDS)}", option="[database] connection"
            )
        if self.backend == "sqlite" and parsed.database in (None, "", ":memory:"):
            raise InvalidConfiguration(
                "SQLite needs a file, since several connections share it; write for example "
                "sqlite:////var/lib/autoclave/autoclave.db",
                option="[database] connection",
            )
        if self.backend == "mariadb":  # equivalent; oslo.db knows its errors as those of mysql only
            self.backend = "mysql"
            parsed = parsed.set(drivername=parsed.drivername.replace("mariadb", "mysql", 1))
        self._lock: AbstractContextManager[Any]
        try:
            if self.backend == "sqlite":
                self._writer = _sqlite_engine(parsed, "BEGIN IMMEDIATE", query_only=False)
                self._reader = _sqlite_engine(parsed, "BEGIN", query_only=True)
                self._lock = threading.RLock()
            else:
                self._writer = sa.create_engine(
                    parsed,
                    pool_size=8,
                    max_overflow=16,
                    pool_pre_ping=True,
                    isolation_level="READ COMMITTED",
                    connect_args=_connect_args(parsed, timeout),
                )
                self._reader = self._writer.execution_options(
                    isolation_level="REPEATABLE READ", postgresql_readonly=True
                )
                self._lock = nullcontext()
            # SQLite serializes writers in any case.
            self._serial_writer = (
                self._writer
                if self.backend == "sqlite"
                else self._writer.execution_options(isolation_level="SERIALIZABLE")
            )
        except (sa.exc.NoSuchModuleError, ModuleNotFoundError) as error:
            raise InvalidConfiguration(
                f"no driver for this URL ({error}); install autoclave[cloud], or use sqlite, postgresql+psycopg "
                "or mysql+pymysql",
                option="[database] connection",
            ) from error
        exc_filters.register_engine(self._writer)
        if self.backend == "sqlite":  # elsewhere the reader uses the writer's engine
            exc_filters.register_engine(self._reader)

    @property
    def writer_engine(self) -> Engine:
        """Return the engine that writes, for migrations and for tests of its pragmas."""
        return self._writer

    @contextmanager
    def write(self, *, serializable: bool = False) -> Iterator[Connection]:
        """Open a transaction that may write; commit at the end, or roll back on any exception.

        :param serializable: serialize it with others of this kind, including reads of rows that others insert.
        :raises TransactionAborted: the engine aborted it in favour of another. Use :meth:`transact` where that can
            happen.
        :raises DatabaseUnavailable: the database is unreachable, or locked for too long.
        """
        engine = self._serial_writer if serializable else self._writer
        with self._lock, translated_errors(), engine.begin() as connection:
            yield connection

    def transact(self, work: Callable[[Connection], Result], *, serializable: bool = False) -> Result:
        """Run *work* in its own transaction, retry if the engine aborts it, and return its result.

        :param work: uses only the database, and reads again in each attempt what it decides by.
        :param serializable: see :meth:`write`.
        :raises TransactionAborted: :data:`ATTEMPTS` attempts were aborted.
        :raises DatabaseUnavailable: see :meth:`write`. The transaction may have been committed, so it is not retried.
        """
        pause = _FIRST_PAUSE
        for _ in range(ATTEMPTS - 1):
            try:
                with self.write(serializable=serializable) as tx:
                    return work(tx)
            except TransactionAborted as error:
                LOG.debug("A transaction is tried again: %s", error)
                # Random, so that the same transactions do not collide again.
                time.sleep(random.uniform(0, pause))  # noqa: S311
                pause = min(2 * pause, _LONGEST_PAUSE)
        with self.write(serializable=serializable) as tx:
            return work(tx)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a read-only transaction with one consistent snapshot, as of its first statement.

        :raises DatabaseUnavailable: see :meth:`write`.
        """
        with translated_errors(), self._reader.begin() as connection:
            yield connection

    def dispose(self) -> None:
        """Close all connections."""
        self._writer.dispose()
        self._reader.dispose()


def _connect_args(url: sa.URL, timeout: int | None) -> dict[str, Any]:
    """Return connection arguments that limit the wait for an unresponsive server.

    A responsive server times out first, and reports the reason.
    """
    arguments: dict[str, Any] = {"connect_timeout": min(CONNECT_TIMEOUT, timeout or CONNECT_TIMEOUT)}
    if url.get_backend_name() == "postgresql":
        arguments |= {"keepalives_idle": CONNECT_TIMEOUT, "keepalives_interval": CONNECT_TIMEOUT, "keepalives_count": 3}
        if timeout is not None:
            arguments["options"] = f"-c statement_timeout={timeout}s -c lock_timeout={timeout}s"
            arguments["tcp_user_timeout"] = 1000 * (timeout + _GRACE)
    elif timeout is not None:
        arguments["init_command"] = f"SET SESSION innodb_lock_wait_timeout = {timeout}"
        arguments |= {"read_timeout": timeout + _GRACE, "write_timeout": timeout + _GRACE}
    return {name: value for name, value in arguments.items() if name not in url.query}


def _sqlite_engine(url: sa.URL, begin: str, *, query_only: bool) -> Engine:
    engine = sa.create_engine(url, pool_size=8, max_overflow=56)

    @sa.event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # the begin listener sends BEGIN
        for pragma in _SQLITE_PRAGMAS:
            connection.execute(pragma)
        _write_ahead(connection)
        if query_only:
            connection.execute("PRAGMA query_only=ON")

    @sa.event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch the file to a write-ahead log, permanently.

    If two processes switch the mode of a new file concurrently, SQLite ignores the busy timeout. Each holds what the
    other needs, so one is refused at once and must retry.
    """
    deadline = time.monotonic() + _SQLITE_BUSY_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
        time.sleep(random.uniform(0, _FIRST_PAUSE))  # noqa: S311


def sqlite_url(path: Path) -> sa.URL:
    """Return the URL of a file as an object, because in a string its ``?``, ``%`` or ``#`` would have a meaning."""
    return sa.URL.create("sqlite", database=str(path))


def require_sound(path: Path, remedy: str) -> None:
    """Check a file completely before it is used. A file that does not exist yet is sound.

    :param remedy: what to do about a file that is damaged or no database.
    :raises DatabaseUnavailable: the file cannot be used; the message names it.
    """
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(path)) as connection:
            [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:  # the file may be sound, but is not accessible
        raise DatabaseUnavailable(f"{path} cannot be used: {error}") from error
    except sqlite3.DatabaseError as error:
        raise DatabaseUnavailable(f"{path} is damaged, or no SQLite database ({error}): {remedy}") from error
    if found != "ok":
        raise DatabaseUnavailable(f"{path} is damaged ({' '.join(found.split())}): {remedy}")


_NOW = {"postgresql": "clock_timestamp() AT TIME ZONE 'UTC'", "mysql": "UTC_TIMESTAMP(6)"}


def ahead_by(database: Database) -> timedelta:
    """Return how far the clock of this machine is ahead of the server's, at least; negative if it is behind.

    A file has no other clock, so the result is zero.

    :raises DatabaseUnavailable: the database does not answer.
    """
    if database.backend not in _NOW:
        return timedelta()
    with database.read() as tx:
        tx.execute(sa.text("SELECT 1"))  # connect first, because that may take long
        before = utcnow()
        theirs: datetime = tx.execute(sa.text(f"SELECT {_NOW[database.backend]}")).scalar_one()
        after = utcnow()
    return max(before - theirs, timedelta()) or min(after - theirs, timedelta())


_RECORDED = sa.table("alembic_version", sa.column("version_num", sa.String))

_SEE = {
    True: "see that it is an SQLite file, and that the user of this process may write to it and to its directory",
    False: "see that the server runs there, and that user, password and database are right",
}
"""What to do, by whether it is a file."""


def current_revision(database: Database) -> str | None:
    """Return the revision of the schema, or None for a database without one. Alembic is not loaded for it.

    Services call this first, so its error explains a wrong ``[database] connection``.

    :raises DatabaseUnavailable: the database does not answer.
    """
    try:
        with database.read() as connection:
            return recorded_revision(connection)
    except DatabaseUnavailable as error:
        raise DatabaseUnavailable(
            f"[database] connection: {database.shown} cannot be used: {error}; {_SEE[database.backend == 'sqlite']}"
        ) from error


def recorded_revision(connection: Connection) -> str | None:
    """The revision that Alembic has recorded in the database, or None if it has recorded nothing."""
    if not sa.inspect(connection).has_table(_RECORDED.name):
        return None
    return connection.execute(sa.select(_RECORDED.c.version_num)).scalar_one_or_none()
