"""Since when the server of an accelerator request is deleted, and why its device is not given back."""

import sqlalchemy as sa

from autoclave.db.migrations.steps import add_column, moment

revision = "0016_orphans"
down_revision = "0015_drive_layouts"


def upgrade() -> None:
    add_column("extended_accelerator_requests", sa.Column("orphan_since", moment()))
    add_column("extended_accelerator_requests", sa.Column("orphan_reason", sa.Text))
