"""Record that a device is being forgotten, to distinguish an interrupted forget from an operator's hold."""

import sqlalchemy as sa

from autoclave.db.migrations.steps import alter_table

revision = "0003_forgetting"
down_revision = "0002_device_state"


def upgrade() -> None:
    with alter_table("devices") as table:
        table.add(sa.Column("forgetting", sa.Boolean(create_constraint=False), nullable=False, server_default="0"))
        table.index("forgetting")
