"""The real Placement inside this process, for the deployment that installs nothing else.

Its authentication, noauth2, believes whatever the caller's headers say. So :attr:`app` must never
be served bare; :class:`autoclave.placement.front.Front` goes before it.
"""

import logging
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import placement.conf
from oslo_config import cfg
from oslo_db.exception import DBError
from oslo_db.sqlalchemy import enginefacade
from oslo_policy import opts as policy_opts
from placement import db_api, deploy, policy
from placement.objects import resource_class, trait
from sqlalchemy import URL, make_url
from sqlalchemy.exc import DBAPIError

from autoclave.exceptions import DatabaseUnavailable, InvalidConfiguration
from autoclave.placement.client import PlacementClient
from autoclave.placement.transport import call_joined, wsgi_adapter

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_QUIET = {
    "placement": logging.WARNING,
    # They warn of every device that is reserved while it is in use: the normal life of ours. What is
    # refused reaches its caller as an answer.
    "placement.objects.allocation": logging.ERROR,
    "placement.objects.resource_provider": logging.ERROR,
    "alembic": logging.WARNING,
}


class EmbeddedPlacement:
    """Placement with its own database. One at a time in a process: its database handle is a global.

    Its SQLite file keeps Placement's own settings (rollback journal, synchronous=FULL): a power
    cut must not take back a ``reserved`` that we have already acted on.
    """

    _running: ClassVar["EmbeddedPlacement | None"] = None
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, url: URL, app: "WSGIApplication", database: Any, unpatch: Any) -> None:
        self.url = url
        self.app = app
        """Safe to call from any thread: calls are served one after the other."""
        self._database = database
        self._unpatch = unpatch

    @classmethod
    def start(cls, database: Path | str) -> "EmbeddedPlacement":
        """Open *database*, bring its schema, traits and classes up to date, and return the service.

        :param database: path of an SQLite file, or an SQLAlchemy URL.
        :raises InvalidConfiguration: another one runs in this process.
        :raises DatabaseUnavailable: the database cannot be used.
        """
        url = make_url(database) if isinstance(database, str) else URL.create("sqlite", database=str(database))
        with cls._guard:
            if cls._running is not None:
                raise InvalidConfiguration(
                    f"this process already runs a Placement on {cls._running.url}; stop it before starting one on {url}"
                )
            for name, level in _QUIET.items():
                if logging.getLogger(name).level == logging.NOTSET:
                    logging.getLogger(name).setLevel(level)
            conf = _configuration()
            # Placement's own configure() works once in a process and ignores every later database;
            # oslo.db's patch_factory puts another one under the same global, and can take it out again.
            manager = enginefacade.transaction_context()
            options = dict(conf.placement_database.items())
            options.pop("sync_on_startup")
            options["connection"] = url  # no text: in one, a "$" or "?" of the file's name would mean something
            manager.configure(**options)
            unpatch = db_api.placement_context_manager.patch_factory(manager)
            try:
                app = _Serial(deploy.loadapp(conf))
            except (DBError, DBAPIError) as error:
                _forget(manager, unpatch)
                said = error.inner_exception if isinstance(error, DBError) else error
                raise DatabaseUnavailable(
                    f"Placement cannot use its database {url.database}: {getattr(said, 'orig', None) or said}"
                ) from error
            except BaseException:
                _forget(manager, unpatch)
                raise
            cls._running = cls(url, app, manager, unpatch)
            return cls._running

    def stop(self) -> None:
        """Close the database and leave no trace in the process. A second call does nothing."""
        with self._guard:
            if EmbeddedPlacement._running is self:
                _forget(self._database, self._unpatch)
                EmbeddedPlacement._running = None

    def client_session(self) -> Any:
        """A keystoneauth1 adapter for this process's own requests."""
        return wsgi_adapter(self.app)

    def client(self) -> PlacementClient:
        """A client with this process's own rights."""
        return PlacementClient(self.client_session())

    def engine(self) -> Any:
        """The SQLAlchemy engine that Placement itself uses."""
        return self._database.writer.get_engine()


class _Serial:
    """One call at a time: SQLite refuses most of what is written at once with 'database is locked'.

    The body is joined inside the lock, since Placement may still read while it is iterated.
    """

    def __init__(self, app: "WSGIApplication") -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        with self._lock:
            return [call_joined(self._app, environ, start_response)]


def _configuration() -> cfg.ConfigOpts:
    conf = cfg.ConfigOpts()
    placement.conf.register_opts(conf)
    overrides: dict[tuple[str, str], Any] = {
        ("api", "auth_strategy"): "noauth2",
        ("placement_database", "connection"): "sqlite://",  # the real one is given to the engine
        ("placement_database", "sync_on_startup"): True,
        # Hosts with many identical devices make wide trees. Without all three, six devices asked of
        # hosts with eight take minutes.
        ("workarounds", "optimize_for_wide_provider_trees"): True,
        ("placement", "max_allocation_candidates"): 100,
        ("placement", "allocation_candidates_generation_strategy"): "breadth-first",
    }
    for (group, option), value in overrides.items():
        conf.set_override(option, value, group=group)
    # Another Placement's files and environment on this machine are none of ours: its policy would
    # otherwise be found in /etc/placement, since that is where this project's files are looked for.
    conf([], project="placement", default_config_files=[], default_config_dirs=[], use_env=False)
    policy_opts.set_defaults(conf)
    conf.set_override("policy_file", "autoclave-placement-policy.yaml", group="oslo_policy")
    conf.set_override("policy_dirs", [], group="oslo_policy")
    return conf


def _forget(database: Any, unpatch: Any) -> None:
    """Undo what Placement keeps in module globals, so that the next one starts from nothing."""
    unpatch()
    database.dispose_pool()
    trait._TRAITS_SYNCED = False
    resource_class._RESOURCE_CLASSES_SYNCED = False
    policy.reset()
