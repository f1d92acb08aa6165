"""Alembic's environment and the revisions of the schema. ``db.schema`` runs them; nothing imports them."""
