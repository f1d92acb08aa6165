"""Errors as the clients of the accelerator API parse them.

The body is ``{"error_message": "<JSON>"}``, and that JSON is ``{"faultcode", "faultstring", "debuginfo"}``:
Cyborg's clients decode twice. It tells what the caller can mend, never a traceback, a statement or a
host of the system; those are in the log, under the request id that every answer carries. A token that
Keystone does not accept is refused by keystonemiddleware, in Keystone's own words and shape.
"""

import json
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import falcon
from oslo_log import log as logging

from autoclave.exceptions import (
    ApiError,
    AutoclaveError,
    DatabaseUnavailable,
    PlacementConflict,
    PlacementError,
    RPCTimeout,
    RPCUnavailable,
    StateConflict,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = logging.getLogger(__name__)

NEUTRAL = "The service failed; its log tells why, under the id of this request."

_ANSWERS: tuple[tuple[type[AutoclaveError], int, str], ...] = (
    (StateConflict, 409, "Somebody else changed this meanwhile; look at it again."),
    (DatabaseUnavailable, 503, "The database did not answer; the request may or may not have been carried out."),
    (RPCUnavailable, 503, "No service took the request over; nothing was done. Ask again later."),
    (RPCTimeout, 504, "No answer came in time; the request may still be carried out. Look before asking again."),
    (PlacementConflict, 409, "Placement refused: the resource provider is in use, or was changed meanwhile."),
    (PlacementError, 503, "Placement did not do what the request needs; it may be finished later."),
)
"""What is not the caller's fault: status and text. The first class that matches counts."""


def document(code: int, text: str) -> dict[str, str]:
    """The body of an error answer."""
    fault = {"faultcode": "Client" if code < 500 else "Server", "faultstring": text, "debuginfo": None}
    return {"error_message": json.dumps(fault)}


def install(app: "falcon.App[Any, Any]") -> None:
    """Make *app* answer every exception in this shape."""
    app.set_error_serializer(_serialize)
    app.add_error_handler(Exception, _unexpected)
    # Falcon's own answers are exceptions, too: the handler of Exception must not get them.
    app.add_error_handler(falcon.HTTPError, _http_error)
    app.add_error_handler(AutoclaveError, _autoclave_error)


def respond(resp: falcon.Response, code: int, text: str) -> None:
    """Make *resp* an error answer."""
    resp.status = code
    resp.media = document(code, text)


def _autoclave_error(req: falcon.Request, resp: falcon.Response, error: AutoclaveError, _params: object) -> None:
    if isinstance(error, ApiError):
        respond(resp, error.code, str(error))
        return
    for known, code, text in _ANSWERS:
        if isinstance(error, known):
            LOG.warning("%s %s: %s: %s", req.method, req.path, type(error).__name__, error)
            respond(resp, code, text)
            return
    _unexpected(req, resp, error, _params)


def _unexpected(req: falcon.Request, resp: falcon.Response, error: Exception, _params: object) -> None:
    LOG.error("%s %s failed", req.method, req.path, exc_info=error)
    respond(resp, 500, NEUTRAL)


def _http_error(req: falcon.Request, resp: falcon.Response, error: falcon.HTTPError, _params: object) -> None:
    resp.status = error.status
    resp.set_headers(error.headers or {})
    _serialize(req, resp, error)


def _serialize(req: falcon.Request, resp: falcon.Response, error: falcon.HTTPError) -> None:
    code = error.status_code
    text = {
        404: f"There is nothing at {req.path}.",
        405: f"{req.path} does not take {req.method}.",
    }.get(code, error.description or error.title or HTTPStatus(code).phrase)
    resp.media = document(code, text)


def guarded(app: "WSGIApplication") -> "WSGIApplication":
    """WSGI middleware that turns what *app* raises into a neutral 500."""

    def guard(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        try:
            return app(environ, start_response)
        except Exception:
            LOG.exception("%s %s failed", environ["REQUEST_METHOD"], environ.get("PATH_INFO"))
            return answer(start_response, 500, NEUTRAL)

    return guard


def answer(start_response: "StartResponse", code: int, text: str, *headers: tuple[str, str]) -> Iterable[bytes]:
    """An error answer of a WSGI middleware.

    :param headers: beside those of the body.
    """
    body = json.dumps(document(code, text)).encode()
    shape = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response(f"{code} {HTTPStatus(code).phrase}", [*shape, *headers])
    return [body]
