"""Record hosts in maintenance, and flag their devices."""

import sqlalchemy as sa

from autoclave.db.migrations.steps import alter_table, create_table, moment, unique

revision = "0008_host_maintenance"
down_revision = "0007_drive_texts"


def upgrade() -> None:
    create_table(
        "host_maintenances",
        sa.Column("hostname", sa.String(255), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("actor", sa.String(255), nullable=False),
        sa.Column("began_at", moment(), nullable=False),
        unique("host_maintenances", "hostname"),
    )
    with alter_table("devices") as table:
        table.add(sa.Column("host_maintained", sa.Boolean(create_constraint=False), nullable=False, server_default="0"))
