"""Every row that names a host, for the one command that gives a host another name."""

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from autoclave.db.compute_tables import (
    compute_hosts,
    instances,
    pci_functions,
    pci_providers,
    provider_config_additions,
)
from autoclave.db.tables import agents, arqs, deployables, devices, host_maintenances

_OF_HOST = (agents.c.hostname, compute_hosts.c.hostname, host_maintenances.c.hostname)
"""Columns of tables that have one row for each host."""
_OF_DEVICES = (devices.c.hostname, pci_providers.c.hostname, pci_functions.c.hostname, instances.c.host)
"""Columns of what a host has: a host that has any of it cannot give its name to another."""
_OTHERS = (instances.c.requested_host, arqs.c.hostname, provider_config_additions.c.hostname)


def is_known(tx: Connection, hostname: str) -> bool:
    """Return whether a row names the host."""
    return any(_count(tx, column, hostname) for column in (*_OF_HOST, *_OF_DEVICES))


def has_devices(tx: Connection, hostname: str) -> bool:
    """Return whether the host has devices, PCI functions or instances."""
    return any(_count(tx, column, hostname) for column in _OF_DEVICES)


def rename(tx: Connection, hostname: str, new_hostname: str) -> None:
    """Let every row that names *hostname* name *new_hostname*.

    Of an idle host that has the new name already, what the renamed host brings is replaced. Its maintenance stays,
    unless the renamed host brings one.
    """
    for column in _OF_HOST:
        if _count(tx, column, hostname):
            tx.execute(column.table.delete().where(column == new_hostname))
    additions = provider_config_additions
    tx.execute(additions.delete().where(additions.c.hostname == new_hostname))
    _rename_deployables(tx, hostname, new_hostname)
    for column in (*_OF_HOST, *_OF_DEVICES, *_OTHERS):
        table = column.table
        # The last sign of life of what works on an instance stays what it is.
        same = {"updated_at": table.c.updated_at} if "updated_at" in table.c else {}
        tx.execute(table.update().where(column == hostname).values({column.key: new_hostname, **same}))


def _rename_deployables(tx: Connection, hostname: str, new_hostname: str) -> None:
    own = sa.select(deployables.c.id, deployables.c.name).join(devices, deployables.c.device_id == devices.c.id)
    for row in tx.execute(own.where(devices.c.hostname == hostname)).all():
        name = renamed(row.name, hostname, new_hostname)
        tx.execute(deployables.update().where(deployables.c.id == row.id).values(name=name))


def renamed(name: str, hostname: str, new_hostname: str) -> str:
    """Return the name of a provider of a renamed host; a name without the host's stays."""
    rest = name.removeprefix(hostname)
    return new_hostname + rest if name == hostname or (rest != name and rest.startswith("_")) else name


def _count(tx: Connection, column: sa.Column[str], hostname: str) -> int:
    return int(tx.execute(sa.select(sa.func.count()).select_from(column.table).where(column == hostname)).scalar_one())
