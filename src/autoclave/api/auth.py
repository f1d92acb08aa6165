"""Who the caller is: asked of Keystone, looked up in a file, or taken on the caller's word on one machine.

All leave what they found in the headers that ``RequestContext.from_environ`` reads.
"""

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import falcon
from keystoneauth1 import loading
from keystoneauth1.exceptions import ClientException

from autoclave.api.basic_auth import http_basic
from autoclave.api.caller import PROJECT, ROLES, as_caller
from autoclave.exceptions import Forbidden, InvalidConfiguration
from autoclave.objects.base import RequestContext

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

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
    """Whether *path* is served without knowing who asks: the API's description, the health check, public metrics."""
    path = path.rstrip("/") or "/"
    return path in _PUBLIC or (path == "/metrics" and conf.api.public_metrics)


def authenticated(conf: Any, app: "WSGIApplication") -> "WSGIApplication":
    """*app* behind the authentication that ``[api] auth_strategy`` names; public paths reach it directly."""
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
    """Tokens are checked by Keystone (``[keystone_authtoken]``).

    A service token without one of ``service_token_roles`` is worth nothing, whatever the file says.

    :raises InvalidConfiguration: the file does not say how Keystone is asked.
    """
    from keystonemiddleware.auth_token import AuthProtocol  # 8 MiB that the other strategies do without

    options = {"oslo_config_config": conf, "service_token_roles_required": True}
    loading.register_auth_conf_options(conf, "keystone_authtoken")
    section = conf.keystone_authtoken.auth_section or "keystone_authtoken"
    loading.register_auth_conf_options(conf, section)
    try:
        guarded: WSGIApplication = AuthProtocol(app, options)
    except ClientException as error:
        raise InvalidConfiguration(f"Keystone cannot be asked: {error}", option="[keystone_authtoken]") from error
    if not conf[section].auth_type:  # the middleware would go on, and refuse every token
        raise InvalidConfiguration(
            "is not set, so no token could be checked; name Keystone and the service's user there (auth_type = "
            "password, auth_url, username, password, project_name, …), or see [api] auth_strategy",
            option=f"[{section}] auth_type",
        )
    return guarded


def noauth(_conf: Any, app: "WSGIApplication") -> "WSGIApplication":
    """Every caller is an administrator of the project ``admin``.

    A token ``user:project`` or ``user:project:role1,role2`` acts as somebody else, so that a story with
    several projects can be told without Keystone. Any other token is ignored.
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
    """Let only a service, such as Nova, touch what belongs to an instance. Waived without Keystone.

    :raises Forbidden: there is no valid service token with one of ``service_token_roles``; says *refusal*.
    """
    if conf.api.auth_strategy != "keystone":
        return
    context: RequestContext = req.context.caller
    confirmed = req.env.get("HTTP_X_SERVICE_IDENTITY_STATUS") == "Confirmed"
    if not confirmed or not set(context.service_roles) & set(conf.keystone_authtoken.service_token_roles):
        raise Forbidden(refusal)
