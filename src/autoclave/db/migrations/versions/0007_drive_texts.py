"""Serial numbers and models of drives in the one spelling that they have whichever way they were read."""

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
    """Rewrite the rows that have another spelling.

    :param unique: no two rows have the same of *columns*: one that would become another's double is deleted.
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
