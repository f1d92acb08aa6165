"""From rows to typed records."""

from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import sqlalchemy as sa

R = TypeVar("R")


def columns(record: type[Any], table: sa.Table) -> list[sa.Column[Any]]:
    """The columns of *table* that the dataclass *record* has fields for, in its order."""
    return [table.c[field.name] for field in fields(record)]


def to_record(record: Callable[..., R], row: sa.Row[Any]) -> R:
    """Build *record* from a row selected with :func:`columns`."""
    return record(*row)
