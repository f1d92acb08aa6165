"""``/compute/v2.1/os-hypervisors``: the hosts that run servers. What they have is Placement's to tell."""

from collections.abc import Callable, Sequence
from typing import Any

import falcon
from sqlalchemy.engine import Connection

from autoclave.api import query, uuids
from autoclave.api.compute.common import next_link
from autoclave.api.compute.host_states import HostState, host_states
from autoclave.api.compute.paging import PAGING, page
from autoclave.api.compute.services import state_of
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument
from autoclave.api.schema import one_of
from autoclave.api.schemas.compute_services import HYPERVISORS, HYPERVISORS_IN_DETAIL, SHOWN_HYPERVISOR
from autoclave.db import instances as instance_rows

_WITH_SERVERS = Argument("with_servers", "Whether to name the servers too.", one_of(["True", "False", "true", "false"]))
_LIST = (
    Argument("hypervisor_hostname_pattern", "Only those whose name holds this text."),
    _WITH_SERVERS,
    *PAGING,
)


class _List(Resource):
    def _shown(self, req: falcon.Request, asked: Asked, view: Callable[[HostState], dict[str, Any]]) -> dict[str, Any]:
        with self._api.ports.db.read() as tx:
            found = self._found(tx, asked)
            servers = _servers(tx, asked, found)
        further = next_link(req, self._api.conf, "hypervisors", [state.record.uuid for state in found])
        return {"hypervisors": [{**view(state), **servers(state)} for state in found], **further}

    def _found(self, tx: Connection, asked: Asked) -> list[HostState]:
        wanted, part = page(asked.query), asked.query.get("hypervisor_hostname_pattern", "")
        states = host_states(tx, self._api)
        if wanted.marker is not None:
            marker = uuids.canonical(wanted.marker)
            seen = [number for number, state in enumerate(states, 1) if state.record.uuid == marker]
            if not seen:
                raise query.unknown_marker(wanted.marker)
            states = states[seen[0] :]
        return [state for state in states if part in state.record.hostname][: wanted.limit]


class Hypervisors(_List):
    """``GET /compute/v2.1/os-hypervisors``."""

    @Operation("List the hosts", rule="os_compute_api:os-hypervisors:list", query=_LIST, answers={200: HYPERVISORS})
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        resp.media = self._shown(req, asked, _summary)


class HypervisorsInDetail(_List):
    """``GET /compute/v2.1/os-hypervisors/detail``."""

    @Operation(
        "List the hosts in detail",
        rule="os_compute_api:os-hypervisors:list-detail",
        query=_LIST,
        answers={200: HYPERVISORS_IN_DETAIL},
    )
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        resp.media = self._shown(req, asked, _detail)


class Hypervisor(Resource):
    """``GET /compute/v2.1/os-hypervisors/{hypervisor}``."""

    @Operation(
        "Show a host",
        rule="os_compute_api:os-hypervisors:show",
        query=(_WITH_SERVERS,),
        answers={200: SHOWN_HYPERVISOR},
    )
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, hypervisor: str) -> None:
        with self._api.ports.db.read() as tx:
            state = state_of(tx, self._api, hypervisor, "Hypervisor")
            resp.media = {"hypervisor": {**_detail(state), **_servers(tx, asked, [state])(state)}}


def _summary(state: HostState) -> dict[str, Any]:
    return {
        "id": state.record.uuid,
        "hypervisor_hostname": state.record.hostname,
        "state": "up" if state.up else "down",
        "status": "disabled" if state.disabled else "enabled",
    }


def _detail(state: HostState) -> dict[str, Any]:
    host = state.record
    return {
        **_summary(state),
        "hypervisor_type": host.hypervisor_type,
        "hypervisor_version": host.hypervisor_version,
        "host_ip": None,
        "uptime": None,
        "service": {"id": host.uuid, "host": host.hostname, "disabled_reason": state.disabled_reason},
    }


def _servers(tx: Connection, asked: Asked, states: Sequence[HostState]) -> Callable[[HostState], dict[str, Any]]:
    """What is said of the servers of each of *states*: nothing, if nobody asked."""
    if asked.query.get("with_servers", "").lower() != "true":
        return lambda _state: {}
    servers = instance_rows.named_on(tx, [state.record.hostname for state in states])
    return lambda state: {
        "servers": [{"uuid": uuid, "name": name} for uuid, name in servers.get(state.record.hostname, [])]
    }
