"""Authenticate callers by Keystone, by a file, or on one machine by their own headers.

Each strategy sets the headers that :meth:`RequestContext.from_environ` reads, and removes those that the client sent.

``http_basic`` uses oslo.middleware's parser and comparison, but not its middleware. That answers 401 to any error of
its application, names no scheme in its 401, and reads one global configuration.
"""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import falcon
from keystoneauth1 import loading
from keystoneauth1.exceptions import ClientException
from oslo_log import log as logging
from oslo_middleware import basic_auth
from webob.exc import HTTPError, HTTPServiceUnavailable

from autoclave.api.errors import answer
from autoclave.exceptions import Forbidden, InvalidConfiguration
from autoclave.objects.base import RequestContext
from autoclave.service_adapter import UNEXPECTED, require_tls_files

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = logging.getLogger(__name__)


ROLES = ("admin", "manager", "member", "reader")
"""List Keystone's default roles; each implies those after it."""
PROJECT = "admin"
"""Name the project of callers that name none."""


def as_caller(environ: "WSGIEnvironment", user: str, project: str, roles: Iterable[str]) -> "WSGIEnvironment":
    """Return *environ* with the identity of *user*, without the identity headers of the client."""
    passed = {name: value for name, value in environ.items() if not _says_who(name)}
    return {**passed, "HTTP_X_USER_ID": user, "HTTP_X_PROJECT_ID": project, "HTTP_X_ROLES": ",".join(roles)}


def _says_who(header: str) -> bool:
    if header in ("HTTP_X_OPENSTACK_REQUEST_ID", "HTTP_X_OPENSTACK_NOVA_API_VERSION"):
        return False
    return header.startswith(("HTTP_X_", "HTTP_OPENSTACK_SYSTEM", "keystone."))


OPTION = "[api] http_basic_auth_user_file"
CHALLENGE = 'Basic realm="Autoclave", charset="UTF-8"'

_BCRYPT = re.compile(r"\$2[aby]\$(0[4-9]|[12]\d|3[01])\$[./A-Za-z0-9]{53}")
_LONGEST_NAME = 64  # as long as a Keystone user's; the history of devices stores it


