"""Run the revisions for Alembic, on the connection and in the transaction that ``db.schema`` opened."""

from alembic import context

from autoclave.db import tables  # noqa: F401 - they fill the metadata
from autoclave.db.columns import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
context.run_migrations()
