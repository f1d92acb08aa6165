"""Record hints that identify the machine of an agent."""

import sqlalchemy as sa

from autoclave.db.migrations.steps import add_column

revision = "0012_host_hints"
down_revision = "0011_host_renames"


def upgrade() -> None:
    add_column("agents", sa.Column("machine_id", sa.String(32)))
    add_column("agents", sa.Column("product_uuid", sa.String(32)))
