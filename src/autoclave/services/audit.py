"""What an audit is made of: the services' own database and Placement, and the hosts that can be seen from here."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oslo_config import cfg

from autoclave.audit.auditor import HostView
from autoclave.conf import new_config
from autoclave.conf.agent import allowed_host_devices, patience_with_agents
from autoclave.conf.placement import is_external
from autoclave.db import schema
from autoclave.db.engine import Database
from autoclave.exceptions import AutoclaveError, InvalidConfiguration
from autoclave.placement.client import PlacementClient
from autoclave.placement.transport import http_adapter
from autoclave.rules.audit.devices import SILENCE
from autoclave.rules.audit.kinds import Kind
from autoclave.rules.audit.model import Finding
from autoclave.services.data_dir import CloudsFile, DataDirectory
from autoclave.services.host_rename import embedded_placement, recorded_database
from autoclave.services.hosts import host_name, host_paths
from autoclave.services.service import Resources
from autoclave.simulator.host import Fleet
from autoclave.virt.domains import domains_of


@dataclass(frozen=True)
class Audited:
    """Where an audit looks.

    :param schema_behind: the database cannot be read, because its schema is another.
    :param unseen: hosts that should be looked at from here and cannot be.
    :param patience: seconds after which an agent that was not seen is taken for dead.
    """

    db: Database
    placement: PlacementClient
    hosts: tuple[HostView, ...]
    unseen: tuple[Finding, ...]
    schema_behind: Finding | None
    patience: float


def audited(config_files: Sequence[str], data_dir: Path | None, resources: Resources) -> Audited:
    """The parts, by the configuration of the services, or by the data directory of ``autoclave up``.

    A data directory whose service runs is left to it, and its Placement is asked over HTTP. Where none runs, Placement
    is embedded here, and the directory is ours until *resources* are closed.

    :raises InvalidConfiguration: no database or no Placement is named, or they cannot be used.
    :raises DatabaseUnavailable: the database does not answer, or a file is damaged.
    """
    overrides: dict[tuple[str | None, str], object] = {}
    if data_dir is not None:
        overrides["agent", "data_dir"] = str(data_dir.absolute())
    conf = new_config(config_files, overrides)
    directory = Path(conf.agent.data_dir)
    database = recorded_database(conf, directory)
    resources.add(database.dispose)
    try:
        schema.require_current(database)
        behind = None
    except InvalidConfiguration as error:
        behind = Finding(Kind.SCHEMA_BEHIND, "database", str(error), Kind.SCHEMA_BEHIND.remedy)
    placement = _placement(conf, config_files, overrides, directory, resources)
    hosts, unseen = _hosts(config_files, overrides, directory, conf)
    # Never less than by default: this configuration need not be that of the agents.
    patience = max(SILENCE, patience_with_agents(conf).total_seconds())
    return Audited(database, placement, tuple(hosts), tuple(unseen), behind, patience)


def _placement(
    conf: cfg.ConfigOpts,
    config_files: Sequence[str],
    overrides: dict[tuple[str | None, str], object],
    directory: Path,
    resources: Resources,
) -> PlacementClient:
    if is_external(conf):
        return PlacementClient(http_adapter(conf))
    lock = DataDirectory(directory)
    if not lock.take_as_it_is():
        there = {"auth_type": "admin_token", "token": "admin", "endpoint_override": CloudsFile(directory).placement}
        overrides = overrides | {("placement", option): value for option, value in there.items()}
        return PlacementClient(http_adapter(new_config(config_files, overrides)))
    resources.add(lock.give_back)
    return embedded_placement(directory, resources)


def _hosts(
    config_files: Sequence[str], overrides: dict[tuple[str | None, str], object], directory: Path, conf: cfg.ConfigOpts
) -> tuple[list[HostView], list[Finding]]:
    """The hosts that are simulated in the directory, or else the one that this machine is."""
    fleet = Fleet(directory).hosts() if os.access(directory, os.R_OK | os.X_OK) else []
    simulated = [new_config(config_files, overrides | each.conf_overrides()) for each in fleet]
    views, unseen = [], []
    for host in simulated or [conf]:
        name = host_name(host)
        try:
            paths = host_paths(host)
            allowed = allowed_host_devices(host)
        except AutoclaveError as error:
            kind = Kind.HOST_UNREADABLE
            unseen.append(Finding(kind, name, str(error), kind.remedy.format(host=name)))
            continue
        views.append(HostView(name, paths, allowed, domains_of(paths)))
    return views, unseen
