"""Rename a host on the host itself, while its agent is stopped.

The rename covers the data directory, the database and Placement. It works on both directly, because the services need
not run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from oslo_config import cfg

from autoclave.agent.host_identity import HostRecord
from autoclave.agent.manager import HostLock
from autoclave.conf import new_config
from autoclave.conf.agent import patience_with_agents
from autoclave.conf.clouds import is_external
from autoclave.db import hosts, schema
from autoclave.db.engine import Database, require_sound, sqlite_url
from autoclave.exceptions import AutoclaveError, InvalidConfiguration
from autoclave.lifecycle.host_rename import Carried, HostRename
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.client import PlacementClient
from autoclave.placement.transport import http_adapter
from autoclave.services.data_dir import DataDirectory
from autoclave.services.hosts import NO_HOST_NAME, is_host_name
from autoclave.services.service import Resources
from autoclave.simulator.host import Fleet, SimulatedHost


def recorded_database(conf: cfg.ConfigOpts, directory: Path) -> Database:
    """Return the database that the configuration names, or that of the ``autoclave up`` in *directory*.

    :raises InvalidConfiguration: there is neither.
    """
    if conf.database.connection:
        return Database(conf.database.connection, timeout=conf.database.timeout)
    path = directory / "autoclave.db"
    if not path.exists():
        raise InvalidConfiguration(
            f"is not set, and {path} does not exist; pass the services' configuration with --config-file, or the "
            "data directory of `autoclave up` with --data-dir",
            option="[database] connection",
        )
    return Database(sqlite_url(path))


def embedded_placement(directory: Path, resources: Resources) -> PlacementClient:
    """Return the Placement of an ``autoclave up`` that does not run; the caller has its directory.

    :raises InvalidConfiguration: there is none.
    :raises DatabaseUnavailable: its file is damaged.
    """
    path = directory / "placement.db"
    if not path.exists():
        raise InvalidConfiguration(f"is not set, and {path} does not exist", option="[placement] auth_type")
    require_sound(
        path, "move it away; Autoclave creates a new one from the recorded devices, without allocations of instances"
    )
    # Imported only here: the import is slow, and a running Placement needs none.
    from autoclave.placement.embedded import EmbeddedPlacement

    embedded = EmbeddedPlacement.start(path)
    resources.add(embedded.stop)
    return embedded.client()


_OPTION = "[agent] data_dir"


@dataclass(frozen=True)
class HostSite:
    """Hold the parts of a rename: the host's own files, and the services' records.

    :param directory: ``[agent] data_dir``.
    :param sysfs: ``[agent] sysfs_root``.
    :param simulated: the host, if an ``autoclave up`` simulates it.
    :param patience: see :class:`HostRename`.
    :param owns_root: see :class:`HostRename`.
    """

    db: Database
    placement: PlacementClient
    directory: Path
    sysfs: Path
    simulated: SimulatedHost | None
    patience: timedelta
    owns_root: bool


def rename_host(site: HostSite, hostname: str, new_hostname: str, cause: Cause, resources: Resources) -> Carried:
    """Rename a host, or complete an interrupted rename.

    :param resources: closed by the caller, also after an error.
    :raises InvalidConfiguration: the new name is invalid, an agent runs, or the data directory is not the host's.
    :raises ApiError: see :meth:`HostRename.begin`.
    :raises AutoclaveError: the database, Placement or a file failed. The same call completes the rename.
    """
    if not is_host_name(new_hostname):
        raise InvalidConfiguration(f"{new_hostname!r:.60} {NO_HOST_NAME}")
    if new_hostname == hostname:
        raise InvalidConfiguration(
            f"{hostname} is the current name of the host; pass a new name as the second argument"
        )
    with site.db.read() as tx:
        begun = bool(hosts.about(tx, hostname))
    record = HostRecord(site.directory, site.sysfs)
    record.require_served(hostname, *([new_hostname] if begun else []))
    locks = [HostLock(site.directory, name) for name in (hostname, new_hostname)]
    dead: list[str] = []
    for lock in locks:
        resources.add(lock.release)
        dead += lock.take()
    rename = HostRename(
        site.db,
        site.placement,
        hostname,
        new_hostname,
        cause,
        dead=dead,
        patience=site.patience,
        owns_root=site.owns_root,
    )
    rename.begin()
    carried = rename.carry_over()
    _move_journal(site.directory / "tools", hostname, new_hostname)
    locks[1].write(dead)  # so that the next agent need not wait until the former one counts as dead
    if site.simulated is not None:
        site.simulated.rename(new_hostname)
    record.rename(hostname, new_hostname)
    rename.finish()
    return carried


def host_site(
    config_files: Sequence[str], data_dir: Path | None, hostname: str, new_hostname: str, resources: Resources
) -> HostSite:
    """Find the parts of a rename.

    :param config_files: of the host's agent.
    :param data_dir: of the host's ``autoclave up``, which must not run; None: ``[agent] data_dir``.
    :param resources: closed by the caller, also after an error.
    :raises InvalidConfiguration: no database or no Placement is named, the schema is another, ``autoclave up`` runs, or
        its directory has no simulated host of that name.
    :raises DatabaseUnavailable: the database does not answer.
    """
    overrides: dict[tuple[str | None, str], object] = {}
    if data_dir is not None:
        overrides["agent", "data_dir"] = str(data_dir.absolute())
    conf = new_config(config_files, overrides)
    directory = Path(conf.agent.data_dir)
    database = recorded_database(conf, directory)
    resources.add(database.dispose)
    schema.require_current(database)
    of_up = (directory / "up.lock").exists()
    if of_up:
        lock = DataDirectory(directory)
        if not lock.take_as_it_is():
            raise InvalidConfiguration(
                f"{directory} is used by an `autoclave up`; stop it, then rename the host", option=_OPTION
            )
        resources.add(lock.give_back)
    placement = PlacementClient(http_adapter(conf)) if is_external(conf) else embedded_placement(directory, resources)
    simulated = _simulated(directory, hostname, new_hostname)
    sysfs = Path(conf.agent.sysfs_root) if simulated is None else simulated.paths.sysfs
    owns_root = of_up or conf.compute.enabled or conf.placement.create_root_provider
    patience = patience_with_agents(conf)
    return HostSite(database, placement, directory, sysfs, simulated, patience, owns_root)


def _simulated(directory: Path, hostname: str, new_hostname: str) -> SimulatedHost | None:
    hosts = Fleet(directory).hosts()
    found = [host for host in hosts if host.name in (hostname, new_hostname)]
    if hosts and not found:
        known = ", ".join(host.name for host in hosts)
        raise InvalidConfiguration(f"{directory} has no simulated host {hostname}; it has {known}", option=_OPTION)
    return next((host for host in found if host.name == hostname), found[0] if found else None)


def _move_journal(tools: Path, hostname: str, new_hostname: str) -> None:
    """Move the journal: the next agent waits for its tools, which may still run on devices."""
    try:
        if (tools / hostname).exists():
            (tools / new_hostname).mkdir(exist_ok=True)
            for file in (tools / hostname).iterdir():
                file.rename(tools / new_hostname / file.name)
    except OSError as error:
        raise AutoclaveError(
            f"the journal of running tools in {tools / hostname} cannot be moved ({error.strerror}); correct the "
            "cause, then run the command again"
        ) from error
