"""A Keystone that knows a few tokens: as much of it as the auth_token middleware asks."""

import json
import threading
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

from cheroot import wsgi


class Keystone:
    """Answer as Keystone does.

    :attr url: where it listens.
    :attr tokens: token to (user, project or None, roles).
    :attr own_token: the token that Autoclave gets; None: none.
    """

    def __init__(self) -> None:
        self.tokens: dict[str, tuple[str, str | None, tuple[str, ...]]] = {}
        self.own_token: str | None = "autoclave-itself"
        self._server = wsgi.Server(("127.0.0.1", 0), self._answer, numthreads=2)
        self._server.prepare()
        self.url = f"http://127.0.0.1:{self._server.bind_addr[1]}"
        self._thread = threading.Thread(target=self._server.serve, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.stop()
        self._thread.join()

    def config(self) -> str:
        """``[keystone_authtoken]`` of a service that asks here."""
        return "\n".join(
            [
                "[keystone_authtoken]",
                f"www_authenticate_uri = {self.url}",
                f"auth_url = {self.url}",
                "auth_type = password",
                "username = autoclave",
                "password = secret",
                "project_name = service",
                "user_domain_id = default",
                "project_domain_id = default",
                "",
            ]
        )

    def _answer(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"].rstrip("/")
        headers = [("Content-Type", "application/json")]
        if path in ("", "/v3"):
            version = {"id": "v3.14", "status": "stable", "links": [{"rel": "self", "href": f"{self.url}/v3/"}]}
            document: Any = {"version": version} if path else {"versions": {"values": [version]}}
            status = "200 OK" if path else "300 Multiple Choices"
        elif method == "POST":
            status, document = "201 Created", _token("autoclave", "service", ("service",))
            endpoints = [
                {"id": kind, "interface": kind, "region_id": "r", "region": "r", "url": self.url}
                for kind in ("public", "internal", "admin")
            ]
            document["token"]["catalog"] = [{"type": "identity", "id": "i", "name": "keystone", "endpoints": endpoints}]
            if self.own_token is not None:
                headers.append(("X-Subject-Token", self.own_token))
        else:
            known = self.tokens.get(environ.get("HTTP_X_SUBJECT_TOKEN", ""))
            status, document = ("200 OK", _token(*known)) if known else ("404 Not Found", {"error": {"code": 404}})
        body = json.dumps(document).encode()
        start_response(status, [*headers, ("Content-Length", str(len(body)))])
        return [body]


def _token(user: str, project: str | None, roles: tuple[str, ...]) -> dict[str, Any]:
    now = datetime.now(UTC)
    domain = {"id": "default", "name": "Default"}
    token: dict[str, Any] = {
        "methods": ["password"],
        "user": {"id": user, "name": user, "domain": domain},
        "roles": [{"id": role, "name": role} for role in roles],
        "issued_at": now.strftime("%Y-%m-%dT%H:%M:%S.000000Z"),
        "expires_at": (now + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%S.000000Z"),
        "audit_ids": ["x"],
        "catalog": [],
    }
    if project is not None:
        token["project"] = {"id": project, "name": project, "domain": domain}
    else:
        token["system"] = {"all": True}
    return {"token": token}
