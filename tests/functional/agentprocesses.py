"""What worlds with agents have in common: each agent is started and ended as its service does it."""

from typing import Any

from autoclave.agent.manager import AgentManager
from autoclave.rpc.inprocess import InProcessTransport
from autoclave.rpc.port import AGENT_TOPIC


class AgentProcesses:
    """The agents of one host, of which one may be ended and another begun."""

    transport: InProcessTransport

    def __init__(self, *where: Any, **how: Any) -> None:
        super().__init__(*where, **how)
        self._agents: list[AgentManager] = []
        self._server: Any = None

    def run(self, agent: AgentManager) -> AgentManager:
        """Start an agent that has not begun."""
        agent.init_host()
        self._server = self.transport.serve(AGENT_TOPIC, agent.host, agent, agent.rpc_version)
        self._server.start()
        agent.start()
        return agent

    def end(self, agent: AgentManager) -> None:
        """The agent's process ends, so that another can begin."""
        if self._server is not None:
            self._server.stop()
            self._server = None
        agent.stop()
        self._agents.remove(agent)

    def end_all(self) -> None:
        for agent in list(self._agents):
            self.end(agent)
