"""The order of a list, and pages of it."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa


@dataclass(frozen=True)
class Order:
    """Rows in order of a column, and those that are alike in it in order of their id.

    :param key: the name of the column; ``updated_at`` of a row that was never changed is its ``created_at``. No
        other column is one that a row can lack.
    """

    key: str = "id"
    descending: bool = False


BY_ID = Order()
NEWEST_FIRST = Order("created_at", descending=True)


def paged(
    query: sa.Select[Any], table: sa.Table, order: Order = BY_ID, *, after: str | None = None, limit: int | None = None
) -> sa.Select[Any]:
    """*query* of *table* in *order*.

    :param after: the uuid of the last row already seen; nothing follows one that there is not.
    """
    keys = [_column(table, key) for key in dict.fromkeys((order.key, "id"))]
    if after is not None:
        seen = table.alias()
        last = [
            sa.select(_column(seen, key)).where(seen.c.uuid == after).scalar_subquery()
            for key in dict.fromkeys((order.key, "id"))
        ]
        query = query.where(_beyond(keys, last, descending=order.descending))
    query = query.order_by(*(key.desc() if order.descending else key for key in keys))
    return query if limit is None else query.limit(limit)


def _beyond(keys: list[Any], last: list[Any], *, descending: bool) -> sa.ColumnElement[bool]:
    key, end = keys[0], last[0]
    further: sa.ColumnElement[bool] = key < end if descending else key > end
    return (
        further
        if len(keys) == 1
        else sa.or_(further, sa.and_(key == end, _beyond(keys[1:], last[1:], descending=descending)))
    )


def _column(table: sa.FromClause, key: str) -> sa.ColumnElement[Any]:
    column = table.c[key]
    if key == "updated_at":
        return sa.func.coalesce(column, table.c.created_at)
    return column
