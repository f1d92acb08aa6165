"""Serve hypervisors (``os-hypervisors``) and compute services (``os-services``).

Placement has the inventory of a host, so hypervisors show none. A compute service is the agent of a host.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import falcon
from sqlalchemy.engine import Connection

from autoclave.api import query
from autoclave.api.body import compiled
from autoclave.api.compute.common import NAME, NOVAS_MOMENT, PAGING, next_link, novas_moment, page, paged
from autoclave.api.context import Api
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument
from autoclave.api.schema import BOOLEAN, INTEGER, STRING, UUID, listed, nullable, one_of, optional, shape
from autoclave.conf.agent import patience_with_agents
from autoclave.db import agents as agent_rows
from autoclave.db import hosts as host_maintenances
from autoclave.db import hosts as host_rows
from autoclave.db import instances as instance_rows
from autoclave.db.hosts import ComputeHostRecord, MaintenanceRecord
from autoclave.exceptions import BadRequest, NotFound
from autoclave.lifecycle.reclaim import take_out
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor
from autoclave.rules.instance_states import ZONE


@dataclass(frozen=True)
class HostState:
    """Describe a host. ``up``: its agent was seen lately, and no operator has forced it down.

    ``maintenance``: that of ``autoclave host maintenance``; clients of Nova see a disabled service.
    """

    record: ComputeHostRecord
    last_seen: datetime | None
    up: bool
    maintenance: MaintenanceRecord | None

    @property
    def disabled(self) -> bool:
        """Return whether the host gets no new servers."""
        return self.record.disabled or self.maintenance is not None

    @property
    def disabled_reason(self) -> str | None:
        """Return why the host gets no new servers."""
        reason = self.record.disabled_reason
        if self.maintenance is None:
            return reason
        return f"in maintenance: {self.maintenance.reason}" + (f"; {reason}" if reason else "")

    @property
    def status(self) -> str:
        """Return the ``host_status`` that servers show."""
        if self.record.forced_down:
            return "DOWN"
        if self.disabled:
            return "MAINTENANCE"
        return "UP" if self.up else "UNKNOWN"


def host_states(tx: Connection, api: Api, hosts: Collection[str] | None = None) -> list[HostState]:
    """Return all hosts, by name; with *hosts*, at least these."""
    seen = {agent.hostname: agent.last_seen for agent in agent_rows.list_all(tx, hosts)}
    maintenances = host_maintenances.by_host(tx, hosts)
    return [
        _state(record, seen.get(record.hostname), maintenances.get(record.hostname), api)
        for record in host_rows.list_all(tx, hosts)
    ]


def host_state(tx: Connection, api: Api, uuid: str) -> HostState | None:
    """Return the host with that uuid."""
    record = host_rows.get(tx, uuid)
    if record is None:
        return None
    agent = agent_rows.get(tx, record.hostname)
    return _state(
        record, None if agent is None else agent.last_seen, host_maintenances.get_maintenance(tx, record.hostname), api
    )


def _state(
    record: ComputeHostRecord, last_seen: datetime | None, maintenance: MaintenanceRecord | None, api: Api
) -> HostState:
    lately = last_seen is not None and api.ports.clock() - last_seen <= patience_with_agents(api.conf)
    return HostState(record, last_seen, lately and not record.forced_down, maintenance)


_CHANGE: dict[str, Any] = {
    "type": "object",
    "minProperties": 1,
    "additionalProperties": False,
    "properties": {
        "status": one_of(["enabled", "disabled"]),
        "disabled_reason": NAME,
        "forced_down": {"type": "boolean", "x-message": "must be true or false"},
    },
}
VALIDATE_CHANGE = compiled(_CHANGE)

_STATE = one_of(["up", "down"])
_STATUS = one_of(["enabled", "disabled"])
SERVICE = shape(
    "ComputeService",
    {
        "id": UUID,
        "binary": {"const": "nova-compute"},
        "host": STRING,
        "zone": STRING,
        "status": _STATUS,
        "state": _STATE,
        "updated_at": nullable(NOVAS_MOMENT),
        "disabled_reason": nullable(STRING),
        "forced_down": BOOLEAN,
    },
)
SERVICES = listed("ComputeServices", "services", SERVICE)
SHOWN_SERVICE = shape("ShownComputeService", {"service": SERVICE})

_GUESTS = optional({"type": "array", "items": shape("HypervisorServer", {"uuid": UUID, "name": STRING})})
_IN_SHORT = {
    "id": UUID,
    "hypervisor_hostname": STRING,
    "state": _STATE,
    "status": _STATUS,
    "servers": _GUESTS,
}
HYPERVISOR = shape(
    "Hypervisor",
    {
        **_IN_SHORT,
        "hypervisor_type": STRING,
        "hypervisor_version": INTEGER,
        "host_ip": {"type": "null"},
        "uptime": {"type": "null"},
        "service": shape("HypervisorService", {"id": UUID, "host": STRING, "disabled_reason": nullable(STRING)}),
    },
)
HYPERVISORS = paged("Hypervisors", "hypervisors", shape("HypervisorSummary", _IN_SHORT))
HYPERVISORS_IN_DETAIL = paged("HypervisorsInDetail", "hypervisors", HYPERVISOR)
SHOWN_HYPERVISOR = shape("ShownHypervisor", {"hypervisor": HYPERVISOR})

_ZONE_STATE = shape("ZoneState", {"available": BOOLEAN})
_AT_HOST = shape("ZoneService", {"active": BOOLEAN, "available": BOOLEAN, "updated_at": nullable(NOVAS_MOMENT)})
_ZONE_HOSTS = {"type": "object", "additionalProperties": {"type": "object", "additionalProperties": _AT_HOST}}
ZONES = listed(
    "Zones",
    "availabilityZoneInfo",
    shape("Zone", {"zoneName": STRING, "zoneState": _ZONE_STATE, "hosts": {"type": "null"}}),
)
ZONES_IN_DETAIL = listed(
    "ZonesInDetail",
    "availabilityZoneInfo",
    shape("ZoneInDetail", {"zoneName": STRING, "zoneState": _ZONE_STATE, "hosts": _ZONE_HOSTS}),
)

_NONE = {"type": "array", "maxItems": 0}
AGGREGATES = shape("Aggregates", {"aggregates": _NONE})
MIGRATIONS = shape("Migrations", {"migrations": _NONE})
FLAVOR_ACCESS = shape("FlavorAccess", {"flavor_access": _NONE})
INSTANCE_ACTIONS = shape("InstanceActions", {"instanceActions": _NONE})

BINARY = "nova-compute"
"""Name the service as users and commands of Nova expect it."""


class Services(Resource):
    """Serve ``GET /compute/v2.1/os-services``."""

    @Operation(
        "List the agents that run servers",
        rule="os_compute_api:os-services:list",
        query=(
            Argument("binary", f"Only services with this name; all are {BINARY}."),
            Argument("host", "Only the service of this host."),
        ),
        answers={200: SERVICES},
    )
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        host = asked.query.get("host")
        with self._api.ports.db.read() as tx:
            found = host_states(tx, self._api) if asked.query.get("binary", BINARY) == BINARY else []
        resp.media = {"services": [_shown(state) for state in found if host in (None, state.record.hostname)]}


class ComputeService(Resource):
    """Serve ``PUT`` and ``DELETE /compute/v2.1/os-services/{service}``."""

    @Operation(
        "Enable or disable a host, or set forced_down",
        rule="os_compute_api:os-services:update",
        body=VALIDATE_CHANGE,
        answers={200: SHOWN_SERVICE},
    )
    def on_put(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, service: str) -> None:
        wanted = asked.body
        values: dict[str, Any] = {}
        if "disabled_reason" in wanted and wanted.get("status") != "disabled":
            raise BadRequest("disabled_reason is for status disabled only.")
        if "status" in wanted:
            values |= {"disabled": wanted["status"] == "disabled", "disabled_reason": wanted.get("disabled_reason")}
        if "forced_down" in wanted:
            values["forced_down"] = wanted["forced_down"]

        def change(tx: Connection) -> HostState:
            host_rows.update(tx, state_of(tx, self._api, service, "Service").record, values)
            return state_of(tx, self._api, service, "Service")

        resp.media = {"service": _shown(self._api.ports.db.transact(change))}

    @Operation(
        "Remove a host from the cloud; it returns when its agent reports again",
        rule="os_compute_api:os-services:delete",
        waits=True,
        answers={204: None},
        fails={409: "Its agent is alive, it has servers, or one of its devices is in use; the message says which."},
    )
    def on_delete(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, service: str) -> None:
        uuid = query.canonical(service)
        if uuid is None:
            raise _unknown("Service", service)
        context = asked.context
        cause = Cause(Actor.OPERATOR, context.user_id or "", context.request_id)
        take_out(self._api.ports, uuid, cause, patience_with_agents(self._api.conf))
        resp.status = falcon.HTTP_204


def state_of(tx: Connection, api: Api, key: str, noun: str) -> HostState:
    """Return the host whose service or hypervisor has the id *key*.

    :raises NotFound: there is no such host. A name is not accepted.
    """
    uuid = query.canonical(key)
    found = None if uuid is None else host_state(tx, api, uuid)
    if found is None:
        raise _unknown(noun, key)
    return found


def _unknown(noun: str, key: str) -> NotFound:
    return NotFound(f"{noun} {key} could not be found.")


def _shown(state: HostState) -> dict[str, Any]:
    host = state.record
    return {
        "id": host.uuid,
        "binary": BINARY,
        "host": host.hostname,
        "zone": ZONE,
        "status": "disabled" if state.disabled else "enabled",
        "state": "up" if state.up else "down",
        "updated_at": novas_moment(state.last_seen),
        "disabled_reason": state.disabled_reason,
        "forced_down": host.forced_down,
    }


_WITH_SERVERS = Argument("with_servers", "Include the servers.", one_of(["True", "False", "true", "false"]))
_LIST = (
    Argument("hypervisor_hostname_pattern", "Only hosts whose name contains this text."),
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
            marker = query.canonical(wanted.marker)
            seen = [number for number, state in enumerate(states, 1) if state.record.uuid == marker]
            if not seen:
                raise query.unknown_marker(wanted.marker)
            states = states[seen[0] :]
        return [state for state in states if part in state.record.hostname][: wanted.limit]


class Hypervisors(_List):
    """Serve ``GET /compute/v2.1/os-hypervisors``."""

    @Operation("List the hosts", rule="os_compute_api:os-hypervisors:list", query=_LIST, answers={200: HYPERVISORS})
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        resp.media = self._shown(req, asked, _summary)


class HypervisorsInDetail(_List):
    """Serve ``GET /compute/v2.1/os-hypervisors/detail``."""

    @Operation(
        "List the hosts in detail",
        rule="os_compute_api:os-hypervisors:list-detail",
        query=_LIST,
        answers={200: HYPERVISORS_IN_DETAIL},
    )
    def on_get(self, req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        resp.media = self._shown(req, asked, _detail)


class Hypervisor(Resource):
    """Serve ``GET /compute/v2.1/os-hypervisors/{hypervisor}``."""

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
    """Return a function that lists the servers of a state, if the request asks for servers."""
    if asked.query.get("with_servers", "").lower() != "true":
        return lambda _state: {}
    servers = instance_rows.named_on(tx, [state.record.hostname for state in states])
    return lambda state: {
        "servers": [{"uuid": uuid, "name": name} for uuid, name in servers.get(state.record.hostname, [])]
    }
