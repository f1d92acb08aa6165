"""Serve ``/autoclave/v1/hosts``: the hosts and their maintenance."""

from datetime import UTC
from typing import Any

import falcon
from sqlalchemy.engine import Connection

from autoclave.api.admin.actions import Action, say
from autoclave.api.admin.devices import SAID, VALIDATE_REASON_IF_ANY, VALIDATE_WITH_REASON
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.schema import BOOLEAN, INTEGER, STRING, TIMESTAMP, UUID, listed, nullable, shape
from autoclave.db import agents as agent_rows
from autoclave.db import devices as device_rows
from autoclave.db import hosts as compute_rows
from autoclave.db import hosts as maintenance_rows
from autoclave.exceptions import NotFound
from autoclave.lifecycle import maintenance
from autoclave.rules.device_lifecycle import must_be_reserved

HOST = shape(
    "OperatorHost",
    {
        "hostname": STRING,
        "in_maintenance": BOOLEAN,
        "reason": nullable(STRING),
        "since": nullable(TIMESTAMP),
        "by": nullable(STRING),
        "compute_service": nullable(UUID),
        "compute_disabled": nullable(BOOLEAN),
        "devices": INTEGER,
        "devices_offered": {**INTEGER, "description": "Devices that nothing keeps from being offered."},
        "agent_last_seen": nullable(TIMESTAMP),
    },
)
HOSTS = listed("OperatorHosts", "hosts", HOST)

_GET = "autoclave:host:get"
_ACT = "autoclave:host:act"
_ANSWERS = {200: SAID, 202: SAID}


class Hosts(Resource):
    """Serve ``GET /autoclave/v1/hosts``."""

    @Operation("List the hosts", rule=_GET, answers={200: HOSTS})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, _asked: Asked) -> None:
        with self._api.ports.db.read() as tx:
            resp.media = {"hosts": _shown(tx)}


class Host(Resource):
    """Serve ``GET /autoclave/v1/hosts/{host}``."""

    @Operation("Show a host", rule=_GET, answers={200: HOST})
    def on_get(self, _req: falcon.Request, resp: falcon.Response, _asked: Asked, host: str) -> None:
        with self._api.ports.db.read() as tx:
            found = _shown(tx, host)
        if not found:
            raise NotFound(f"Host {host} not found.")
        [resp.media] = found


class _Act(Resource):
    def _act(self, resp: falcon.Response, asked: Asked, host: str, action: Action) -> None:
        if say(self._api.ports, resp, asked, host, action):
            resp.media = {"placement_settled": True}


class Maintenance(_Act):
    """See :func:`autoclave.lifecycle.maintenance.begin`."""

    @Operation("Put a host into maintenance", rule=_ACT, waits=True, body=VALIDATE_WITH_REASON, answers=_ANSWERS)
    def on_post(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, host: str) -> None:
        self._act(resp, asked, host, maintenance.begin)


class Resume(_Act):
    """See :func:`autoclave.lifecycle.maintenance.end`."""

    @Operation(
        "End the maintenance of a host",
        rule=_ACT,
        waits=True,
        body=VALIDATE_REASON_IF_ANY,
        body_optional=True,
        answers=_ANSWERS,
        fails={409: "The host is not in maintenance."},
    )
    def on_post(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, host: str) -> None:
        self._act(resp, asked, host, maintenance.end)


def _shown(tx: Connection, only: str | None = None) -> list[dict[str, Any]]:
    hosts = None if only is None else [only]
    seen = {agent.hostname: agent.last_seen for agent in agent_rows.list_all(tx, hosts)}
    compute = {host.hostname: host for host in compute_rows.list_all(tx, hosts)}
    maintenances = maintenance_rows.by_host(tx, hosts)
    devices = device_rows.list_all(tx, hostname=only)
    shown = []
    for name in [host for host in maintenance_rows.hostnames(tx) if only in (None, host)]:
        own = [device for device in devices if device.hostname == name]
        maintenance, service = maintenances.get(name), compute.get(name)
        began_at = maintenance.began_at.replace(tzinfo=UTC).isoformat() if maintenance else None
        shown.append(
            {
                "hostname": name,
                "in_maintenance": maintenance is not None,
                "reason": maintenance.reason if maintenance else None,
                "since": began_at,
                "by": maintenance.actor if maintenance else None,
                "compute_service": service.uuid if service else None,
                "compute_disabled": service.disabled if service else None,
                "devices": len(own),
                "devices_offered": sum(not must_be_reserved(device.offer) for device in own),
                "agent_last_seen": seen.get(name),
            }
        )
    return shown
