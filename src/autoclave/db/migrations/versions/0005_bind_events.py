"""Record pending Nova events of binds: since when, and when the next attempt is due."""

import sqlalchemy as sa

from autoclave.db.migrations.steps import alter_table, moment

revision = "0005_bind_events"
down_revision = "0004_time_left"


def upgrade() -> None:
    with alter_table("extended_accelerator_requests") as table:
        table.add(sa.Column("event_owed_at", moment()), sa.Column("event_due_at", moment()))
        table.index("event_due_at")
