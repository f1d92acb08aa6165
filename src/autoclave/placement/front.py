"""What stands before the embedded Placement: it decides who the caller is, the caller does not."""

import io
import json
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

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

_SET_BY_SERVERS = ("keystone.", "REMOTE_USER", "AUTH_TYPE")


_LARGEST_BODY = 1 << 24
"""Bytes: Placement takes a body into memory, however long it is. A thousand allocations take a tenth of it."""


class _Refused(Exception):
    """A body that Placement is not asked about; in words for its sender.

    :param status: of the answer, such as ``400 Bad Request``.
    """

    def __init__(self, status: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class Front:
    """WSGI middleware that authenticates and then speaks for the caller in noauth2's headers.

    The version document at the root is public, as it is in every Placement.

    :param app: the embedded Placement.
    :param authenticate: called with the caller's own headers.
    :param challenge: value of WWW-Authenticate in a 401.
    """

    def __init__(
        self, app: "WSGIApplication", authenticate: Authenticate, challenge: str = 'Basic realm="Placement"'
    ) -> None:
        self._app = app
        self._authenticate = authenticate
        self._challenge = challenge

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        passed = {name: value for name, value in environ.items() if _passes(name)}
        if environ.get("PATH_INFO", "") in ("", "/"):
            # noauth2 lets "/" through without a token, but not "".
            passed["PATH_INFO"] = "/"
            return self._app(passed, start_response)
        identity = self._authenticate(environ)
        if identity is None:
            return self._unauthorized(start_response)
        if ":" in identity.user:
            raise ValueError(f"user id {identity.user!r} has a colon, which noauth2 takes for the end of it")
        passed["HTTP_X_AUTH_TOKEN"] = f"{identity.user}:{identity.project}"
        # Always set, even when empty: without it noauth2 makes the user "admin" an administrator.
        passed["HTTP_X_ROLES"] = ",".join(identity.roles)
        try:
            body = _body(environ)
        except _Refused as refused:
            return _error(start_response, refused.status, str(refused))
        if body:
            passed |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        return self._app(passed, start_response)

    def _unauthorized(self, start_response: "StartResponse") -> Iterable[bytes]:
        detail = "Placement needs to know who you are: send the credentials that this service takes."
        return _error(start_response, "401 Unauthorized", detail, ("WWW-Authenticate", self._challenge))


def _body(environ: "WSGIEnvironment") -> bytes:
    """The body of a request as a whole. Placement answers one that breaks off with a 500, or takes it for whole.

    :raises _Refused: it did not arrive as a whole, or is too long.
    """
    chunked = "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower()
    announced = environ.get("CONTENT_LENGTH") or "0"
    if not chunked and not announced.isdecimal():
        raise _Refused("400 Bad Request", "Content-Length must be a number of bytes.")
    length = _LARGEST_BODY + 1 if chunked else int(announced)
    if length > _LARGEST_BODY and not chunked:
        raise _too_large()
    try:
        body: bytes = environ["wsgi.input"].read(length) if length else b""
    except (OSError, ValueError) as error:
        raise _Refused("400 Bad Request", f"The body did not arrive as a whole; send it again. {error}") from error
    if len(body) > _LARGEST_BODY:
        raise _too_large()
    if not chunked and len(body) < length:
        raise _Refused("400 Bad Request", f"The body ended after {len(body)} of {length} bytes; send it again.")
    return body


def _too_large() -> _Refused:
    return _Refused("413 Content Too Large", f"A request body may have {_LARGEST_BODY} bytes at most.")


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
