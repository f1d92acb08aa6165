"""Upgrade the schema of a database by the command, and interrupt an upgrade."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from cliff.app import App
from cliff.commandmanager import CommandManager
from oslo_db.exception import DBError

from autoclave.cli.db import DbSync
from autoclave.db.engine import Database


def sync(url: str, tmp_path: Path) -> str:
    """``autoclave db sync``; returns what it printed."""
    config = tmp_path / "autoclave.conf"
    config.write_text(f"[database]\nconnection = {url}\n")
    output = io.StringIO()
    command = DbSync(App("autoclave", "test", CommandManager("autoclave.test"), stdout=output), None)
    assert command.run(command.get_parser("db sync").parse_args(["--config-file", str(config)])) == 0
    return output.getvalue()


class PowerCutError(Exception):
    """The migrating process dies."""


@contextmanager
def dying_at(database: Database, statement: int) -> Iterator[None]:
    """The process dies just before its *statement*-th statement that changes something."""
    left = statement

    def before(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        nonlocal left
        if not sql.lstrip().startswith(("SELECT", "PRAGMA", "SHOW", "DESCRIBE", "SET")):
            left -= 1
            if left == 0:
                raise PowerCutError("power cut")

    sa.event.listen(database.writer_engine, "before_cursor_execute", before)
    try:
        yield
    except DBError as error:  # oslo.db wraps whatever a statement raises
        if isinstance(error.inner_exception, PowerCutError):
            raise error.inner_exception from None
        raise
    finally:
        sa.event.remove(database.writer_engine, "before_cursor_execute", before)


def deaths(database: Database) -> range:
    """When to die: at every statement where that costs little, at every third one on a server."""
    return range(1, 500, 1 if database.backend == "sqlite" else 3)
