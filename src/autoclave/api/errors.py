"""Render errors in the shape that the clients of each API parse.

An error names what the caller can change, and never a traceback, a statement or a host. Those are in the log, under
the request id of the answer. A token that Keystone does not accept is refused by keystonemiddleware, in Keystone's
shape.
"""

import json
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import falcon
from oslo_log import log as logging

from autoclave.api.schema import INTEGER, STRING, Schema, shape
from autoclave.exceptions import (
    ApiError,
    AutoclaveError,
    DatabaseUnavailable,
    PlacementConflict,
    PlacementError,
    PolicyUnavailable,
    RPCTimeout,
    RPCUnavailable,
    StateConflict,
    StorageError,
)

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment

LOG = logging.getLogger(__name__)

NEUTRAL = "The service failed; its log shows the cause under the ID of this request."

_ANSWERS: tuple[tuple[type[AutoclaveError], int, str], ...] = (
    (StateConflict, 409, "The object was changed concurrently; read it again and retry."),
    (
        DatabaseUnavailable,
        503,
        "The database did not answer; the request may have been carried out. Check before retrying.",
    ),
    (PolicyUnavailable, 503, "A service that the policy queries did not answer; nothing was done. Retry later."),
    (StorageError, 503, "The image's data could not be read or written; the log shows the cause. Retry later."),
    (RPCUnavailable, 503, "No conductor or agent accepted the request; nothing was done. Retry later."),
    (RPCTimeout, 504, "No answer arrived in time; the request may still be carried out. Check before retrying."),
    (PlacementConflict, 409, "Placement refused: the resource provider is in use, or was changed concurrently."),
    (PlacementError, 503, "Placement failed or did not answer. Retry later."),
)
"""Map errors that the caller did not cause to status and text. The first class that matches counts."""


NOVAS = {
    400: "badRequest",
    401: "unauthorized",
    403: "forbidden",
    404: "itemNotFound",
    405: "badMethod",
    406: "notAcceptable",
    409: "conflictingRequest",
    413: "overLimit",
    415: "badMediaType",
    503: "serviceUnavailable",
}
"""Name the envelope of Nova's faults by status; any other is ``computeFault``."""


def _cyborgs(code: int, text: str) -> dict[str, Any]:
    """Render ``{"error_message": "<JSON>"}``: Cyborg's clients decode twice."""
    fault = {"faultcode": "Client" if code < 500 else "Server", "faultstring": text, "debuginfo": None}
    return {"error_message": json.dumps(fault)}


def _novas(code: int, text: str) -> dict[str, Any]:
    return {NOVAS.get(code, "computeFault"): {"code": code, "message": text}}


def _glances(code: int, text: str) -> dict[str, Any]:
    return {"code": code, "title": HTTPStatus(code).phrase, "message": text}


_SHAPES: tuple[tuple[str, Callable[[int, str], dict[str, Any]]], ...] = (("/compute", _novas), ("/image", _glances))
"""Map a path to its shape of errors; every other path uses Cyborg's."""


def document(path: str, code: int, text: str) -> dict[str, Any]:
    """Return the body of an error answer at *path*."""
    shapes = (shape for prefix, shape in _SHAPES if path == prefix or path.startswith(f"{prefix}/"))
    return next(shapes, _cyborgs)(code, text)


def install(app: "falcon.App[Any, Any]") -> None:
    """Make *app* answer every exception in this shape."""
    app.set_error_serializer(_serialize)
    app.add_error_handler(Exception, _unexpected)
    # Falcon's own answers are exceptions, too; keep them from the handler of Exception.
    app.add_error_handler(falcon.HTTPError, _http_error)
    app.add_error_handler(AutoclaveError, _autoclave_error)


def respond(req: falcon.Request, resp: falcon.Response, code: int, text: str) -> None:
    """Make *resp* an error answer to *req*."""
    resp.status = code
    resp.media = document(req.path, code, text)


def _autoclave_error(req: falcon.Request, resp: falcon.Response, error: AutoclaveError, _params: object) -> None:
    if isinstance(error, ApiError):
        respond(req, resp, error.code, str(error))
        return
    for known, code, text in _ANSWERS:
        if isinstance(error, known):
            LOG.warning("%s %s: %s: %s", req.method, req.path, type(error).__name__, error)
            respond(req, resp, code, text)
            return
    _unexpected(req, resp, error, _params)


def _unexpected(req: falcon.Request, resp: falcon.Response, error: Exception, _params: object) -> None:
    LOG.error("%s %s failed", req.method, req.path, exc_info=error)
    respond(req, resp, 500, NEUTRAL)


def _http_error(req: falcon.Request, resp: falcon.Response, error: falcon.HTTPError, _params: object) -> None:
    resp.status = error.status
    resp.set_headers(error.headers or {})
    _serialize(req, resp, error)


def _serialize(req: falcon.Request, resp: falcon.Response, error: falcon.HTTPError) -> None:
    code = error.status_code
    text = {
        404: f"The resource {req.path} does not exist.",
        405: f"{req.path} does not accept {req.method}.",
    }.get(code, error.description or error.title or HTTPStatus(code).phrase)
    resp.media = document(req.path, code, text)


def guarded(app: "WSGIApplication") -> "WSGIApplication":
    """Turn exceptions of *app* into a neutral 500 (WSGI middleware)."""

    def guard(environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        try:
            return app(environ, start_response)
        except Exception:
            LOG.exception("%s %s failed", environ["REQUEST_METHOD"], environ.get("PATH_INFO"))
            return answer(environ, start_response, 500, NEUTRAL)

    return guard


def answer(
    environ: "WSGIEnvironment", start_response: "StartResponse", code: int, text: str, *headers: tuple[str, str]
) -> Iterable[bytes]:
    """Return an error answer of a WSGI middleware.

    :param headers: in addition to those of the body.
    """
    body = json.dumps(document(environ.get("PATH_INFO", ""), code, text)).encode()
    shape = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response(f"{code} {HTTPStatus(code).phrase}", [*shape, *headers])
    return [body]


_FAULT = shape(
    "Fault", {"faultcode": {"enum": ["Client", "Server"]}, "faultstring": STRING, "debuginfo": {"type": "null"}}
)
_CYBORGS = shape(
    "Error",
    {
        "error_message": {
            "type": "string",
            "description": "A document once more, written as JSON: clients of Cyborg decode twice.",
            "contentMediaType": "application/json",
            "contentSchema": _FAULT,
        }
    },
)
_NOVAS: Schema = {
    "title": "ComputeError",
    "type": "object",
    "minProperties": 1,
    "maxProperties": 1,
    "propertyNames": {"enum": [*NOVAS.values(), "computeFault"]},
    "additionalProperties": shape("ComputeFault", {"code": INTEGER, "message": STRING}),
}
_GLANCES = shape("ImageError", {"code": INTEGER, "title": STRING, "message": STRING})


def error_at(path: str) -> Schema:
    """Return the schema of the errors at *path*."""
    return {"compute": _NOVAS, "image": _GLANCES}.get(path.split("/")[1], _CYBORGS)
