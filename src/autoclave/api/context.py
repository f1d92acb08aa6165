"""Carry the parts of the service and the caller to each resource, and restrict the hosts of unauthenticated
requests.

A web page can send requests to this machine if its name resolves to a loopback address. The browser then treats the
API as the page's own server. The Host header still carries the page's name, so other names are refused.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import falcon

from autoclave.api.errors import answer
from autoclave.api.policy import Policy
from autoclave.api.waiting import WaitingRoom
from autoclave.lifecycle.guests_seen import GuestsSeen
from autoclave.lifecycle.ports import Ports
from autoclave.objects.base import RequestContext
from autoclave.rpc.agent_api import AgentAPI
from autoclave.rpc.conductor_api import ConductorAPI

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


@dataclass(frozen=True)
class Api:
    """Hold the parts of the service, for every resource.

    :param guests: asks the agents which guests have a function.
    :param hosts_unknown: how many hosts of this process have not been looked at yet; None: it has none.
    :param waiting: has a place for each request that waits for another service.
    """

    conf: Any
    ports: Ports
    conductor: ConductorAPI
    agents: AgentAPI
    guests: GuestsSeen
    policy: Policy
    waiting: WaitingRoom
    hosts_unknown: Callable[[], int] | None = None

    @property
    def max_body(self) -> int:
        """Hold ``[api] max_request_body_size``."""
        return int(self.conf.api.max_request_body_size)

    def authorize(self, req: falcon.Request, rule: str) -> RequestContext:
        """Return the caller of *req*, if *rule* allows the request.

        :raises Forbidden: the policy says no.
        """
        context: RequestContext = req.context.caller
        self.policy.require(context, rule)
        return context


class Callers:
    """Turn the result of the authentication into a context (Falcon middleware).

    :param policy: decides which callers are administrators.
    :param is_public: returns whether a path is served without authentication.
    """

    def __init__(self, policy: Policy, is_public: Any) -> None:
        self._policy = policy
        self._is_public = is_public

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        if self._is_public(req.path):
            return
        context = RequestContext.from_environ(req.env)
        context.is_admin = self._policy.allows(context, "admin_api")
        req.context.caller = context


class JSONOnly:
    """Refuse callers that do not accept JSON (Falcon middleware).

    :param exempt: matches the paths that answer in something else.
    """

    def __init__(self, exempt: re.Pattern[str]) -> None:
        self._exempt = exempt

    def process_request(self, req: falcon.Request, _resp: falcon.Response) -> None:
        if not self._exempt.fullmatch(req.path) and not req.client_accepts_json:
            raise falcon.HTTPNotAcceptable(description="This service returns application/json only.")


def is_loopback(host: str) -> bool:
    """Return whether *host*, an address or a name, can only be this machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def expected_hosts(conf: Any, app: "WSGIApplication") -> "WSGIApplication":
    """Return *app*; with ``auth_strategy = noauth``, refuse requests to other hosts than loopback or
    ``public_endpoint``.

    With ``noauth_beyond_loopback``, allow any address, but no other name: a web page needs a name.
    """
    if conf.api.auth_strategy != "noauth":
        return app
    public = urlsplit(conf.api.public_endpoint or "").hostname
    good: Callable[[str], bool] = _is_address if conf.api.noauth_beyond_loopback else is_loopback

    def refuse_others(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        asked = environ.get("HTTP_HOST", "localhost")  # only HTTP/1.0 has no Host header, and no browser uses it
        try:
            host = urlsplit(f"//{asked}").hostname or ""
        except ValueError:
            host = ""
        if host == public or good(host):
            return app(environ, start_response)
        said = f"The host name {asked!r} is not served; set [api] public_endpoint to serve it."
        return answer(environ, start_response, 403, said)

    return refuse_others


def _is_address(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
