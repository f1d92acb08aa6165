"""Record renames of hosts that have begun and are incomplete."""

import sqlalchemy as sa

from autoclave.db.migrations.steps import create_table, moment, unique

revision = "0011_host_renames"
down_revision = "0010_pci_waiting"


def upgrade() -> None:
    create_table(
        "host_renames",
        sa.Column("hostname", sa.String(255), nullable=False),
        sa.Column("new_hostname", sa.String(255), nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("began_at", moment(), nullable=False),
        unique("host_renames", "hostname"),
        unique("host_renames", "new_hostname"),
    )
