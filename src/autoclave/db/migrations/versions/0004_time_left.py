"""Record the remaining time of a running erase."""

import sqlalchemy as sa

from autoclave.db.migrations.steps import alter_table

revision = "0004_time_left"
down_revision = "0003_forgetting"


def upgrade() -> None:
    with alter_table("devices") as table:
        table.add(sa.Column("progress_seconds_left", sa.Float))
