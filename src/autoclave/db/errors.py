"""What a database's errors mean: it did not answer, or it answered and refused."""

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from oslo_db import exception as db_exc

from autoclave.exceptions import DatabaseUnavailable, TransactionAborted

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
