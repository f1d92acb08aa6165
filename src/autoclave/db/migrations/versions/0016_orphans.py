"""Record since when the server of a request has been deleted, and why its device is not reclaimed."""

import sqlalchemy as sa

from autoclave.db.migrations.steps import add_column, alter_table, moment

revision = "0016_orphans"
down_revision = "0015_drive_layouts"


def upgrade() -> None:
    add_column("extended_accelerator_requests", sa.Column("orphan_since", moment()))
    add_column("extended_accelerator_requests", sa.Column("orphan_reason", sa.Text))
    with alter_table("extended_accelerator_requests") as table:
        table.add(sa.Column("server_seen", sa.Boolean(create_constraint=False), nullable=False, server_default="0"))
