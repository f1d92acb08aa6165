"""Compose the WSGI application: resources, and the layers around them in their order.

Other WSGI applications can be mounted under a path, such as the embedded Placement at ``/placement``. JSON is written
by orjson, because lists have up to ten thousand rows.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import falcon
import orjson
from falcon.media import JSONHandler
from oslo_middleware import HTTPProxyToWSGI, RequestId

from autoclave.api import errors, routes
from autoclave.api.auth import authenticated, is_public
from autoclave.api.context import Api, Callers, JSONOnly, expected_hosts
from autoclave.api.microversion import Negotiation
from autoclave.api.policy import Policy
from autoclave.api.waiting import WaitingRoom, bounded
from autoclave.conf.agent import patience_with_agents
from autoclave.lifecycle.guests_seen import GuestsSeen
from autoclave.lifecycle.ports import Ports
from autoclave.rpc.agent_api import AgentAPI
from autoclave.rpc.conductor_api import ConductorAPI
from autoclave.rpc.port import Transport

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


def mounted(app: "WSGIApplication", mounts: "Mapping[str, WSGIApplication]") -> "WSGIApplication":
    """Return *app*, with each of *mounts* answering below its prefix; the longest prefix counts.

    A mounted application sees its own root: the prefix moves to SCRIPT_NAME, so that its links are correct.
    """
    by_length = sorted(((prefix.rstrip("/"), other) for prefix, other in mounts.items()), key=lambda m: -len(m[0]))

    def dispatch(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        for prefix, other in by_length:
            if path == prefix or path.startswith(f"{prefix}/"):
                below = {
                    **environ,
                    "SCRIPT_NAME": f"{environ.get('SCRIPT_NAME', '')}{prefix}",
                    "PATH_INFO": path[len(prefix) :],
                }
                return other(below, start_response)
        return app(environ, start_response)

    return dispatch


# The database has timestamps in UTC without a zone; clients expect whole seconds, with the zone.
_OPTIONS = orjson.OPT_NAIVE_UTC | orjson.OPT_OMIT_MICROSECONDS


def install(app: "falcon.App[Any, Any]") -> None:
    """Make *app* render media with orjson; datetimes become ISO 8601, such as ``2026-11-28T09:00:18+00:00``."""
    handler = JSONHandler(dumps=partial(orjson.dumps, option=_OPTIONS))
    app.resp_options.media_handlers[falcon.MEDIA_JSON] = handler


if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIApplication

    Layer = Callable[[WSGIApplication], WSGIApplication]

_NOT_JSON = re.compile(r"/metrics|/image/v2/images/[^/]*/file")


def create_app(
    conf: Any,
    ports: Ports,
    transport: Transport,
    mounts: "Mapping[str, WSGIApplication] | None" = None,
    *,
    hosts_unknown: Callable[[], int] | None = None,
) -> "WSGIApplication":
    """Return the HTTP service.

    :param conf: ``[api]``, and with ``auth_strategy = keystone`` also ``[keystone_authtoken]``.
    :param transport: how conductors and agents are reached.
    :param hosts_unknown: how many hosts of this process have not been looked at yet; None: it has none.
    :param mounts: prefix to application; each authenticates its callers itself.
    """
    waiting = WaitingRoom(conf.api.max_waiting_requests)
    agents = AgentAPI(transport)
    guests = GuestsSeen(ports, agents, patience_with_agents(conf))
    api = Api(conf, ports, ConductorAPI(transport), agents, guests, Policy(conf), waiting, hosts_unknown)
    layers: tuple[Layer, ...] = (
        # Check the Host header before a header of the proxy can replace it.
        partial(expected_hosts, conf),
        # Apply the proxy's scheme and host before a layer builds a link or logs an address.
        lambda app: HTTPProxyToWSGI(app, conf),
        # Set the request id here, so that answers of the layers below have one, too.
        lambda app: RequestId(app, conf),
        # Handle unexpected exceptions before the HTTP server does, which would send a page of its own.
        errors.guarded,
        # Mounted applications authenticate callers themselves.
        lambda app: mounted(app, {prefix: bounded(other, waiting) for prefix, other in (mounts or {}).items()}),
        # Authenticate last, next to the application that relies on it.
        partial(authenticated, conf),
    )
    app: WSGIApplication = _resources(api)
    for layer in reversed(layers):
        app = layer(app)
    return app


def _resources(api: Api) -> "falcon.App[Any, Any]":
    app: falcon.App[Any, Any] = falcon.App(
        middleware=[
            JSONOnly(_NOT_JSON),
            Callers(api.policy, partial(is_public, api.conf)),
            Negotiation(),
        ]
    )
    app.req_options.strip_url_path_trailing_slash = True
    errors.install(app)
    install(app)
    routes.add_all(app, api)
    return app
