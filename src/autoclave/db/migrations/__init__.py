"""Hold Alembic's environment and the revisions of the schema, which ``db.schema`` runs."""
