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


_SEPARATOR = ", "
"""What JSON is written with between the texts of a list."""


def lists(column: sa.ColumnElement[Any], text: str) -> sa.ColumnElement[bool]:
    """The condition that the list in *column*, of texts as :class:`JSONText` writes them, has *text* in it.

    A quote behind a bracket or a space is not escaped, so it begins a text of the list; or it ends one that ends with
    a bracket or a space, and then the separator follows, which is looked for in another way therefore.
    """
    written = sa.type_coerce(column, sa.Text)
    if text == _SEPARATOR:
        return _lists_separator(written)
    return sa.or_(*(_holds(written, f"{before}{json.dumps(text)}") for before in "[ "))


def _lists_separator(written: sa.ColumnElement[str]) -> sa.ColumnElement[bool]:
    """The condition that *written* has a text which is what stands between two others.

    Without escaped quotes, the first ``", "`` that an engine finds lies between two texts, unless the first text is
    one itself. So does the next, and so on up to a text that is one: of that, the comma and the space stay.
    """
    quotes = sa.func.replace(sa.func.replace(written, "\\\\", "x"), '\\"', "x")
    # A line feed is in no JSON text.
    split = sa.func.replace(quotes, f'"{_SEPARATOR}"', "\n")
    return sa.or_(split.startswith("[\n"), _holds(split, f"\n{_SEPARATOR}\n"), _holds(split, f'\n{_SEPARATOR}"]'))


def _holds(written: sa.ColumnElement[str], part: str) -> sa.ColumnElement[bool]:
    # not LIKE, to which SQLite's small and capital letters are alike
    return sa.func.replace(written, part, "") != written


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
