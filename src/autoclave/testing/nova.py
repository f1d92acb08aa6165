"""Double Nova's servers and external events as in Nova 34.0 (2026.2)."""

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from jsonschema import Draft202012Validator

from autoclave.nova.client import EVENT, MICROVERSION, PATH
from autoclave.nova.servers import DETAILS, LIST

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


_FILTERS = frozenset({"deleted", "soft_deleted", "uuid"})
"""The filters that require the role admin; Nova ignores them for other callers."""


@dataclass
class FakeServer:
    """Describe a server.

    :param status: DELETED only means that its row is deleted.
    :param cell_down: the database of its cell does not answer.
    """

    project_id: str
    status: str = "ACTIVE"
    cell_down: bool = False


class FakeNova:
    """Serve the paths below Nova's ``/v2.1`` as a WSGI application.

    :param page: the most servers of one page (``[api] max_limit``).
    """

    def __init__(self, page: int = 1000) -> None:
        self.servers: dict[str, FakeServer] = {}
        """Servers by uuid, the latest last. Any other server never existed, or its row was archived."""
        self.sees_all_projects = True
        """True if the caller has the role admin."""
        self.caller_project = "service"
        self._page = page
        self.hosts: dict[str, str | None] = {}
        """The host of each instance by uuid; None until a host has claimed it."""
        self.posts: list[list[dict[str, Any]]] = []
        """The events of every valid request."""
        self.taken: list[dict[str, Any]] = []
        """The events that were passed on to a host."""
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
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"].removeprefix(MOUNT)
        asked = method == "GET" and (path == LIST or path.startswith(f"{LIST}/"))
        if not asked and (method, path) != ("POST", PATH):
            return _refusal(404, "itemNotFound", "The resource could not be found.")
        if environ.get("HTTP_OPENSTACK_API_VERSION") != f"compute {MICROVERSION}":
            return _refusal(406, "computeFault", "This double speaks one version only.")
        if asked:
            query = dict(parse_qsl(environ.get("QUERY_STRING", "")))
            return self._list(path, query) if path in (LIST, DETAILS) else self._show(path.rpartition("/")[2])
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

    def _list(self, path: str, query: Mapping[str, str]) -> tuple[int, Any]:
        if "all_tenants" in query and not self.sees_all_projects:
            return _refusal(403, "forbidden", "Policy doesn't allow os_compute_api:servers to be performed.")
        if not self.sees_all_projects:
            query = {name: value for name, value in query.items() if name not in _FILTERS}
        found = [
            uuid
            for uuid, server in reversed(self.servers.items())
            if not server.cell_down
            and ("all_tenants" in query or server.project_id == self.caller_project)
            and query.get("uuid", uuid) == uuid
            and _is_listed(server.status, query)
        ]
        if (marker := query.get("marker")) is not None:
            if marker not in found:
                return _refusal(400, "badRequest", f"marker [{marker}] not found")
            found = found[found.index(marker) + 1 :]
        size = min(int(query.get("limit", self._page)), self._page)
        page = found[:size]
        shown = [self._view(uuid) if path == DETAILS else {"id": uuid, "name": uuid} for uuid in page]
        links = {"servers_links": [{"rel": "next", "href": f"?marker={page[-1]}"}]} if len(page) == size else {}
        return 200, {"servers": shown, **links}

    def _show(self, uuid: str) -> tuple[int, Any]:
        server = self.servers.get(uuid)
        hidden = server is not None and not self.sees_all_projects and server.project_id != self.caller_project
        if server is None or hidden or server.status == "DELETED":
            return _refusal(404, "itemNotFound", f"Instance {uuid} could not be found.")
        return 200, {"server": self._view(uuid)}

    def _view(self, uuid: str) -> dict[str, Any]:
        server = self.servers[uuid]
        status = "UNKNOWN" if server.cell_down else server.status
        return {"id": uuid, "status": status, "tenant_id": server.project_id}

    def _receive(self, event: dict[str, Any]) -> dict[str, Any]:
        if event["server_uuid"] not in self.hosts:
            return {"status": "failed", "code": 404}
        if self.hosts[event["server_uuid"]] is None:
            return {"status": "failed", "code": 422}
        self.taken.append(event)
        return {"status": "completed", "code": 200}


def _is_listed(status: str, query: Mapping[str, str]) -> bool:
    if query.get("deleted") == "true":
        return status in ("DELETED", "SOFT_DELETED")
    return status != "DELETED" and (status != "SOFT_DELETED" or query.get("soft_deleted") == "true")


def _refusal(status: int, kind: str, message: str) -> tuple[int, Any]:
    return status, {kind: {"code": status, "message": message}}
