"""List which hosts may get an instance, and why the others may not."""

from dataclasses import dataclass
from datetime import timedelta

from autoclave.db import agents as agent_rows
from autoclave.db import hosts as host_maintenances
from autoclave.db import hosts as host_rows
from autoclave.db.agents import AgentRecord
from autoclave.db.hosts import ComputeHostRecord
from autoclave.lifecycle.ports import Ports
from autoclave.rpc.agent_api import AgentAPI


@dataclass(frozen=True)
class ComputeHost:
    """Describe a host that runs instances.

    :param root: uuid of its root provider.
    :param why_not: why it gets no instance, as a predicate; None if it may get one.
    """

    name: str
    root: str
    why_not: str | None


class ComputeHosts:
    """Read the compute hosts from the database.

    :param patience: silence after which an agent counts as dead.
    """

    def __init__(self, ports: Ports, agents: AgentAPI, patience: timedelta) -> None:
        self._ports = ports
        self._agents = agents
        self._patience = patience

    def all(self) -> list[ComputeHost]:
        """Return all compute hosts, ordered by name.

        :raises DatabaseUnavailable: the database cannot be read.
        """
        with self._ports.db.read() as tx:
            hosts = host_rows.list_all(tx)
            maintenances = host_maintenances.by_host(tx)
            agents = {agent.hostname: agent for agent in agent_rows.list_all(tx)}
        found = []
        for host in hosts:
            maintenance = maintenances.get(host.hostname)
            why_not = self._why_not(host, agents.get(host.hostname))
            if maintenance is not None:
                why_not = f"is in maintenance: {maintenance.reason}"
            found.append(ComputeHost(host.hostname, host.rp_uuid, why_not))
        return found

    def unheard(self, name: str) -> str | None:
        """Return why a message to a host's agent may wait long, as a predicate; None if its agent is alive.

        :raises DatabaseUnavailable: the database cannot be read.
        """
        with self._ports.db.read() as tx:
            return self._silence(agent_rows.get(tx, name))

    def _why_not(self, host: ComputeHostRecord, agent: AgentRecord | None) -> str | None:
        if host.forced_down:
            return "is forced down"
        if host.disabled:
            return "is disabled" + (f": {host.disabled_reason}" if host.disabled_reason else "")
        silence = self._silence(agent)
        if agent is None or silence is not None:
            return silence
        refusal = self._agents.refuses_instances(agent.rpc_version)
        return None if refusal is None else f"has an agent that cannot run instances: {refusal}"

    def _silence(self, agent: AgentRecord | None) -> str | None:
        if agent is None:
            return "has no agent"
        silence = self._ports.clock() - agent.last_seen
        return (
            f"has an agent that was last seen {silence.total_seconds():.0f} s ago" if silence > self._patience else None
        )
