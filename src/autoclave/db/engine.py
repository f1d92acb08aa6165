"""Connections and transactions.

SQLite gets two engines on one file: writers begin with BEGIN IMMEDIATE behind one lock, so that a
transaction that reads before it writes can never fail half-way with "database is locked"; readers
never wait. ``synchronous=FULL``: a power cut must not take back ``allocated`` after Placement has
been told. PostgreSQL and MariaDB get one engine at READ COMMITTED; there the rows are locked by
``FOR UPDATE``.
"""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import sqlalchemy as sa
from oslo_db.sqlalchemy import exc_filters
from sqlalchemy.engine import Connection, Engine, make_url

from autoclave.db.errors import translated_errors
from autoclave.exceptions import InvalidConfiguration

BACKENDS = ("sqlite", "postgresql", "mysql", "mariadb")
"""The engines that the statements are tested on, as URLs name them."""

_SQLITE_PRAGMAS = (
    "PRAGMA busy_timeout=30000",
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",
    "PRAGMA foreign_keys=ON",
)


class Database:
    """One database, shared by the threads of one process.

    :param url: SQLAlchemy URL (``[database] connection``).
    :raises InvalidConfiguration: the URL cannot be parsed or names an engine that is not supported.
    """

    def __init__(self, url: str) -> None:
        try:
            parsed = make_url(url)
        except sa.exc.ArgumentError as error:
            raise InvalidConfiguration(
                "not an SQLAlchemy URL; write for example sqlite:////var/lib/autoclave/autoclave.db",
                option="[database] connection",
            ) from error
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
                self._writer = self._reader = sa.create_engine(
                    parsed, pool_size=8, max_overflow=16, pool_pre_ping=True, isolation_level="READ COMMITTED"
                )
                self._lock = nullcontext()
        except (sa.exc.NoSuchModuleError, ModuleNotFoundError) as error:
            raise InvalidConfiguration(
                f"no driver for this URL ({error}); install autoclave[cloud], or use sqlite, postgresql+psycopg "
                "or mysql+pymysql",
                option="[database] connection",
            ) from error
        for engine in {self._writer, self._reader}:
            exc_filters.register_engine(engine)

    @property
    def writer_engine(self) -> Engine:
        """The engine that writes, for migrations and for tests that look at its pragmas."""
        return self._writer

    @contextmanager
    def write(self) -> Iterator[Connection]:
        """One transaction that may write; commits at the end, rolls back on any exception.

        :raises DatabaseUnavailable: the database is gone, locked by another process for too long, or
            chose this transaction to break a deadlock.
        """
        with self._lock, translated_errors(), self._writer.begin() as connection:
            yield connection

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """One consistent view, for reading only.

        :raises DatabaseUnavailable: as for :meth:`write`.
        """
        with translated_errors(), self._reader.begin() as connection:
            yield connection

    def dispose(self) -> None:
        """Close all connections."""
        self._writer.dispose()
        self._reader.dispose()


def _sqlite_engine(url: sa.URL, begin: str, *, query_only: bool) -> Engine:
    engine = sa.create_engine(url, pool_size=8, max_overflow=56)

    @sa.event.listens_for(engine, "connect")
    def on_connect(connection: Any, _record: Any) -> None:
        connection.isolation_level = None  # we send BEGIN ourselves
        for pragma in _SQLITE_PRAGMAS:
            connection.execute(pragma)
        if query_only:
            connection.execute("PRAGMA query_only=ON")

    @sa.event.listens_for(engine, "begin")
    def on_begin(connection: Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine
