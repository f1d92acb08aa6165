"""Open the database, and run transactions in it.

Connections and transactions.

SQLite gets two engines on one file: writers begin with BEGIN IMMEDIATE behind one lock, so that a
transaction that reads before it writes can never fail half-way with "database is locked"; readers
never wait. ``synchronous=FULL``: a power cut must not take back ``allocated`` after Placement has
been told. PostgreSQL and MariaDB get one engine, whose writers are at READ COMMITTED: there the rows
are locked by ``FOR UPDATE``, and what no row stands for is decided in a serializable transaction.
Readers are at REPEATABLE READ, or two of their statements would see two moments. Either engine may give
up one of several transactions to let the others go on; :meth:`Database.transact` runs it again.

What a database's errors mean: it did not answer, or it answered and refused.

SQLite files: their URL, whatever their name is, and whether they can be used at all.

The clock of the database's server, which all services of a cloud can compare theirs with.
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

# DatabaseError itself, not what is derived from it, is a file that SQLite cannot read.
_NO_ANSWER = (sa.exc.OperationalError, sa.exc.DatabaseError)

# A row that breaks a CHECK, which PyMySQL calls operational: MariaDB's number, and MySQL's.
_CHECK_FAILED = {4025, 3819}

# What the engine does to one of two transactions that cannot both go on: MariaDB's numbers (deadlock, also Galera's at
# the commit; a row that changed under a snapshot), PostgreSQL's states. Not 1205, a lock that was not to be had
# within [database] timeout: that wait is too long to be repeated.
_GIVEN_UP = {1213, 1020, "40P01", "40001"}


@contextmanager
def translated_errors() -> Iterator[None]:
    """Tell apart a database that did not answer from a statement that it refused.

    :raises TransactionAborted: the engine broke a deadlock, or could not put the transaction in order with others.
    :raises DatabaseUnavailable: the connection was lost or refused, or a lock was not to be had.
    :raises oslo_db.exception.DBError: the statement broke a constraint, or named what does not exist; a subclass
        says which, such as DBDuplicateEntry.
    """
    try:
        yield
    except db_exc.DBNonExistentTable:  # SQLite calls it operational, but it is a schema that nobody made
        raise
    except (db_exc.DBError, sa.exc.OperationalError) as error:  # oslo.db lets through what it has no name for
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
    """PostgreSQL's SQLSTATE, or the number that MariaDB and MySQL put first in an error."""
    original = getattr(error, "orig", None)
    return {getattr(original, "sqlstate", None), *getattr(original, "args", ())[:1]}


def _ended_savepoint(error: BaseException) -> BaseException | None:
    """The error for which MariaDB gave up a transaction with its savepoints, one of which *error* misses."""
    missed: object = getattr(error, "cause", None)  # where oslo.db keeps it
    inner = missed.inner_exception if isinstance(missed, db_exc.DBError) else None
    return inner if _codes(inner) & _GIVEN_UP else None


def _plain(error: BaseException | None) -> str:
    """What the engine said, in one line and without the statement."""
    return " ".join(str(getattr(error, "orig", None) or error).split())


LOG = logging.getLogger(__name__)

Result = TypeVar("Result")

BACKENDS = ("sqlite", "postgresql", "mysql", "mariadb")
"""The engines that the statements are tested on, as URLs name them."""

ATTEMPTS = 10
"""How often a transaction is tried that the engine gives up for the sake of others."""
_FIRST_PAUSE = 0.02
_LONGEST_PAUSE = 0.5
"""Seconds at most before the second try, and before any: ten of them last about two seconds."""

CONNECT_TIMEOUT = 10
"""Seconds that a new connection may take at most, even where a statement may take as long as it must."""
_GRACE = 5
"""Seconds after which a statement is given up here that the server should have given up by itself."""

_SQLITE_BUSY_TIMEOUT = 30
"""Seconds that one writer of the file waits for another process."""

_SQLITE_PRAGMAS = (
    f"PRAGMA busy_timeout={1000 * _SQLITE_BUSY_TIMEOUT}",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
)


