"""Flag devices whose provider another service has rewritten."""

import sqlalchemy as sa

from autoclave.db.migrations.steps import alter_table

revision = "0014_rewritten_providers"
down_revision = "0013_card_serials"


def upgrade() -> None:
    with alter_table("devices") as table:
        table.add(sa.Column("rewritten", sa.Boolean(create_constraint=False), nullable=False, server_default="0"))
