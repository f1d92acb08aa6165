"""Normalize serial numbers and models of drives, so that every way of reading gives the same text."""

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

from autoclave.rules.plain_text import drive_text

revision = "0007_drive_texts"
down_revision = "0006_compute"


def upgrade() -> None:
    _respell("devices", ("serial", "drive_model", "found_serial", "found_drive_model"))
    _respell("dirty_serials", ("serial", "drive_model"), unique=True)


def _respell(name: str, columns: Sequence[str], *, unique: bool = False) -> None:
    """Rewrite the rows with another spelling.

    :param unique: *columns* are unique: delete a row that would become a duplicate.
    """
    table = sa.table(name, sa.column("id", sa.Integer), *(sa.column(each, sa.String) for each in columns))
    rows = {row.id: tuple(getattr(row, each) for each in columns) for row in op.get_bind().execute(sa.select(table))}
    stored = set(rows.values())
    for number, texts in rows.items():
        spelled = tuple(None if text is None else drive_text(text) for text in texts)
        if spelled == texts:
            continue
        if unique and spelled in stored:
            op.execute(table.delete().where(table.c.id == number))
            continue
        stored.add(spelled)
        op.execute(table.update().where(table.c.id == number).values(dict(zip(columns, spelled, strict=True))))
