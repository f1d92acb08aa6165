"""Fixtures of the functional tests."""

from agentworld import one_drive, world
from hostworld import host_world
from instanceworld import instance_world
from pciworld import gpu, pci_world

from dbfixtures import database, empty_url, mariadb_database, postgresql_database, row_locking_database

__all__ = [
    "database",
    "empty_url",
    "gpu",
    "host_world",
    "instance_world",
    "mariadb_database",
    "one_drive",
    "pci_world",
    "postgresql_database",
    "row_locking_database",
    "world",
]
