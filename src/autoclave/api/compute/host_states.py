"""Hosts that run instances, and whether they live."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy.engine import Connection

from autoclave.api.context import Api
from autoclave.conf.agent import patience_with_agents
from autoclave.db import agents as agent_rows
from autoclave.db import hosts as host_maintenances
from autoclave.db import hosts as host_rows
from autoclave.db.hosts import ComputeHostRecord, MaintenanceRecord


@dataclass(frozen=True)
class HostState:
    """A host. ``up``: its agent was seen lately, and the operator does not know better.

    ``maintenance``: that of ``autoclave host maintenance``; clients of Nova see it as a disabled service.
    """

    record: ComputeHostRecord
    last_seen: datetime | None
    up: bool
    maintenance: MaintenanceRecord | None

    @property
    def disabled(self) -> bool:
        """Whether the host gets no new servers."""
        return self.record.disabled or self.maintenance is not None

    @property
    def disabled_reason(self) -> str | None:
        """Why it gets none."""
        reason = self.record.disabled_reason
        if self.maintenance is None:
            return reason
        return f"in maintenance: {self.maintenance.reason}" + (f"; {reason}" if reason else "")

    @property
    def status(self) -> str:
        """The ``host_status`` that servers show."""
        if self.record.forced_down:
            return "DOWN"
        if self.disabled:
            return "MAINTENANCE"
        return "UP" if self.up else "UNKNOWN"


def host_states(tx: Connection, api: Api, hosts: Collection[str] | None = None) -> list[HostState]:
    """All hosts, by name; with *hosts*, at least these."""
    seen = {agent.hostname: agent.last_seen for agent in agent_rows.list_all(tx, hosts)}
    maintenances = host_maintenances.by_host(tx, hosts)
    return [
        _state(record, seen.get(record.hostname), maintenances.get(record.hostname), api)
        for record in host_rows.list_all(tx, hosts)
    ]


def host_state(tx: Connection, api: Api, uuid: str) -> HostState | None:
    """The host with that uuid."""
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
