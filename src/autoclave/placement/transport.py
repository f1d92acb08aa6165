"""Send requests to Placement, and interpret its answers.

Requests go over HTTP, or directly into a WSGI application of this process. Both ways use a keystoneauth1 adapter, so
all code above is the same.
"""

import io
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote_to_bytes, urlsplit

import requests
import requests.adapters
from keystoneauth1 import adapter, session, token_endpoint
from keystoneauth1 import exceptions as ksa
from oslo_config import cfg
from oslo_log import log as logging
from requests.structures import CaseInsensitiveDict

from autoclave.conf.clouds import PLACEMENT, present_form
from autoclave.exceptions import PlacementConflict, PlacementNotFound, PlacementRefused, PlacementUnavailable
from autoclave.placement import records
from autoclave.service_adapter import UnusableAnswer, make_adapter, reason

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = logging.getLogger(__name__)

MICROVERSION = "1.39"
"""Pinned, so that newer Placements answer the same. Below 1.26, reserved must not equal total."""

OWN_ROLES = "admin,service,member,reader"
"""The roles of Autoclave's own requests; /reshaper requires ``service``. Keystone would add the implied ones."""

_EMBEDDED_URL = "http://placement.embedded/placement"


class WsgiAdapter(requests.adapters.BaseAdapter):
    """Make ``requests`` call a WSGI application instead of the network.

    A :class:`ConnectionError` of the application is a lost connection, and a :class:`TimeoutError` a late answer. Any
    other exception becomes a 500, as in an HTTP server. Timeouts are ignored, since nothing waits.

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
        # requests reads the body of a network answer here as well, unless it is streamed.
        assert response.content == content
        return response

    def close(self) -> None:
        """Do nothing: no resource is held."""


def call_joined(app: "WSGIApplication", environ: "WSGIEnvironment", start_response: "StartResponse") -> bytes:
    """Call *app*, return its whole body, and close the iterable as PEP 3333 requires."""
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
    """Return a keystoneauth1 adapter that sends requests to *app*, mounted at ``/placement``.

    They carry this process's own identity, in the headers that Placement's noauth2 trusts.
    """
    direct = requests.Session()
    # The environment's proxies and netrc do not apply to a call within the process.
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
        # Every status is returned as an answer; the requester interprets it.
        raise_exc=False,
    )


def http_adapter(conf: cfg.ConfigOpts) -> Any:
    """Return a keystoneauth1 adapter for the external Placement of the ``[placement]`` options.

    Create one per process: it holds the connection pool and the token. Redirects are not followed, since they would
    send a request twice.

    :raises InvalidConfiguration: an option that auth_type needs is not set.
    """
    instead = present_form(conf)
    if instead:
        LOG.warning(
            "[placement] endpoint is deprecated. Replace it in the same section by: %s",
            ", ".join(f"{option} = {value}" for option, value in instead.items()),
        )
    return make_adapter(conf, PLACEMENT, microversion=MICROVERSION, instead=instead)


_T = TypeVar("_T")

_FROM_A_PROXY = frozenset({502, 503, 504})
"""The statuses that do not show whether Placement has received the request."""

_ONCE = {"connect_retries": 0, "status_code_retries": 0}
"""Writes are never retried, whatever ``[placement]`` says: the first attempt may have been applied."""

_URL_OPTION = "[placement] endpoint_override, or else the placement endpoint in the catalog,"

_NO_SUCH_PATH = "The resource could not be found."
"""The whole detail for an unknown path; for an unknown object, the detail names that object."""


class Requester:
    """Send one request once, and return its answer or raise its error.

    :param adapter: a keystoneauth1 adapter with ``raise_exc=False``. Only GET uses its retries.
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def read(self, method: str, path: str, parse: Callable[[Any], _T], body: Any = None) -> _T:
        """Send the request and return the result of *parse* for the JSON of its answer.

        :raises PlacementUnavailable: no answer; the request may or may not have been applied.
        :raises PlacementConflict: 409.
        :raises PlacementNotFound: 404 from Placement itself.
        :raises PlacementRefused: any other answer, including one with status 200 that is not Placement's.
        """
        response = self._send(method, path, body)
        try:
            return parse(response.json())
        except ValueError as exc:
            raise _not_placement(method, path, response, str(exc)) from exc

    def write(self, method: str, path: str, body: Any = None) -> None:
        """Send a request that Placement answers without a body; raise the errors of :meth:`read`."""
        response = self._send(method, path, body)
        if response.content:
            raise _not_placement(method, path, response, "an unexpected body")

    def _send(self, method: str, path: str, body: Any) -> Any:
        try:
            response = self._adapter.request(path, method, json=body, **({} if method == "GET" else _ONCE))
        except ksa.ConnectionError as exc:
            if path not in str(exc):  # the failed connection was to Keystone, for a token
                raise PlacementUnavailable(
                    f"no token for {method} {path}: {exc}; check that Keystone answers at [placement] auth_url"
                ) from exc
            raise PlacementUnavailable(
                f"Placement did not answer {method} {path}: {exc}; check that it runs, and that {_URL_OPTION} is "
                "its URL"
            ) from exc
        except ksa.HttpError as exc:
            # Keystone's answer to the request for a token; Placement's are returned as responses.
            status = exc.http_status
            kind = f"no token for {method} {path}: Keystone answered {status}: {exc}"
            if status >= 500:
                raise PlacementUnavailable(kind) from exc
            raise PlacementRefused(f"{kind}; check [placement] auth_type and its credentials", status) from exc
        except ksa.EndpointNotFound as exc:
            raise PlacementUnavailable(
                f"{method} {path} was not sent: {reason(PLACEMENT, self._adapter, exc)}"
            ) from exc
        except UnusableAnswer as exc:
            raise PlacementUnavailable(f"{method} {path} was not sent, or not answered: {exc}") from exc
        except ksa.ClientException as exc:
            raise PlacementUnavailable(f"no token for {method} {path}: {exc}") from exc
        if not 200 <= response.status_code < 300:
            _raise(method, path, response)
        return response


def _raise(method: str, path: str, response: Any) -> None:
    status: int = response.status_code
    said = _said(response)
    detail = said[0] if said else response.text[:120] or response.reason
    message = f"{method} {path} was answered {status}: {detail.removesuffix('.')}"
    if status in _FROM_A_PROXY:
        raise PlacementUnavailable(message)
    if status == 409:
        raise PlacementConflict(message, said[1] if said else "")
    if status == 404 and said and detail != _NO_SUCH_PATH:
        raise PlacementNotFound(message)
    if status == 404:
        # Any web server, including Placement, returns 404 for a wrong URL. Only Placement names the missing object.
        raise PlacementRefused(f"{message}. Is {_URL_OPTION} the URL of Placement?", status)
    if status in (401, 403):
        raise PlacementRefused(f"{message}. Check [placement] auth_type and its credentials", status)
    raise PlacementRefused(message, status)


def _not_placement(method: str, path: str, response: Any, why: str) -> PlacementRefused:
    return PlacementRefused(
        f"{method} {path} was answered {response.status_code}, but not as Placement answers ({why}): "
        f"{response.text[:120]!r}. Is {_URL_OPTION} the URL of Placement?",
        response.status_code,
    )


def _said(response: Any) -> tuple[str, str] | None:
    try:
        return records.error(response.json())
    except ValueError:
        return None
