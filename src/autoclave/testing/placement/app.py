"""The double as a WSGI application."""

import json
import threading
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from autoclave.placement.client import PlacementClient
from autoclave.placement.transport import MICROVERSION, wsgi_adapter
from autoclave.testing.placement import bodies
from autoclave.testing.placement.handlers import ROUTES, Answer, Request
from autoclave.testing.placement.ledger import Ledger, Refusal

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


class FakePlacement:
    """A WSGI application that answers as Placement does at the client's microversion."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self._lock = threading.Lock()

    def client_session(self) -> Any:
        """A keystoneauth1 adapter, as :class:`~autoclave.placement.embedded.EmbeddedPlacement` has."""
        return wsgi_adapter(self)

    def client(self) -> PlacementClient:
        return PlacementClient(self.client_session())

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        try:
            with self._lock:
                status, document = self._answer(environ)
        except Refusal as refusal:
            status, document = refusal.status, error_document(refusal.status, str(refusal), refusal.code)
        body = b"" if document is None else json.dumps(document).encode()
        headers = [("Content-Length", str(len(body)))]
        if body:
            headers.append(("Content-Type", "application/json"))
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [body]

    def _answer(self, environ: "WSGIEnvironment") -> Answer:
        version = environ.get("HTTP_OPENSTACK_API_VERSION", "")
        if version != f"placement {MICROVERSION}":
            raise Refusal(406, f"Unacceptable version header: {version}")
        size = int(environ.get("CONTENT_LENGTH") or 0)
        body = bodies.document(environ["wsgi.input"].read(size))
        for method, path, handler in ROUTES:
            match = path.fullmatch(environ["PATH_INFO"]) if method == environ["REQUEST_METHOD"] else None
            if match is not None:
                query = parse_qsl(environ.get("QUERY_STRING", ""))
                return handler(Request(self.ledger, "".join(match.groups()), query, body))
        raise Refusal(404, "The resource could not be found.")


def error_document(status: int, detail: str, code: str = "placement.undefined_code") -> dict[str, Any]:
    """Placement's error document, after the API working group's guideline."""
    error = {"status": status, "title": HTTPStatus(status).phrase, "detail": detail, "code": code}
    return {"errors": [error]}
