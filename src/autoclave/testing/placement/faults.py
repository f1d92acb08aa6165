"""Inject failures into requests to Placement, real or double, for tests.

::

    faults = Faults(fake)
    faults.add(lose_answer, method="PUT", path=r"/inventories$", times=1)
    client = faults.client()
"""

import json
import re
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from autoclave.placement.client import PlacementClient
from autoclave.placement.transport import call_joined, wsgi_adapter
from autoclave.testing.placement.app import error_document

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

Effect = Callable[["WSGIApplication", "WSGIEnvironment", "StartResponse"], Iterable[bytes]]
"""Handles a request in place of calling the application."""


class Call(NamedTuple):
    """Record a request that arrived. ``path`` is without the mount point and the query."""

    method: str
    path: str


@dataclass
class Fault:
    """Define an effect, and the requests that it affects.

    :param method: a regular expression for the whole method.
    :param path: a regular expression that matches anywhere in the path and query.
    :param skip: the number of matching requests that first pass unchanged.
    :param times: the number of requests affected after that; None for all.
    """

    effect: Effect
    method: re.Pattern[str]
    path: re.Pattern[str]
    skip: int = 0
    times: int | None = None
    struck: int = field(default=0, init=False)

    def claims(self, method: str, path: str) -> bool:
        """Return whether it affects this request, and count the request."""
        if not self.method.fullmatch(method) or not self.path.search(path):
            return False
        if self.skip:
            self.skip -= 1
            return False
        if self.times is not None and self.struck >= self.times:
            return False
        self.struck += 1
        return True


class Faults:
    """Apply faults to the requests that they match, as WSGI middleware.

    :param app: the embedded Placement's, or a :class:`~autoclave.testing.placement.FakePlacement`.
    """

    def __init__(self, app: "WSGIApplication") -> None:
        self._app = app
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self.calls: list[Call] = []
        """Every request so far, affected or not."""

    def add(self, effect: Effect, method: str = ".*", path: str = "", skip: int = 0, times: int | None = None) -> Fault:
        """Add a fault; if several match a request, the first one added applies."""
        fault = Fault(effect, re.compile(method), re.compile(path), skip, times)
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Remove all faults and recorded calls."""
        with self._lock:
            self._faults.clear()
            self.calls.clear()

    def client(self) -> PlacementClient:
        """Return a client whose requests pass this middleware."""
        return PlacementClient(wsgi_adapter(self))

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        query = environ.get("QUERY_STRING", "")
        with self._lock:
            self.calls.append(Call(method, path))
            target = f"{path}?{query}" if query else path
            fault = next((fault for fault in self._faults if fault.claims(method, target)), None)
        if fault is None:
            return self._app(environ, start_response)
        return fault.effect(self._app, environ, start_response)


def refuse(_app: "WSGIApplication", _environ: "WSGIEnvironment", _start: "StartResponse") -> Iterable[bytes]:
    """Fail the connection without applying the request."""
    raise ConnectionRefusedError("connection refused, as arranged")


def time_out(_app: "WSGIApplication", _environ: "WSGIEnvironment", _start: "StartResponse") -> Iterable[bytes]:
    """Time out without applying the request."""
    raise TimeoutError("timed out, as arranged")


def lose_answer(app: "WSGIApplication", environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
    """Apply the request, then break the connection."""
    call_joined(app, environ, start)
    raise ConnectionResetError("connection lost before the answer, as arranged")


def answer(status: int, code: str = "placement.undefined_code", detail: str = "as arranged") -> Effect:
    """Answer with an error of Placement itself, without applying the request."""
    return answer_raw(status, json.dumps(error_document(status, detail, code)).encode(), "application/json")


def answer_raw(status: int, body: bytes, content_type: str = "text/html") -> Effect:
    """Answer with *body*, as a proxy would, without applying the request."""

    def effect(_app: "WSGIApplication", _environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        start(f"{status} Arranged", [("Content-Type", content_type), ("Content-Length", str(len(body)))])
        return [body]

    return effect


def delay(seconds: float) -> Effect:
    """Apply the request after *seconds*."""

    def effect(app: "WSGIApplication", environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        time.sleep(seconds)
        return app(environ, start)

    return effect


def before(action: Callable[[], Any]) -> Effect:
    """Run *action* first, such as another client's write, then apply the request."""

    def effect(app: "WSGIApplication", environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        action()
        return app(environ, start)

    return effect


def after(action: Callable[[], Any]) -> Effect:
    """Apply the request, then run *action* before the answer is returned."""

    def effect(app: "WSGIApplication", environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        body = call_joined(app, environ, start)
        action()
        return [body]

    return effect
