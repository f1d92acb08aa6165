"""What a database's errors mean: it did not answer, or it answered and refused."""

from collections.abc import Iterator
from contextlib import contextmanager

import sqlalchemy as sa
from oslo_db import exception as db_exc

from autoclave.exceptions import DatabaseUnavailable

# DatabaseError itself, not what is derived from it, is a file that SQLite cannot read.
_NO_ANSWER = (sa.exc.OperationalError, sa.exc.DatabaseError)

# A row that breaks a CHECK, which PyMySQL calls operational: MariaDB's number, and MySQL's.
_CHECK_FAILED = (4025, 3819)


@contextmanager
def translated_errors() -> Iterator[None]:
    """Tell apart a database that did not answer from a statement that it refused.

    :raises DatabaseUnavailable: the connection was lost or refused, a lock was not to be had, or the engine broke
        a deadlock.
    :raises oslo_db.exception.DBError: the statement broke a constraint, or named what does not exist; a subclass
        says which, such as DBDuplicateEntry.
    """
    try:
        yield
    except db_exc.DBNonExistentTable:  # SQLite calls it operational, but it is a schema that nobody made
        raise
    except (db_exc.DBError, sa.exc.OperationalError) as error:  # oslo.db lets through what it has no name for
        cause = error.inner_exception if isinstance(error, db_exc.DBError) else error
        if _code(cause) in _CHECK_FAILED:
            raise db_exc.DBError(cause) from error
        if isinstance(error, db_exc.DBConnectionError | db_exc.DBDeadlock) or type(cause) in _NO_ANSWER:
            raise DatabaseUnavailable(f"the database did not carry this out: {_plain(cause)}") from error
        raise


def _code(error: BaseException | None) -> object:
    """The number that MariaDB and MySQL put first in an error."""
    arguments = getattr(getattr(error, "orig", None), "args", ())
    return arguments[0] if arguments else None


def _plain(error: BaseException | None) -> str:
    """What the engine said, in one line and without the statement."""
    return " ".join(str(getattr(error, "orig", None) or error).split())
