"""``/compute/v2.1/os-services``: the agents that run servers, and whether their hosts get new ones."""

from typing import Any

import falcon
from sqlalchemy.engine import Connection

from autoclave.api import uuids
from autoclave.api.compute.host_states import HostState, host_state, host_states
from autoclave.api.compute.moments import novas_moment
from autoclave.api.context import Api
from autoclave.api.operation import Asked, Operation, Resource
from autoclave.api.query import Argument
from autoclave.api.schemas.compute_services import SERVICES, SHOWN_SERVICE, VALIDATE_CHANGE
from autoclave.conf.agent import patience_with_agents
from autoclave.db import hosts as host_rows
from autoclave.exceptions import BadRequest, NotFound
from autoclave.lifecycle.reclaim import take_out
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor
from autoclave.rules.instance_states import ZONE

BINARY = "nova-compute"
"""What users of Nova know such a service by, and what their commands ask for."""


class Services(Resource):
    """``GET /compute/v2.1/os-services``."""

    @Operation(
        "List the agents that run servers",
        rule="os_compute_api:os-services:list",
        query=(
            Argument("binary", f"Only those of this name; all are {BINARY}."),
            Argument("host", "Only that of this host."),
        ),
        answers={200: SERVICES},
    )
    def on_get(self, _req: falcon.Request, resp: falcon.Response, asked: Asked) -> None:
        host = asked.query.get("host")
        with self._api.ports.db.read() as tx:
            found = host_states(tx, self._api) if asked.query.get("binary", BINARY) == BINARY else []
        resp.media = {"services": [_shown(state) for state in found if host in (None, state.record.hostname)]}


class ComputeService(Resource):
    """``PUT`` and ``DELETE /compute/v2.1/os-services/{service}``."""

    @Operation(
        "Enable or disable a host, or say that it is down",
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
        "Take a host out of the cloud; one whose agent reports again comes back",
        rule="os_compute_api:os-services:delete",
        waits=True,
        answers={204: None},
        fails={409: "Its agent lives, it has servers, or a device of it is in use; the text says which."},
    )
    def on_delete(self, _req: falcon.Request, resp: falcon.Response, asked: Asked, service: str) -> None:
        uuid = uuids.canonical(service)
        if uuid is None:
            raise _unknown("Service", service)
        context = asked.context
        cause = Cause(Actor.OPERATOR, context.user_id or "", context.request_id)
        take_out(self._api.ports, uuid, cause, patience_with_agents(self._api.conf))
        resp.status = falcon.HTTP_204


def state_of(tx: Connection, api: Api, key: str, noun: str) -> HostState:
    """The host whose service or hypervisor has the id *key*.

    :raises NotFound: there is none; a name is no id.
    """
    uuid = uuids.canonical(key)
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
