"""The agent service of one host."""

import os
import signal

from oslo_config import cfg

from autoclave.agent.manager import AgentManager
from autoclave.drivers.loader import load_drivers
from autoclave.lifecycle.ports import Ports
from autoclave.rpc.port import AGENT_TOPIC, Transport
from autoclave.services.hosts import host_name, host_paths
from autoclave.services.periodic import Periodic


class AgentService:
    """In the specification's order: ``init_host``, the RPC server, recovery, the first discovery, the period."""

    def __init__(self, conf: cfg.ConfigOpts, ports: Ports, transport: Transport) -> None:
        drivers = load_drivers(conf, host_paths(conf))
        host = host_name(conf)
        self._manager = AgentManager(conf, ports, host, {driver.name: driver for driver in drivers}, end=_end)
        self._server = transport.serve(AGENT_TOPIC, host, self._manager, self._manager.rpc_version)
        self._period = Periodic(f"period of {host}", conf.agent.periodic_interval, self._manager.period)

    def start(self) -> None:
        """Start; see the class.

        :raises AutoclaveError: this host cannot be served.
        """
        self._manager.init_host()
        self._server.start()
        self._manager.start()
        self._period.start()

    def stop(self) -> None:
        """Stop at once. A clean in progress is recorded: the next start finds it and puts it into error."""
        self._period.stop()
        self._server.stop()
        self._server.wait()  # a message begun only records what it asks for; and then its queues are let go of
        self._manager.stop()  # last: a message taken after that would record what no worker does


def _end() -> None:
    """End this process as its service manager would."""
    os.kill(os.getpid(), signal.SIGTERM)
