"""Record why an available device has been unreadable for so long that it is not offered."""

import sqlalchemy as sa

from autoclave.db.migrations.steps import alter_table

revision = "0009_unreadable_devices"
down_revision = "0008_host_maintenance"


def upgrade() -> None:
    with alter_table("devices") as table:
        table.add(sa.Column("unreadable_reason", sa.Text))
