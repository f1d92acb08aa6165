"""A Nova that knows of instances whether they have a host, and takes events as Nova 34.0 (2026.2) does."""

import json
import threading
from collections.abc import Iterable
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from jsonschema import Draft202012Validator

from autoclave.nova.client import EVENT, MICROVERSION, PATH

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment

MOUNT = "/v2.1"

_UUID = "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_SCHEMA = Draft202012Validator(
    {
        "type": "object",
        "properties": {
            "events": {
                "type": "array",
                "minItems": 1,
                "items": {
                    "type": "object",
                    "properties": {
                        "name": {"enum": [EVENT]},
                        "server_uuid": {"type": "string", "pattern": _UUID},
                        "status": {"enum": ["failed", "completed", "in-progress"]},
                        "tag": {"type": "string", "maxLength": 255},
                    },
                    "required": ["name", "server_uuid"],
                    "additionalProperties": False,
                },
            },
        },
        "required": ["events"],
        "additionalProperties": False,
    }
)


class FakeNova:
    """A WSGI application, as Nova is below its ``/v2.1``."""

    def __init__(self) -> None:
        self.hosts: dict[str, str | None] = {}
        """The instances, by uuid, and where they are; None until a host has claimed one."""
        self.posts: list[list[dict[str, Any]]] = []
        """The events of every request that was understood."""
        self.taken: list[dict[str, Any]] = []
        """The events that went on to a host."""
        self._lock = threading.Lock()

    def __call__(self, environ: "WSGIEnvironment", start_response: "StartResponse") -> Iterable[bytes]:
        with self._lock:
            status, document = self._answer(environ)
        body = json.dumps(document).encode()
        headers = [("Content-Type", "application/json"), ("Content-Length", str(len(body)))]
        start_response(f"{status} {HTTPStatus(status).phrase}", headers)
        return [body]

    def _answer(self, environ: "WSGIEnvironment") -> tuple[int, Any]:
        request = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        if not environ.get("HTTP_X_AUTH_TOKEN"):
            return _refusal(401, "unauthorized", "The request you have made requires authentication.")
        if (environ["REQUEST_METHOD"], environ["PATH_INFO"]) != ("POST", MOUNT + PATH):
            return _refusal(404, "itemNotFound", "The resource could not be found.")
        if environ.get("HTTP_OPENSTACK_API_VERSION") != f"compute {MICROVERSION}":
            return _refusal(406, "computeFault", "This double speaks one version only.")
        try:
            document = json.loads(request)
        except ValueError:
            return _refusal(400, "badRequest", "Malformed request body")
        wrong = next(_SCHEMA.iter_errors(document), None)
        if wrong is not None:
            return _refusal(400, "badRequest", wrong.message)
        events = document["events"]
        self.posts.append(events)
        answers = [{**event, **self._receive(event)} for event in events]
        return (200 if all(answer["code"] == 200 for answer in answers) else 207), {"events": answers}

    def _receive(self, event: dict[str, Any]) -> dict[str, Any]:
        if event["server_uuid"] not in self.hosts:
            return {"status": "failed", "code": 404}
        if self.hosts[event["server_uuid"]] is None:
            return {"status": "failed", "code": 422}
        self.taken.append(event)
        return {"status": "completed", "code": 200}


def _refusal(status: int, kind: str, message: str) -> tuple[int, Any]:
    return status, {kind: {"code": status, "message": message}}