class Users:
    """Read users from a file in the format of ``htpasswd -B``: a line ``name:hash`` each; ``#`` begins a comment.

    The file is read for each request, because that is cheap next to a hash. A removed user is refused at once.

    :raises InvalidConfiguration: the file cannot be read, a line is malformed, or it names no user.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read()

    def knows(self, name: str, password: bytes) -> bool:
        """Return whether *name* is a user with *password*.

        :raises InvalidConfiguration: the file has become unusable; no user is accepted until it is repaired.
        """
        entries = self._read()
        entry = entries.get(name)
        try:
            # An unknown name takes as long as a known one, so that the time does not reveal names.
            basic_auth.auth_entry(entry or next(iter(entries.values())), password)
        except (HTTPError, ValueError):  # the second: bcrypt refuses some passwords, such as very long ones
            return False
        return entry is not None

    def _read(self) -> dict[str, str]:
        try:
            text = self._path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidConfiguration(f"{self._path} cannot be read: {error}", option=OPTION) from error
        return _parsed(self._path, text)


def http_basic(conf: Any, app: "WSGIApplication") -> "WSGIApplication":
    """Return *app* for the users of ``[api] http_basic_auth_user_file``; each is an administrator.

    :raises InvalidConfiguration: see :class:`Users`.
    """
    users = Users(Path(conf.api.http_basic_auth_user_file))
    logged: str | None = None

    def guarded(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        nonlocal logged
        environ = dict(environ)
        try:
            name, password = basic_auth.parse_token(basic_auth.parse_header(environ))
            known = users.knows(name, password)
            logged = None
        except HTTPError:
            known = False
        except InvalidConfiguration as error:
            if str(error) != logged:  # once, not for each request
                LOG.error("API refuses every caller until the file of users is corrected: %s", error)
            logged = str(error)
            return answer(
                environ, start_response, 503, "The service cannot verify credentials; its log shows the cause."
            )
        if not known:
            said = (
                "Authentication required: send a user name and password of this service by HTTP basic authentication."
            )
            return answer(environ, start_response, 401, said, ("WWW-Authenticate", CHALLENGE))
        return app(as_caller(environ, name, PROJECT, ROLES), start_response)

    return guarded


def _parsed(path: Path, text: str) -> dict[str, str]:
    lines: dict[str, int] = {}
    entries: dict[str, str] = {}
    for number, line in enumerate(map(str.strip, text.splitlines()), start=1):
        if not line or line.startswith("#"):
            continue
        name, colon, crypted = line.partition(":")
        if not colon or not name or len(name) > _LONGEST_NAME or not name.isprintable():
            wrong = f"is not name:hash, with a name of at most {_LONGEST_NAME} characters"
        elif not _BCRYPT.fullmatch(crypted):
            wrong = f"has no bcrypt hash for {name}; make one with `htpasswd -nB {name}`"
        elif name in lines:
            wrong = f"repeats {name} of line {lines[name]}"
        else:
            lines[name], entries[name] = number, line
            continue
        raise InvalidConfiguration(f"line {number} of {path} {wrong}", option=OPTION)
    if not entries:
        raise InvalidConfiguration(f"{path} names no user; add one with `htpasswd -B`", option=OPTION)
    return entries


_PUBLIC = frozenset(
    {
        "/",
        "/v2",
        "/openapi.json",
        "/accelerator",
        "/accelerator/v2",
        "/accelerator/openapi.json",
        "/healthcheck",
        "/identity",
        "/identity/v3",
        "/compute",
        "/compute/v2.1",
        "/image",
        "/image/v2",
    },
)


def is_public(conf: Any, path: str) -> bool:
    """Return whether *path* is served without authentication: the API's description, the health check, public
    metrics."""
    path = path.rstrip("/") or "/"
    return path in _PUBLIC or (path == "/metrics" and conf.api.public_metrics)


def authenticated(conf: Any, app: "WSGIApplication") -> "WSGIApplication":
    """Return *app* behind the authentication of ``[api] auth_strategy``; public paths reach it directly."""
    strategies: dict[str, Callable[[Any, WSGIApplication], WSGIApplication]] = {
        "keystone": keystone,
        "http_basic": http_basic,
        "noauth": noauth,
    }
    guarded = strategies[conf.api.auth_strategy](conf, app)

    def choose(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        return (app if is_public(conf, environ.get("PATH_INFO", "")) else guarded)(environ, start_response)

    return choose


def keystone(conf: Any, app: "WSGIApplication") -> "WSGIApplication":
    """Validate tokens with Keystone (``[keystone_authtoken]``).

    A service token needs one of ``service_token_roles``, whatever the file says.

    :raises InvalidConfiguration: the file does not configure access to Keystone.
    """
    from keystonemiddleware.auth_token import AuthProtocol  # imported here: the other strategies save 8 MiB

    class Middleware(AuthProtocol):  # type: ignore[misc]  # keystonemiddleware comes without types
        def fetch_token(self, *args: Any, **kwargs: Any) -> Any:
            try:
                return super().fetch_token(*args, **kwargs)
            except UNEXPECTED as error:  # keystoneauth1 does not expect every answer
                LOG.error(
                    "No token can be checked: see [%s] auth_url, and what Keystone answers: %s: %s",
                    section,
                    type(error).__name__,
                    error,
                )
                raise HTTPServiceUnavailable("No token can be checked. Ask again later.") from error

    options = {"oslo_config_config": conf, "service_token_roles_required": True}
    loading.register_auth_conf_options(conf, "keystone_authtoken")
    section = conf.keystone_authtoken.auth_section or "keystone_authtoken"
    loading.register_auth_conf_options(conf, section)
    try:
        guarded: WSGIApplication = Middleware(app, options)
    except ClientException as error:
        raise InvalidConfiguration(f"Keystone is unavailable: {error}", option="[keystone_authtoken]") from error
    require_tls_files(conf, "keystone_authtoken")
    if not conf[section].auth_type:  # the middleware would start, and refuse every token
        raise InvalidConfiguration(
            "is not set, so that tokens cannot be verified; set Keystone's URL and the service's user (auth_type = "
            "password, auth_url, username, password, project_name, …), or see [api] auth_strategy",
            option=f"[{section}] auth_type",
        )
    return guarded


def noauth(_conf: Any, app: "WSGIApplication") -> "WSGIApplication":
    """Treat every caller as an administrator of the project ``admin``.

    A token ``user:project`` or ``user:project:role1,role2`` sets another identity, for tests with several projects.
    Any other token is ignored.
    """

    def trusting(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        return app(as_caller(environ, *_claimed(environ.get("HTTP_X_AUTH_TOKEN", ""))), start_response)

    return trusting


def _claimed(token: str) -> tuple[str, str, list[str]]:
    user, _, rest = token.partition(":")
    project, _, named = rest.partition(":")
    if not (user and project):
        return "admin", PROJECT, list(ROLES)
    roles = [role.strip() for role in named.split(",") if role.strip()] or ["admin"]
    highest = min((ROLES.index(role) for role in roles if role in ROLES), default=len(ROLES))
    return user, project, sorted({*roles, *ROLES[highest:]})


def require_service_token(conf: Any, req: falcon.Request, refusal: str) -> None:
    """Require a service token, such as Nova's, for what belongs to an instance. Skip the check without Keystone.

    :raises Forbidden: there is no valid service token with one of ``service_token_roles``; *refusal* is the message.
    """
    if conf.api.auth_strategy != "keystone":
        return
    context: RequestContext = req.context.caller
    confirmed = req.env.get("HTTP_X_SERVICE_IDENTITY_STATUS") == "Confirmed"
    if not confirmed or not set(context.service_roles) & set(conf.keystone_authtoken.service_token_roles):
        raise Forbidden(refusal)
