"""How requests reach Placement: over HTTP, or straight into a WSGI application of this process.

Both ways end in a keystoneauth1 adapter, so that everything above them is one code path.
"""

import io
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes, urlsplit

import requests
import requests.adapters
from keystoneauth1 import adapter, session, token_endpoint
from oslo_config import cfg
from oslo_log import log as logging
from requests.structures import CaseInsensitiveDict

from autoclave.conf.placement import GROUP, present_form
from autoclave.service_adapter import make_adapter

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = logging.getLogger(__name__)

MICROVERSION = "1.39"
"""Pinned, so that a newer Placement answers as this one. Below 1.26 reserved may not equal total."""

OWN_ROLES = "admin,service,member,reader"
"""What requests of our own may do; /reshaper demands ``service``. Keystone would add the implied ones."""

_EMBEDDED_URL = "http://placement.embedded/placement"


class WsgiAdapter(requests.adapters.BaseAdapter):
    """Lets ``requests`` call a WSGI application instead of the network.

    A :class:`ConnectionError` out of the application is a lost connection, a :class:`TimeoutError` an
    answer that did not come in time; anything else that it raises is what an HTTP server makes of it, a
    500. No timeout is kept here: nothing is waited for.

    :param app: the application.
    :param mount: path of the URL that belongs to SCRIPT_NAME, such as ``/placement``.
    """

    def __init__(self, app: "WSGIApplication", mount: str = "") -> None:
        super().__init__()
        self._app = app
        self._mount = mount

    def send(self, request: requests.PreparedRequest, *_args: Any, **_kwargs: Any) -> requests.Response:
        answered: list[tuple[str, list[tuple[str, str]]]] = []

        def start_response(status: str, headers: list[tuple[str, str]], _exc_info: Any = None) -> Any:
            answered[:] = [(status, headers)]
            return lambda _data: None

        try:
            content = call_joined(self._app, _environ(request, self._mount), start_response)
        except ConnectionError as exc:
            raise requests.exceptions.ConnectionError(exc, request=request) from exc
        except TimeoutError as exc:
            raise requests.exceptions.ReadTimeout(exc, request=request) from exc
        except Exception:
            LOG.exception("The embedded application failed at %s %s", request.method, request.url)
            content = b""
            answered[:] = [("500 Internal Server Error", [])]
        response = requests.Response()
        status, headers = answered[0]
        code, _, response.reason = status.partition(" ")
        response.status_code = int(code)
        response.headers = CaseInsensitiveDict(headers)
        response.url = request.url or ""
        response.request = request
        response.raw = io.BytesIO(content)
        response.encoding = "utf-8"
        # Reading the body now is what requests does with a network answer that is not streamed.
        assert response.content == content
        return response

    def close(self) -> None:
        """Nothing is held open."""


def call_joined(app: "WSGIApplication", environ: "WSGIEnvironment", start_response: "StartResponse") -> bytes:
    """Call *app*, return its whole body, and close the iterable as PEP 3333 asks."""
    chunks: Iterable[bytes] = app(environ, start_response)
    try:
        return b"".join(chunks)
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()


def _environ(request: requests.PreparedRequest, mount: str) -> "WSGIEnvironment":
    parts = urlsplit(request.url or "")
    path = unquote_to_bytes(parts.path).decode("latin-1")
    body = request.body or b""
    data = body.encode() if isinstance(body, str) else bytes(body)
    environ: WSGIEnvironment = {
        "REQUEST_METHOD": request.method or "GET",
        "SCRIPT_NAME": mount,
        "PATH_INFO": path.removeprefix(mount),
        "QUERY_STRING": parts.query,
        "SERVER_NAME": parts.hostname or "",
        "SERVER_PORT": str(parts.port or 80),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "REMOTE_ADDR": "127.0.0.1",
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": parts.scheme,
        "wsgi.input": io.BytesIO(data),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
        "CONTENT_LENGTH": str(len(data)),
    }
    environ.update(_header_variables(request.headers))
    return environ


def _header_variables(headers: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    for name, value in headers.items():
        key = name.upper().replace("-", "_")
        if key == "CONTENT_LENGTH":
            continue
        yield (key if key == "CONTENT_TYPE" else f"HTTP_{key}"), value


def wsgi_adapter(app: "WSGIApplication") -> Any:
    """A keystoneauth1 adapter whose requests end in *app*, mounted at ``/placement``.

    They carry this process's own identity, in the headers that Placement's noauth2 believes.
    """
    direct = requests.Session()
    # The environment's proxies and netrc have nothing to say about a call within the process.
    direct.trust_env = False
    split = urlsplit(_EMBEDDED_URL)
    direct.mount(f"{split.scheme}://{split.netloc}/", WsgiAdapter(app, mount=split.path))
    made = session.Session(auth=token_endpoint.Token(_EMBEDDED_URL, "autoclave"), session=direct, redirect=False)
    return adapter.Adapter(
        made,
        service_type="placement",
        endpoint_override=_EMBEDDED_URL,
        default_microversion=MICROVERSION,
        additional_headers={"X-Roles": OWN_ROLES},
        # Every status comes back as an answer; the requester tells them apart.
        raise_exc=False,
    )


def http_adapter(conf: cfg.ConfigOpts) -> Any:
    """A keystoneauth1 adapter for the external Placement of the ``[placement]`` options.

    Make one per process: it holds the connection pool and the token. No redirect is followed, since it would send a
    request twice.

    :raises InvalidConfiguration: an option that auth_type needs is not set.
    """
    instead = present_form(conf)
    if instead:
        LOG.warning(
            "[placement] endpoint is deprecated. Write instead of it, in the same section: %s",
            ", ".join(f"{option} = {value}" for option, value in instead.items()),
        )
    return make_adapter(conf, GROUP, microversion=MICROVERSION, instead=instead)
