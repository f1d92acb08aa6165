"""The database and the Placement of services that need not run, for commands that work on them directly."""

from pathlib import Path

from oslo_config import cfg

from autoclave.db.engine import Database, require_sound, sqlite_url
from autoclave.exceptions import InvalidConfiguration
from autoclave.placement.client import PlacementClient
from autoclave.services.service import Resources


def recorded_database(conf: cfg.ConfigOpts, directory: Path) -> Database:
    """Return the database that the configuration names, or that of the ``autoclave up`` in *directory*.

    :raises InvalidConfiguration: there is neither.
    """
    if conf.database.connection:
        return Database(conf.database.connection, timeout=conf.database.timeout)
    path = directory / "autoclave.db"
    if not path.exists():
        raise InvalidConfiguration(
            f"is not set, and there is no {path}; name the services' configuration with --config-file, or the data "
            "directory of `autoclave up` with --data-dir",
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
        raise InvalidConfiguration(f"is not set, and there is no {path}", option="[placement] auth_type")
    require_sound(path, "move it away; it is made anew from the devices on record, without instances' allocations")
    # Imported only here: it takes as long as all the rest, and is not needed where a Placement runs.
    from autoclave.placement.embedded import EmbeddedPlacement

    embedded = EmbeddedPlacement.start(path)
    resources.add(embedded.stop)
    return embedded.client()
