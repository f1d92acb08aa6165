"""What tables are made of, the same on all three engines."""

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
    """Now, in UTC, without a zone: what every timestamp column holds."""
    return datetime.now(UTC).replace(tzinfo=None)


def enum_column(values: type[StrEnum], name: str) -> sa.Enum:
    """A VARCHAR with a CHECK constraint of the enum's values."""
    return sa.Enum(
        values,
        name=name,
        native_enum=False,
        create_constraint=True,
        length=32,
        values_callable=lambda members: [member.value for member in members],
    )


class JSONText(sa.types.TypeDecorator[Any]):
    """A TEXT that holds an object or a list, written as JSON: Python sees the object, never the text."""

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


# MariaDB's DATETIME has no fraction of a second unless asked; leases and histories need one.
def moment() -> sa.types.TypeEngine[datetime]:
    """The type of a point in time."""
    return sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def timestamps() -> list[sa.Column[datetime]]:
    """When a row was made, and when it was changed last."""
    return [
        sa.Column("created_at", moment(), nullable=False, default=utcnow),
        sa.Column("updated_at", moment(), onupdate=utcnow),
    ]


# These have server defaults too: while a cloud is upgraded, services of the release before insert rows without them.
def flag(name: str) -> sa.Column[bool]:
    """A column that is false unless said otherwise."""
    return sa.Column(name, sa.Boolean(create_constraint=False), nullable=False, default=False, server_default="0")


def counter(name: str, start: int) -> sa.Column[int]:
    """A column that counts from *start*."""
    return sa.Column(name, sa.Integer, nullable=False, default=start, server_default=sa.text(str(start)))
