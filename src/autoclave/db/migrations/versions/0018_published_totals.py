"""Record the total that Autoclave last wrote to the inventory of a device."""

import sqlalchemy as sa
from alembic import op

from autoclave.db.migrations.steps import add_column

revision = "0018_published_totals"
down_revision = "0017_pci_doubts"


def upgrade() -> None:
    add_column("deployables", sa.Column("published_total", sa.Integer))
    table = sa.table("deployables", sa.column("num_accelerators"), sa.column("published_total"))
    unknown = table.update().where(table.c.published_total.is_(None))
    op.execute(unknown.values(published_total=table.c.num_accelerators))
