"""Provide the steps of revisions. A step that is done already is skipped.

MariaDB commits every statement that changes a table, so an interrupted revision is run again from its start. SQLite and
PostgreSQL roll back the whole upgrade, so no step is ever done already.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import sqlalchemy as sa
from alembic import op
from alembic.operations import BatchOperations
from sqlalchemy.dialects import mysql

# Compare values and names with case, as the other two engines do.
_MYSQL: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def moment() -> sa.types.TypeEngine[Any]:
    """Return the type of a timestamp with fractional seconds."""
    return sa.DateTime().with_variant(mysql.DATETIME(fsp=6), "mysql", "mariadb")


def one_of(column: str, values: Sequence[str]) -> str:
    """Return the condition that *column* is one of *values*, none of which needs quoting."""
    return f"{column} IN ({', '.join(repr(str(value)) for value in values)})"


def check(table: str, name: str, condition: str) -> sa.CheckConstraint:
    """Return a CHECK for :func:`create_table`."""
    return sa.CheckConstraint(sa.text(condition), name=op.f(f"ck_{table}_{name}"))


def reference(table: str, column: str, target: str, *, ondelete: str | None = None) -> sa.ForeignKeyConstraint:
    """Return a reference to another table's id for :func:`create_table`."""
    return sa.ForeignKeyConstraint([column], [f"{target}.id"], name=op.f(f"fk_{table}_{column}"), ondelete=ondelete)


def unique(table: str, *columns: str) -> sa.UniqueConstraint:
    """Return a UNIQUE for :func:`create_table`."""
    return sa.UniqueConstraint(*columns, name=op.f(f"uq_{table}_{'_'.join(columns)}"))


def create_table(table: str, *parts: sa.schema.SchemaItem, indexes: Sequence[str] = ()) -> None:
    """Create *table* with an id, *parts*, and an index on each column of *indexes*."""
    if not sa.inspect(op.get_bind()).has_table(table):
        identity = sa.Column("id", sa.Integer, nullable=False)
        op.create_table(table, identity, *parts, sa.PrimaryKeyConstraint("id", name=op.f(f"pk_{table}")), **_MYSQL)
    done = _names(table)
    for column in indexes:
        if (name := f"ix_{table}_{column}") not in done:
            op.create_index(op.f(name), table, [column])


def add_column(table: str, column: sa.Column[Any]) -> None:
    """Add a column that needs no constraint."""
    if column.name not in _names(table):
        op.add_column(table, column)


class Alteration:
    """Collect the changes of one table, which SQLite makes by one copy."""

    def __init__(self, table: str, batch: BatchOperations) -> None:
        self._table = table
        self._batch = batch
        self._done = _names(table)

    def add(self, *columns: sa.Column[Any]) -> None:
        """Add columns."""
        for column in columns:
            if column.name not in self._done:
                self._batch.add_column(column)

    def forbid_null(self, column: str, existing_type: sa.types.TypeEngine[Any]) -> None:
        """Make a filled column NOT NULL."""
        self._batch.alter_column(column, existing_type=existing_type, nullable=False)

    def check(self, name: str, condition: str) -> None:
        """Add a CHECK; replace one of the same name."""
        name = f"ck_{self._table}_{name}"
        if name in self._done:
            self._batch.drop_constraint(op.f(name), type_="check")
        self._batch.create_check_constraint(op.f(name), sa.text(condition))

    def unique(self, *columns: str) -> None:
        """Add a UNIQUE."""
        if (name := f"uq_{self._table}_{'_'.join(columns)}") not in self._done:
            self._batch.create_unique_constraint(op.f(name), list(columns))

    def index(self, column: str) -> None:
        """Add an index."""
        if (name := f"ix_{self._table}_{column}") not in self._done:
            self._batch.create_index(op.f(name), [column])

    def reference(self, column: str, target: str) -> None:
        """Add a reference to another table's id."""
        if (name := f"fk_{self._table}_{column}") not in self._done:
            self._batch.create_foreign_key(op.f(name), target, [column], ["id"])


@contextmanager
def alter_table(table: str) -> Iterator[Alteration]:
    """Collect the changes of *table*, and apply them at the end."""
    with op.batch_alter_table(table) as batch:
        yield Alteration(table, batch)


def _names(table: str) -> set[str]:
    """Return the names of the table's columns, constraints and indexes."""
    inspector = sa.inspect(op.get_bind())
    found: list[Any] = [
        *inspector.get_columns(table),
        *inspector.get_check_constraints(table),
        *inspector.get_unique_constraints(table),
        *inspector.get_indexes(table),
        *inspector.get_foreign_keys(table),
    ]
    return {str(item["name"]) for item in found}
