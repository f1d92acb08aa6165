"""Run the real Placement inside this process, for deployments that install nothing else.

Its authentication, noauth2, trusts the caller's headers. So never serve :attr:`EmbeddedPlacement.app` directly:
:class:`Front` must stand before it and authenticate the caller.
"""

import io
import json
import logging
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import placement.conf
from oslo_config import cfg
from oslo_db.exception import DBError
from oslo_db.sqlalchemy import enginefacade
from oslo_policy import opts as policy_opts
from placement import db_api, deploy, policy
from placement.objects import resource_class, trait
from sqlalchemy import URL, make_url
from sqlalchemy.exc import DBAPIError

from autoclave.exceptions import BadRequest, DatabaseUnavailable, InvalidConfiguration
from autoclave.placement.client import PlacementClient
from autoclave.placement.transport import call_joined, wsgi_adapter
from autoclave.request_body import BodyTooLarge, RequestBody
from autoclave.rules import json_options

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

_QUIET = {
    "placement": logging.WARNING,
    # Placement warns of every device that is reserved while in use, which is the normal state in Autoclave. Refused
    # requests reach their caller as an answer.
    "placement.objects.allocation": logging.ERROR,
    "placement.objects.resource_provider": logging.ERROR,
    "alembic": logging.WARNING,
}


class EmbeddedPlacement:
    """Run Placement with its own database, once per process: its database handle is a global.

    Its SQLite file keeps Placement's own settings (rollback journal, synchronous=FULL). A power cut must not undo a
    ``reserved`` on which Autoclave has already acted.
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
        """Open *database*, update its schema, traits and classes, and return the service.

        :param database: path of an SQLite file, or an SQLAlchemy URL.
        :raises InvalidConfiguration: another one runs in this process.
        :raises DatabaseUnavailable: the database cannot be used.
        """
        url = make_url(database) if isinstance(database, str) else URL.create("sqlite", database=str(database))
        with cls._guard:
            if cls._running is not None:
                raise InvalidConfiguration(
                    f"this process already runs an embedded Placement on {cls._running.url}; stop it before "
                    f"starting one on {url}"
                )
            for name, level in _QUIET.items():
                if logging.getLogger(name).level == logging.NOTSET:
                    logging.getLogger(name).setLevel(level)
            conf = _configuration()
            # Placement's own configure() works once per process and ignores every later database. oslo.db's
            # patch_factory replaces the same global, and can restore it.
            manager = enginefacade.transaction_context()
            options = dict(conf.placement_database.items())
            options.pop("sync_on_startup")
            options["connection"] = url  # not a string: in one, a "$" or "?" of the file's name would be interpreted
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
        """Close the database and restore the globals of the process. A second call does nothing."""
        with self._guard:
            if EmbeddedPlacement._running is self:
                _forget(self._database, self._unpatch)
                EmbeddedPlacement._running = None

    def client_session(self) -> Any:
        """Return a keystoneauth1 adapter for this process's own requests."""
        return wsgi_adapter(self.app)

    def client(self) -> PlacementClient:
        """Return a client with this process's own rights."""
        return PlacementClient(self.client_session())

    def engine(self) -> Any:
        """Return the SQLAlchemy engine that Placement itself uses."""
        return self._database.writer.get_engine()


