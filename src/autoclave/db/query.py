"""From rows to typed records."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import fields
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

R = TypeVar("R")

MOST_NAMED = 500
"""Rows that a query names. Beyond that, all rows cost less than a list of names, which an engine may not even take."""


def columns(record: type[Any], table: sa.Table) -> list[sa.Column[Any]]:
    """The columns of *table* that the dataclass *record* has fields for, in its order."""
    return [table.c[field.name] for field in fields(record)]


def fetch_one(
    tx: Connection, record: Callable[..., R], query: sa.Select[Any], parameters: Mapping[str, Any] | None = None
) -> R | None:
    """The only row of *query*, which selects :func:`columns`, as a *record*; None if there is none."""
    row = tx.execute(query, parameters).one_or_none()
    return record(*row) if row else None


def fetch_all(
    tx: Connection, record: Callable[..., R], query: sa.Select[Any], parameters: Mapping[str, Any] | None = None
) -> list[R]:
    """All rows of *query*, likewise."""
    return [record(*row) for row in tx.execute(query, parameters)]


def restricted(query: sa.Select[Any], column: sa.ColumnElement[Any], only: Collection[Any] | None) -> sa.Select[Any]:
    """*query* for the rows in which *column* is one of *only*. It may find others, too, where those are many.

    :param only: None: all rows.
    """
    return query if only is None or len(only) > MOST_NAMED else query.where(column.in_(list(only)))
