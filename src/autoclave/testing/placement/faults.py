"""Failures on the way to Placement, for tests: before the real one or its double.

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
"""What happens to a request, in place of plainly calling the application."""


class Call(NamedTuple):
    """A request that arrived. ``path`` is without the mount point and the query."""

    method: str
    path: str


@dataclass
class Fault:
    """An effect, and the requests it strikes.

    :param method: a regular expression for the whole method.
    :param path: a regular expression found anywhere in the path and query.
    :param skip: how many matching requests pass unharmed first.
    :param times: how many are struck then; None for all.
    """

    effect: Effect
    method: re.Pattern[str]
    path: re.Pattern[str]
    skip: int = 0
    times: int | None = None
    struck: int = field(default=0, init=False)

    def claims(self, method: str, path: str) -> bool:
        """Whether it strikes this request; counts it."""
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
    """WSGI middleware that does what it is told to the requests it is told of.

    :param app: the embedded Placement's, or a :class:`~autoclave.testing.placement.FakePlacement`.
    """

    def __init__(self, app: "WSGIApplication") -> None:
        self._app = app
        self._lock = threading.Lock()
        self._faults: list[Fault] = []
        self.calls: list[Call] = []
        """Every request so far, struck or not."""

    def add(self, effect: Effect, method: str = ".*", path: str = "", skip: int = 0, times: int | None = None) -> Fault:
        """Strike requests; of several faults that match, the one added first does it."""
        fault = Fault(effect, re.compile(method), re.compile(path), skip, times)
        with self._lock:
            self._faults.append(fault)
        return fault

    def clear(self) -> None:
        """Let everything pass again, and forget the calls."""
        with self._lock:
            self._faults.clear()
            self.calls.clear()

    def client(self) -> PlacementClient:
        """A client whose requests come through here."""
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
    """The connection fails; the request is not applied."""
    raise ConnectionRefusedError("connection refused, as arranged")


def time_out(_app: "WSGIApplication", _environ: "WSGIEnvironment", _start: "StartResponse") -> Iterable[bytes]:
    """Nobody answers in time; the request is not applied."""
    raise TimeoutError("timed out, as arranged")


def lose_answer(app: "WSGIApplication", environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
    """The request is applied; then the connection breaks."""
    call_joined(app, environ, start)
    raise ConnectionResetError("connection lost before the answer, as arranged")


def answer(status: int, code: str = "placement.undefined_code", detail: str = "as arranged") -> Effect:
    """Placement itself answers with an error; the request is not applied."""
    return answer_raw(status, json.dumps(error_document(status, detail, code)).encode(), "application/json")


def answer_raw(status: int, body: bytes, content_type: str = "text/html") -> Effect:
    """Somebody answers *body*; the request is not applied."""

    def effect(_app: "WSGIApplication", _environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        start(f"{status} Arranged", [("Content-Type", content_type), ("Content-Length", str(len(body)))])
        return [body]

    return effect


def delay(seconds: float) -> Effect:
    """The request is applied after *seconds*."""

    def effect(app: "WSGIApplication", environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        time.sleep(seconds)
        return app(environ, start)

    return effect


def before(action: Callable[[], Any]) -> Effect:
    """*action* runs first (somebody else's write, say); then the request is applied."""

    def effect(app: "WSGIApplication", environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        action()
        return app(environ, start)

    return effect


def after(action: Callable[[], Any]) -> Effect:
    """The request is applied; *action* runs before its answer is seen."""

    def effect(app: "WSGIApplication", environ: "WSGIEnvironment", start: "StartResponse") -> Iterable[bytes]:
        body = call_joined(app, environ, start)
        action()
        return [body]

    return effect
