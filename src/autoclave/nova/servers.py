"""Look up Nova's servers over HTTP: existing and deleted ones."""

from collections.abc import Collection, Mapping
from typing import Any

from keystoneauth1 import exceptions as ksa

from autoclave.conf.clouds import NOVA
from autoclave.exceptions import NovaUnavailable
from autoclave.nova.client import Presence, Server, hint
from autoclave.rules.plain_text import excerpt
from autoclave.service_adapter import reason

LIST, DETAILS = "/servers", "/servers/detail"
PAGE = 1000
"""The servers of one page. Nova may return fewer (``[api] max_limit``)."""
MOST_PAGES = 200
"""The most pages of one list."""

_SHOWN = 200
"""The most characters of an answer in a message. Messages enter the database, and PostgreSQL accepts no NUL."""
_ALL_PROJECTS = {"all_tenants": "true"}


class NovaServers:
    """Implement :class:`autoclave.nova.client.Servers`.

    :param adapter: a keystoneauth1 adapter with ``raise_exc=False``. From its microversion 2.69 on, servers in a cell
        that is down are shown as UNKNOWN.
    """

    def __init__(self, adapter: Any) -> None:
        self._adapter = adapter

    def own_project(self) -> str | None:
        try:
            project: str | None = self._adapter.get_project_id()
        except ksa.ClientException as error:
            raise NovaUnavailable(f"the project of the [nova] credentials cannot be determined: {error}") from error
        return project

    def not_listed(self, wanted: Collection[str]) -> frozenset[str]:
        left = set(wanted)
        query: dict[str, str] = {**_ALL_PROJECTS, "soft_deleted": "true", "limit": str(PAGE)}
        for _ in range(MOST_PAGES):
            if not left:
                break
            document = self._list(LIST, query)
            page = [_text(each, "id") for each in document["servers"]]
            left.difference_update(page)
            if not page or not _has_next(document):
                break
            query["marker"] = page[-1]
        else:
            raise NovaUnavailable(f"the list of servers has more than {MOST_PAGES} pages")
        return frozenset(left)

    def look_up(self, uuid: str) -> Server:
        found = self._shown(uuid)
        if found is not None:
            status = _text(found, "status")
            presence = Presence.SOFT_DELETED if status == "SOFT_DELETED" else Presence.THERE
            return Server(presence, _text(found, "tenant_id"))
        # Nova also returns 404 for servers that it hides from these credentials.
        query = {**_ALL_PROJECTS, "deleted": "true", "uuid": uuid}
        rows = self._list(DETAILS, query)["servers"]
        if any(_text(each, "id") != uuid for each in rows):
            raise NovaUnavailable(
                f"GET {DETAILS} was answered without its filters. Check [nova] auth_type and the roles of its user: "
                "Nova's policy os_compute_api:servers:allow_all_filters requires the role admin"
            )
        for row in rows:
            status = _text(row, "status")
            if status != "DELETED":
                presence = Presence.SOFT_DELETED if status == "SOFT_DELETED" else Presence.THERE
                return Server(presence, _text(row, "tenant_id"))
        return Server(Presence.DELETED, _text(rows[0], "tenant_id")) if rows else Server(Presence.ABSENT, None)

    def _shown(self, uuid: str) -> Mapping[str, Any] | None:
        path = f"{LIST}/{uuid}"
        status, document, text = self._get(path, {})
        if status == 404 and uuid in str(_part(document, "itemNotFound")):
            return None
        if status != 200:
            raise _refused(path, status, text)
        server = _part(document, "server")
        if not isinstance(server, dict) or server.get("id") != uuid:
            raise _not_nova(path, text)
        return server

    def _list(self, path: str, query: Mapping[str, str]) -> Mapping[str, Any]:
        status, document, text = self._get(path, query)
        if status != 200:
            raise _refused(path, status, text)
        servers = _part(document, "servers")
        if not isinstance(servers, list) or not all(isinstance(each, dict) for each in servers):
            raise _not_nova(path, text)
        return dict(document)

    def _get(self, path: str, query: Mapping[str, str]) -> tuple[int, Any, str]:
        try:
            response = self._adapter.get(path, params=dict(query))
        except ksa.ClientException as error:  # of the connection to Nova or to Keystone, or no token
            raise NovaUnavailable(
                f"GET {path} was not sent, or not answered: {reason(NOVA, self._adapter, error)}"
            ) from error
        try:
            document = response.json()
        except ValueError:
            document = None
        return response.status_code, document, excerpt(response.text, _SHOWN)


def _has_next(document: Mapping[str, Any]) -> bool:
    links = document.get("servers_links")
    return isinstance(links, list) and any(isinstance(link, dict) and link.get("rel") == "next" for link in links)


def _part(document: Any, name: str) -> Any:
    return document.get(name) if isinstance(document, dict) else None


def _text(server: Mapping[str, Any], name: str) -> str:
    value = server.get(name)
    if not isinstance(value, str):
        raise NovaUnavailable(f"Nova returned a server without its {name}: {str(server)[:200]}")
    return value


def _refused(path: str, status: int, text: str) -> NovaUnavailable:
    return NovaUnavailable(f"GET {path} was answered {status}: {text}{hint(status)}")


def _not_nova(path: str, text: str) -> NovaUnavailable:
    return NovaUnavailable(f"GET {path} was answered, but not as Nova answers: {text!r}")
