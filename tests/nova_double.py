"""Nova's double where a test can reach it: within the process, with faults before it, or on a socket."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import requests
from cheroot import wsgi
from keystoneauth1 import adapter, session, token_endpoint

from autoclave.conf import new_config
from autoclave.nova.client import MICROVERSION, NovaClient, http_adapter
from autoclave.nova.servers import NovaServers
from autoclave.placement.transport import WsgiAdapter
from autoclave.testing.nova import MOUNT


class Token(token_endpoint.Token):  # type: ignore[misc]  # keystoneauth1 comes without types
    """A token of the project that the double takes its caller to be in."""

    def __init__(self, endpoint: str, project: str | None) -> None:
        super().__init__(endpoint, "a token")
        self._project = project

    def get_project_id(self, _session: Any, **_how: Any) -> str | None:
        return self._project


def adapter_within(app: Any, project: str | None = "service") -> Any:
    """An adapter whose requests end in *app*: the double, or faults before it."""
    url = f"http://nova.double{MOUNT}"
    direct = requests.Session()
    direct.trust_env = False
    direct.mount("http://nova.double/", WsgiAdapter(app))
    made = session.Session(auth=Token(url, project), session=direct)
    return adapter.Adapter(made, service_type="compute", default_microversion=MICROVERSION, raise_exc=False)


def client_within(app: Any) -> NovaClient:
    """A client whose requests end in *app*."""
    return NovaClient(adapter_within(app))


def servers_within(app: Any, project: str | None = "service") -> NovaServers:
    """A client that asks *app* for servers, with a token of *project*; None: of one that cannot be told."""
    return NovaServers(adapter_within(app, project))


def options(url: str, **more: Any) -> dict[tuple[str | None, str], Any]:
    """What a configuration says of a Nova at *url* that takes any token."""
    said = {"auth_type": "admin_token", "endpoint": url, "token": "a token", **more}
    return {("nova", name): value for name, value in said.items()}


def client_at(url: str, **more: Any) -> NovaClient:
    """A client as a conductor has it."""
    return NovaClient(http_adapter(new_config([], options(url, **more))))


@contextmanager
def served(app: Any, mount: str = MOUNT) -> Iterator[str]:
    """*app* on a socket; the URL of *mount*, below which it is Nova."""
    server = wsgi.Server(("127.0.0.1", 0), app, numthreads=4)
    server.prepare()
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.bind_addr[1]}{mount}"
    finally:
        server.stop()
        thread.join()
