"""Record why a PCI provider is withheld, and whether Autoclave has reserved it."""

import sqlalchemy as sa

from autoclave.db.migrations.steps import alter_table

revision = "0017_pci_doubts"
down_revision = "0016_orphans"


def upgrade() -> None:
    with alter_table("pci_providers") as table:
        table.add(
            sa.Column("outdated", sa.Boolean(create_constraint=False), nullable=False, server_default="0"),
            sa.Column("unreadable_reason", sa.Text),
            sa.Column("withheld", sa.Boolean(create_constraint=False), nullable=False, server_default="0"),
        )
