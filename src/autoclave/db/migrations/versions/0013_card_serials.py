"""Record serial numbers of cards, and add the ledger of burned cards."""

import sqlalchemy as sa

from autoclave.db.migrations.steps import add_column, create_table, moment, unique

revision = "0013_card_serials"
down_revision = "0012_host_hints"


def upgrade() -> None:
    add_column("pci_providers", sa.Column("serial", sa.String(64)))
    create_table(
        "burned_cards",
        sa.Column("serial", sa.String(64), nullable=False),
        sa.Column("rp_uuid", sa.String(36), nullable=False),
        sa.Column("created_at", moment(), nullable=False),
        unique("burned_cards", "serial"),
    )
