"""Define column types that work in the same way on all three engines."""

import json
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def utcnow() -> datetime:
    """Return the current time in UTC without a time zone, as in every timestamp column."""
    return datetime.now(UTC).replace(tzinfo=None)


def enum_column(values: type[StrEnum], name: str) -> sa.Enum:
    """Return a VARCHAR with a CHECK constraint of the enum's values."""
    return sa.Enum(
        values,
        name=name,
        native_enum=False,
        create_constraint=True,
        length=32,
        values_callable=lambda members: [member.value for member in members],
    )


class JSONText(sa.types.TypeDecorator[Any]):
    """Store an object or a list as JSON in a TEXT column; Python sees only the object."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, _dialect: sa.Dialect) -> str | None:
        if value is None:
            return None
        if not isinstance(value, dict | list):
            raise TypeError(f"an object or a list is kept here, not {value!r}")
        return json.dumps(value, sort_keys=True)

    def process_result_value(self, value: str | None, _dialect: sa.Dialect) -> Any:
        return None if value is None else json.loads(value)


# MariaDB's DATETIME has no fractional seconds by default, which leases and histories need.
def moment() -> sa.types.TypeEngine[datetime]:
    """Return the type of a timestamp column."""
    return sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def timestamps() -> list[sa.Column[datetime]]:
    """Return the columns of a row's creation and last change."""
    return [
        sa.Column("created_at", moment(), nullable=False, default=utcnow),
        sa.Column("updated_at", moment(), onupdate=utcnow),
    ]


# Server defaults as well: during an upgrade, services of the release before insert rows without these.
def flag(name: str) -> sa.Column[bool]:
    """Return a column that is false by default."""
    return sa.Column(name, sa.Boolean(create_constraint=False), nullable=False, default=False, server_default="0")


def counter(name: str, start: int) -> sa.Column[int]:
    """Return a column that counts from *start*."""
    return sa.Column(name, sa.Integer, nullable=False, default=start, server_default=sa.text(str(start)))
