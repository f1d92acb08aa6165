"""Fixtures of the functional tests."""

from agentworld import world

from dbfixtures import database, empty_url, mariadb_database, postgresql_database, row_locking_database

__all__ = ["database", "empty_url", "mariadb_database", "postgresql_database", "row_locking_database", "world"]
