"""What is served, found by a walk through the router."""

import re
from typing import Any

import falcon
from api_world import PATIENCE, World

from autoclave.api import microversion, routes
from autoclave.api.context import Api
from autoclave.api.policy import Policy
from autoclave.api.waiting import WaitingRoom
from autoclave.lifecycle.guests_seen import GuestsSeen
from autoclave.rpc.agent_api import AgentAPI
from autoclave.rpc.conductor_api import ConductorAPI

_UNVERSIONED = re.compile(f"^(?=/({'|'.join(microversion.RESOURCES)})(/|$))")


def routed(world: World) -> set[tuple[str, str]]:
    """Methods and paths. Below ``/accelerator`` and without a version is the same once more; OPTIONS are Falcon's."""
    app: falcon.App[Any, Any] = falcon.App()
    conductor, agents = ConductorAPI(world.transport), AgentAPI(world.transport)
    guests = GuestsSeen(world.ports, agents, PATIENCE)
    api = Api(world.conf, world.ports, conductor, agents, guests, Policy(world.conf), WaitingRoom(1))
    routes.add_all(app, api)
    found = set()

    def walk(nodes: Any) -> None:
        for node in nodes:
            walk(node.children)
            for method, responder in (node.method_map or {}).items():
                if method != "OPTIONS" and "method_not_allowed" not in getattr(responder, "__qualname__", ""):
                    path = re.sub("^/accelerator(?=/|$)", "", node.uri_template) or "/"
                    found.add((method, _UNVERSIONED.sub("/v2", path)))

    walk(app._router._roots)
    return found
