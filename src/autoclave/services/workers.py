"""The agent service of one host."""

import os
import signal
from contextlib import AbstractContextManager, nullcontext

from oslo_config import cfg

from autoclave.agent.compute.functions import FunctionUsers
from autoclave.agent.compute.host import ComputeParts
from autoclave.agent.manager import AgentManager
from autoclave.drivers.loader import load_drivers
from autoclave.hardware.host import HostPaths
from autoclave.hardware.sysfs import read_hints
from autoclave.lifecycle.ports import Ports
from autoclave.rpc.conductor_api import ConductorAPI
from autoclave.rpc.notifications import notifications_of
from autoclave.rpc.port import AGENT_TOPIC, Transport
from autoclave.services.hosts import host_name, host_paths
from autoclave.services.periodic import Periodic
from autoclave.virt.driver import load_compute_driver


class AgentService:
    """In the specification's order: ``init_host``, the RPC server, recovery, the first discovery, the period.

    Beside them, and apart from how long they take, it says again and again that it is alive.

    :param phase: from 0 to 1, the part of the interval after which the first period begins: agents that share a
        machine take turns.
    :param turn: held while the agent takes its host: agents that share a data directory must not do that at once.
    """

    def __init__(
        self,
        conf: cfg.ConfigOpts,
        ports: Ports,
        transport: Transport,
        phase: float = 1.0,
        turn: AbstractContextManager[object] | None = None,
    ) -> None:
        self._turn = turn or nullcontext()
        paths = host_paths(conf)
        drivers = {driver.name: driver for driver in load_drivers(conf, paths)}
        host = host_name(conf)
        compute = compute_parts(conf, paths, transport) if conf.compute.enabled else None
        self._notifications = compute.notifications if compute else None
        hints = read_hints(paths)
        users = FunctionUsers(paths)
        self._manager = AgentManager(conf, ports, host, drivers, end=_end, users=users, compute=compute, hints=hints)
        self._server = transport.serve(AGENT_TOPIC, host, self._manager, self._manager.rpc_version)
        interval = conf.agent.periodic_interval
        self._heartbeat = Periodic(f"heartbeat of {host}", interval, self._manager.beat, interval * phase)
        self._period = Periodic(f"period of {host}", interval, self._manager.period, interval * phase)

    def start(self) -> None:
        """Start; see the class.

        :raises AutoclaveError: this host cannot be served.
        """
        with self._turn:
            self._manager.init_host()
        self._heartbeat.start()
        self._server.start()
        self._manager.start()
        self._period.start()

    def stop(self) -> None:
        """Stop at once. A clean in progress is recorded: the next start finds it and puts it into error."""
        self._period.stop()
        self._heartbeat.stop()
        self._server.stop()
        self._server.wait()  # a message begun only records what it asks for; and then its queues are let go of
        self._manager.stop()  # last: a message taken after that would record what no worker does
        if self._notifications is not None:
            self._notifications.close()


def compute_parts(conf: cfg.ConfigOpts, paths: HostPaths, transport: Transport) -> ComputeParts:
    """What the instances of a host are run with.

    :raises InvalidConfiguration: the hypervisor's driver, or the broker of notifications, cannot be used.
    """
    return ComputeParts(
        driver=load_compute_driver(conf),
        paths=paths,
        conductor=ConductorAPI(transport),
        notifications=notifications_of(conf),
    )


def _end() -> None:
    """End this process as its service manager would."""
    os.kill(os.getpid(), signal.SIGTERM)
