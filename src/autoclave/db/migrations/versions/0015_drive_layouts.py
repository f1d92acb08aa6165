"""Record the layout of a drive, and a different layout that was found."""

import sqlalchemy as sa

from autoclave.db.migrations.steps import alter_table

revision = "0015_drive_layouts"
down_revision = "0014_rewritten_providers"


def upgrade() -> None:
    with alter_table("devices") as table:
        table.add(sa.Column("layout", sa.Text))
        table.add(sa.Column("found_layout", sa.Text))