class Database:
    """One database, shared by the threads of one process.

    :param url: SQLAlchemy URL (``[database] connection``). What it says of connections, such as
        ``?connect_timeout=3``, goes before what is said here.
    :param timeout: seconds that one statement, and what it waits for, may take on PostgreSQL and MariaDB; None
        for as long as it takes, as a migration must.
    :raises InvalidConfiguration: the URL cannot be parsed or names an engine that is not supported.
    """

    def __init__(self, url: str | sa.URL, *, timeout: int | None = None) -> None:
        try:
            parsed = make_url(url)
        except (sa.exc.ArgumentError, ValueError) as error:  # the latter for a port that is no number
            raise InvalidConfiguration(
                "not an SQLAlchemy URL; write for example sqlite:////var/lib/autoclave/autoclave.db",
                option="[database] connection",
            ) from error
        self.shown = parsed.render_as_string(hide_password=True)
        """The URL as an operator may be shown it."""
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
        if self.backend == "mariadb":  # the same to us; oslo.db knows its errors by the other name only
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
            # SQLite's writers come one after the other whatever they are told.
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
        if self.backend == "sqlite":  # elsewhere the reader is the writer's engine, with other options
            exc_filters.register_engine(self._reader)

    @property
    def writer_engine(self) -> Engine:
        """The engine that writes, for migrations and for tests that look at its pragmas."""
        return self._writer

    @contextmanager
    def write(self, *, serializable: bool = False) -> Iterator[Connection]:
        """One transaction that may write; commits at the end, rolls back on any exception.

        :param serializable: it must come out as if it and others of the kind ran one after the other,
            also where they read what another has yet to insert.
        :raises TransactionAborted: the engine let another transaction go first. Use :meth:`transact` where
            that can happen.
        :raises DatabaseUnavailable: the database is gone, or locked by another for too long.
        """
        engine = self._serial_writer if serializable else self._writer
        with self._lock, translated_errors(), engine.begin() as connection:
            yield connection

    def transact(self, work: Callable[[Connection], Result], *, serializable: bool = False) -> Result:
        """Run *work* in a transaction of its own, again if the engine gives it up, and return its result.

        :param work: speaks to the database and to nothing else, and decides by what it reads there each time.
        :param serializable: see :meth:`write`.
        :raises TransactionAborted: it was given up :data:`ATTEMPTS` times.
        :raises DatabaseUnavailable: see :meth:`write`; it may have been committed, so it is not tried again.
        """
        pause = _FIRST_PAUSE
        for _ in range(ATTEMPTS - 1):
            try:
                with self.write(serializable=serializable) as tx:
                    return work(tx)
            except TransactionAborted as error:
                LOG.debug("A transaction is tried again: %s", error)
                # Of uneven length, or the same transactions would meet again.
                time.sleep(random.uniform(0, pause))  # noqa: S311
                pause = min(2 * pause, _LONGEST_PAUSE)
        with self.write(serializable=serializable) as tx:
            return work(tx)

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view, as of its first statement; for reading only.

        :raises DatabaseUnavailable: as for :meth:`write`.
        """
        with translated_errors(), self._reader.begin() as connection:
            yield connection

    def dispose(self) -> None:
        """Close all connections."""
        self._writer.dispose()
        self._reader.dispose()


def _connect_args(url: sa.URL, timeout: int | None) -> dict[str, Any]:
    """What keeps a server that does not answer from keeping us.

    A server that is alive gives a statement up before we do, and says why.
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
        connection.isolation_level = None  # we send BEGIN ourselves
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
    """Have the file keep a write-ahead log, as it does ever after.

    SQLite does not apply the busy timeout where two processes change the mode of a new file at once: each holds
    what the other needs, so one of them is refused at once and has to ask again.
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
    """The URL of a file. Kept as an object: in a string, a ``?``, ``%`` or ``#`` of the name would mean something."""
    return sa.URL.create("sqlite", database=str(path))


def require_sound(path: Path, remedy: str) -> None:
    """Read a file through before anything is built on it. One that does not exist yet is sound.

    :param remedy: what to do about a file that is damaged, or is no database.
    :raises DatabaseUnavailable: it cannot be used; names the file.
    """
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(path)) as connection:
            [found] = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:  # it may well be sound, but cannot be had
        raise DatabaseUnavailable(f"{path} cannot be used: {error}") from error
    except sqlite3.DatabaseError as error:
        raise DatabaseUnavailable(f"{path} is damaged, or no SQLite database ({error}): {remedy}") from error
    if found != "ok":
        raise DatabaseUnavailable(f"{path} is damaged ({' '.join(found.split())}): {remedy}")


_NOW = {"postgresql": "clock_timestamp() AT TIME ZONE 'UTC'", "mysql": "UTC_TIMESTAMP(6)"}


def ahead_by(database: Database) -> timedelta:
    """How far the clock of this machine is ahead of the server's, at least; negative if it is behind.

    Nothing for a file, which has no other clock.

    :raises DatabaseUnavailable: the database does not answer.
    """
    if database.backend not in _NOW:
        return timedelta()
    with database.read() as tx:
        tx.execute(sa.text("SELECT 1"))  # it connects, which may take its time
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
    """The revision of the schema, or None for a database without one.

    It is the first that anybody wants to know of a database, so whoever has named the wrong one is told here.

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
