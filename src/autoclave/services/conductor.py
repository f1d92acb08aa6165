"""The conductor service: the RPC endpoint and the sweep."""

from oslo_config import cfg

from autoclave.conductor.manager import RPC_VERSION, ConductorManager
from autoclave.lifecycle.ports import Ports
from autoclave.rpc.port import CONDUCTOR_TOPIC, Transport
from autoclave.services.periodic import Periodic

_SERVER = "any"
"""The name of all of them on the bus. Nobody asks for a particular conductor, and RabbitMQ keeps a queue for every name
that it has ever heard: a name of its own for each run, or for each container, would leave one behind every time."""


class ConductorService:
    """One of any number of conductors.

    :param name: told in the history of devices.
    """

    def __init__(self, conf: cfg.ConfigOpts, ports: Ports, transport: Transport, name: str) -> None:
        self._manager = ConductorManager(ports, name, conf.conductor.bind_lease)
        self._server = transport.serve(CONDUCTOR_TOPIC, _SERVER, self._manager, RPC_VERSION)
        self._sweeper = Periodic(f"sweep of {name}", conf.conductor.sweep_interval, self._manager.sweep)

    def start(self) -> None:
        """Put rows of an older release right, take messages, and sweep."""
        self._manager.init_host()
        self._server.start()
        self._sweeper.start()

    def stop(self) -> None:
        """Finish what was begun."""
        self._sweeper.stop()
        self._server.stop()
        self._server.wait()