class _Serial:
    """Serialize calls: SQLite refuses most concurrent writes with 'database is locked'.

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
        ("placement_database", "connection"): "sqlite://",  # the real one is passed to the engine
        ("placement_database", "sync_on_startup"): True,
        # Hosts with many identical devices make wide trees. Without all three options, a request for six devices on
        # hosts with eight takes minutes.
        ("workarounds", "optimize_for_wide_provider_trees"): True,
        ("placement", "max_allocation_candidates"): 100,
        ("placement", "allocation_candidates_generation_strategy"): "breadth-first",
    }
    for (group, option), value in overrides.items():
        conf.set_override(option, value, group=group)
    # Ignore files and environment of another Placement on this machine. Its policy would otherwise be found in
    # /etc/placement, the directory of this project name.
    conf([], project="placement", default_config_files=[], default_config_dirs=[], use_env=False)
    policy_opts.set_defaults(conf)
    conf.set_override("policy_file", "autoclave-placement-policy.yaml", group="oslo_policy")
    conf.set_override("policy_dirs", [], group="oslo_policy")
    return conf


def _forget(database: Any, unpatch: Any) -> None:
    """Reset what Placement keeps in module globals, so that the next one starts fresh."""
    unpatch()
    database.dispose_pool()
    trait._TRAITS_SYNCED = False
    resource_class._RESOURCE_CLASSES_SYNCED = False
    policy.reset()


class Identity(NamedTuple):
    """Identify an authenticated caller.

    :param user: user id, without a colon.
    :param project: project id.
    :param roles: role names, including implied ones.
    """

    user: str
    project: str
    roles: tuple[str, ...]


Authenticate = Callable[["WSGIEnvironment"], Identity | None]
"""Authenticates the caller; returns None without valid credentials."""

_HARMLESS = frozenset(
    {
        "HTTP_ACCEPT",
        "HTTP_ACCEPT_CHARSET",
        "HTTP_ACCEPT_ENCODING",
        "HTTP_CONNECTION",
        "HTTP_HOST",
        "HTTP_OPENSTACK_API_VERSION",
        "HTTP_USER_AGENT",
        "HTTP_X_OPENSTACK_REQUEST_ID",
    }
)
"""The headers that pass. A list of the headers that carry an identity would never be complete."""

_CHALLENGE = ("WWW-Authenticate", 'Basic realm="Placement"')
_SET_BY_SERVERS = ("keystone.", "REMOTE_USER", "AUTH_TYPE")


_LARGEST_BODY = 1 << 24
"""The most bytes of a body: Placement reads it into memory, however long it is. A thousand allocations need a tenth."""


class Front:
    """Authenticate callers, and identify them to the embedded Placement by noauth2's headers.

    The version document at the root is public, as in every Placement.

    :param app: the embedded Placement.
    :param authenticate: called with the caller's own headers.
    """

    def __init__(self, app: "WSGIApplication", authenticate: Authenticate) -> None:
        self._app = app
        self._authenticate = authenticate

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        passed = {name: value for name, value in environ.items() if _passes(name)}
        if environ.get("PATH_INFO", "") in ("", "/"):
            # noauth2 admits "/" without a token, but not "".
            passed["PATH_INFO"] = "/"
            return self._app(passed, start_response)
        identity = self._authenticate(environ)
        if identity is None:
            detail = "Authentication required: send credentials of this service."
            return _error(start_response, "401 Unauthorized", detail, _CHALLENGE)
        if ":" in identity.user:
            raise ValueError(f"user id {identity.user!r} contains a colon, which noauth2 does not support")
        passed["HTTP_X_AUTH_TOKEN"] = f"{identity.user}:{identity.project}"
        # Always set, even if empty: without it, noauth2 makes the user "admin" an administrator.
        passed["HTTP_X_ROLES"] = ",".join(identity.roles)
        try:
            body = RequestBody(environ).read_all(_LARGEST_BODY)
            # Placement would answer 500 and log a traceback of a thousand lines. Latin-1 maps each byte to a character:
            # brackets and quotes are the same in UTF-8.
            json_options.require_shallow(body.decode("latin-1"))
        except json_options.TooDeep as error:
            return _error(start_response, "400 Bad Request", f"The body is {error}.")
        except BadRequest as error:
            return _error(start_response, "400 Bad Request", str(error))
        except BodyTooLarge as error:
            return _error(start_response, "413 Content Too Large", str(error))
        if body:
            passed |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        return self._app(passed, start_response)


def _error(start_response: "StartResponse", status: str, detail: str, *headers: tuple[str, str]) -> Iterable[bytes]:
    """Return an error in Placement's format."""
    code, _, title = status.partition(" ")
    error = {"status": int(code), "title": title, "detail": detail, "code": "placement.undefined_code"}
    body = json.dumps({"errors": [error]}).encode()
    described = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response(status, [*described, *headers])
    return [body]


def _passes(name: str) -> bool:
    if name.startswith("HTTP_"):
        return name in _HARMLESS
    return not name.startswith(_SET_BY_SERVERS)
