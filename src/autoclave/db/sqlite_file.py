"""SQLite files: their URL, whatever their name is, and whether they can be used at all."""

import sqlite3
from contextlib import closing
from pathlib import Path

import sqlalchemy as sa

from autoclave.exceptions import DatabaseUnavailable


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
