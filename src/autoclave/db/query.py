"""Share statements among the nouns: records of rows, pages, filters, shown states."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.tables import DeviceStatus, arqs, attach_handles, deployables, devices
from autoclave.rules.device_lifecycle import ACTIVE, DeviceState, Withheld

R = TypeVar("R")

MOST_NAMED = 500
"""Maximum length of a list in a query. Beyond it, reading all rows is cheaper, and an engine may refuse the list."""


def columns(record: type[Any], table: sa.Table) -> list[sa.Column[Any]]:
    """Return the columns of *table* for the fields of the dataclass *record*, in the order of its fields."""
    return [table.c[field.name] for field in fields(record)]


def fetch_one(
    tx: Connection, record: Callable[..., R], query: sa.Select[Any], parameters: Mapping[str, Any] | None = None
) -> R | None:
    """Return the only row of *query*, which selects :func:`columns`, as a *record*; None if there is none."""
    row = tx.execute(query, parameters).one_or_none()
    return record(*row) if row else None


def fetch_all(
    tx: Connection, record: Callable[..., R], query: sa.Select[Any], parameters: Mapping[str, Any] | None = None
) -> list[R]:
    """Return all rows of *query*, which selects :func:`columns`, as *record* objects."""
    return [record(*row) for row in tx.execute(query, parameters)]


def restricted(query: sa.Select[Any], column: sa.ColumnElement[Any], only: Collection[Any] | None) -> sa.Select[Any]:
    """Restrict *query* to rows in which *column* is in *only*. A long list is ignored, so that more rows are found.

    :param only: values to select; None for all.
    """
    return query if only is None or len(only) > MOST_NAMED else query.where(column.in_(list(only)))


@dataclass(frozen=True)
class Order:
    """Order rows by a column, then by id.

    :param key: name of the column. For ``updated_at``, a row that was never changed has its ``created_at``. Any other
        column must be NOT NULL.
    """

    key: str = "id"
    descending: bool = False


BY_ID = Order()
NEWEST_FIRST = Order("created_at", descending=True)


def paged(
    query: sa.Select[Any], table: sa.Table, order: Order = BY_ID, *, after: str | None = None, limit: int | None = None
) -> sa.Select[Any]:
    """Return *query* of *table* in *order*, restricted to one page.

    :param after: the uuid of the last row already seen; if it does not exist, the page is empty.
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


_IS_SET: Mapping[Withheld, sa.ColumnElement[bool]] = {
    Withheld.MISSING: devices.c.missing.is_(True),
    Withheld.EXCLUDED: devices.c.excluded_reason.is_not(None),
    Withheld.UNREADABLE: devices.c.unreadable_reason.is_not(None),
    Withheld.OUTDATED: devices.c.outdated.is_(True),
    Withheld.HELD: sa.or_(devices.c.held.is_(True), devices.c.forgetting.is_(True)),
    Withheld.MAINTAINING: sa.or_(devices.c.status == DeviceStatus.MAINTAINING, devices.c.host_maintained.is_(True)),
}


def _shown(reasons: Iterable[Withheld]) -> sa.ColumnElement[str]:
    available = devices.c.device_state == DeviceState.AVAILABLE
    # The column as text. No CAST: MariaDB would compare its result without case.
    return sa.case(
        *((sa.and_(available, _IS_SET[why]), sa.literal(why.value, sa.String)) for why in reasons),
        else_=sa.type_coerce(devices.c.device_state, sa.String),
    )


_SHOWN = _shown(Withheld)
SHOWN_BESIDE_STATUS = _shown(why for why in Withheld if why is not Withheld.MAINTAINING)
"""The state shown next to ``status``; maintenance is shown by ``status`` only."""


def is_shown(state: str) -> sa.ColumnElement[bool]:
    """Return the condition that a device is shown with *state*."""
    return _SHOWN.in_((state,))


def _is_shown_to_clients(state: str) -> sa.ColumnElement[bool]:
    """Return the condition that the accelerator API shows *state*, which has none for a spent device but ``error``."""
    if state == DeviceState.SPENT:
        return sa.false()
    return _SHOWN.in_((state, DeviceState.SPENT.value) if state == DeviceState.ERROR else (state,))


Condition = sa.ColumnElement[bool]


def _relative(column: sa.Column[int]) -> Callable[[str], Condition]:
    other = deployables.alias()
    return lambda value: column.in_(sa.select(other.c.id).where(other.c.uuid == value))


def _attached_as(value: str) -> Condition:
    # as text, so that an unknown type is no error
    kind = sa.type_coerce(attach_handles.c.attach_type, sa.String)
    return deployables.c.id.in_(sa.select(attach_handles.c.deployable_id).where(kind == value))


def _held_by(value: str) -> Condition:
    holding = sa.select(arqs.c.deployable_id).where(arqs.c.instance_uuid == value, arqs.c.state.in_(list(ACTIVE)))
    return deployables.c.id.in_(holding)


_OF_DEPLOYABLE: Mapping[str, Callable[[str], Condition]] = {
    "name": lambda value: deployables.c.name == value,
    "parent_uuid": _relative(deployables.c.parent_id),
    "root_uuid": _relative(deployables.c.root_id),
    "interface_type": _attached_as,
    "instance_uuid": _held_by,
}

_OF_DEVICE: Mapping[str, Callable[[str], Condition]] = {
    "board": lambda value: devices.c.model == value,
    "availability": _is_shown_to_clients,
}

FIELDS = (*_OF_DEPLOYABLE, *_OF_DEVICE)
"""Fields to filter by (Cyborg's ``filters.field``)."""


def device_matches(field: str, value: str) -> Condition:
    """Return the condition on ``devices`` that *field*, one of :data:`FIELDS`, is *value*."""
    if field in _OF_DEVICE:
        return _OF_DEVICE[field](value)
    return devices.c.id.in_(sa.select(deployables.c.device_id).where(_OF_DEPLOYABLE[field](value)))


def deployable_matches(field: str, value: str) -> Condition:
    """Return the condition on ``deployables`` that *field*, one of :data:`FIELDS`, is *value*."""
    if field in _OF_DEPLOYABLE:
        return _OF_DEPLOYABLE[field](value)
    return deployables.c.device_id.in_(sa.select(devices.c.id).where(_OF_DEVICE[field](value)))
