"""What stands before the embedded Placement: it decides who the caller is, the caller does not."""

import io
import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from autoclave.exceptions import BadRequest
from autoclave.request_body import BodyTooLarge, RequestBody
from autoclave.rules import json_options

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication, WSGIEnvironment


class Identity(NamedTuple):
    """Who a caller was found to be.

    :param user: user id, without a colon.
    :param project: project id.
    :param roles: role names, with those they imply.
    """

    user: str
    project: str
    roles: tuple[str, ...]


Authenticate = Callable[["WSGIEnvironment"], Identity | None]
"""Finds out who the caller is; None when nothing proves it."""

_HARMLESS = frozenset(
    {
        "HTTP_ACCEPT",
        "HTTP_ACCEPT_CHARSET",
        "HTTP_ACCEPT_ENCODING",
        "HTTP_CONNECTION",
        "HTTP_HOST",
        "HTTP_OPENSTACK_API_VERSION",
        "HTTP_USER_AGENT",
        "HTTP_X_OPENSTACK_REQUEST_ID",
    }
)
"""The headers that pass. A list of those that say who somebody is would never be complete."""

_CHALLENGE = ("WWW-Authenticate", 'Basic realm="Placement"')
_SET_BY_SERVERS = ("keystone.", "REMOTE_USER", "AUTH_TYPE")


_LARGEST_BODY = 1 << 24
"""Bytes: Placement takes a body into memory, however long it is. A thousand allocations take a tenth of it."""


class Front:
    """WSGI middleware that authenticates and then speaks for the caller in noauth2's headers.

    The version document at the root is public, as it is in every Placement.

    :param app: the embedded Placement.
    :param authenticate: called with the caller's own headers.
    """

    def __init__(self, app: "WSGIApplication", authenticate: Authenticate) -> None:
        self._app = app
        self._authenticate = authenticate

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        passed = {name: value for name, value in environ.items() if _passes(name)}
        if environ.get("PATH_INFO", "") in ("", "/"):
            # noauth2 lets "/" through without a token, but not "".
            passed["PATH_INFO"] = "/"
            return self._app(passed, start_response)
        identity = self._authenticate(environ)
        if identity is None:
            detail = "Placement needs to know who you are: send the credentials that this service takes."
            return _error(start_response, "401 Unauthorized", detail, _CHALLENGE)
        if ":" in identity.user:
            raise ValueError(f"user id {identity.user!r} has a colon, which noauth2 takes for the end of it")
        passed["HTTP_X_AUTH_TOKEN"] = f"{identity.user}:{identity.project}"
        # Always set, even when empty: without it noauth2 makes the user "admin" an administrator.
        passed["HTTP_X_ROLES"] = ",".join(identity.roles)
        try:
            body = RequestBody(environ).read_all(_LARGEST_BODY)
            # Placement would answer 500 and log a traceback of a thousand lines. A byte for a character: brackets
            # and quotes are the same in UTF-8.
            json_options.require_shallow(body.decode("latin-1"))
        except json_options.TooDeep as error:
            return _error(start_response, "400 Bad Request", f"The body is {error}.")
        except BadRequest as error:
            return _error(start_response, "400 Bad Request", str(error))
        except BodyTooLarge as error:
            return _error(start_response, "413 Content Too Large", str(error))
        if body:
            passed |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        return self._app(passed, start_response)


def _error(start_response: "StartResponse", status: str, detail: str, *headers: tuple[str, str]) -> Iterable[bytes]:
    """Answer as Placement does."""
    code, _, title = status.partition(" ")
    error = {"status": int(code), "title": title, "detail": detail, "code": "placement.undefined_code"}
    body = json.dumps({"errors": [error]}).encode()
    described = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
    start_response(status, [*described, *headers])
    return [body]


def _passes(name: str) -> bool:
    if name.startswith("HTTP_"):
        return name in _HARMLESS
    return not name.startswith(_SET_BY_SERVERS)
