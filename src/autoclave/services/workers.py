"""Run the agent service of a host, and the conductor service.

The conductor answers RPC, sweeps, notifies Nova of binds, and looks for servers that Nova has deleted.
"""

import os
import signal
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from datetime import timedelta
from typing import Any

from oslo_config import cfg

from autoclave.agent.compute.functions import FunctionUsers
from autoclave.agent.compute.host import ComputeParts
from autoclave.agent.manager import AgentManager
from autoclave.conductor.binding import Unbinder
from autoclave.conductor.compute import Compute
from autoclave.conductor.manager import ConductorManager
from autoclave.conductor.nova_events import Teller
from autoclave.conductor.orphans import Orphans
from autoclave.conf.agent import patience_with_agents
from autoclave.drivers.loader import load_drivers
from autoclave.hardware.host import HostPaths
from autoclave.hardware.sysfs import read_hints
from autoclave.lifecycle.guests_seen import GuestsSeen
from autoclave.lifecycle.ports import Ports
from autoclave.nova.client import NovaClient, http_adapter
from autoclave.nova.servers import NovaServers
from autoclave.rpc import conductor_api
from autoclave.rpc.agent_api import AgentAPI
from autoclave.rpc.conductor_api import ConductorAPI
from autoclave.rpc.notifications import notifications_of
from autoclave.rpc.port import AGENT_TOPIC, CONDUCTOR_TOPIC, Transport
from autoclave.rules.pci_alias import parse_pci_alias
from autoclave.services.hosts import host_name, host_paths
from autoclave.services.service import Periodic
from autoclave.virt.driver import load_compute_driver


class AgentService:
    """Run an agent in the specification's order: ``init_host``, RPC server, recovery, first discovery, period.

    A separate thread reports liveness, independent of their duration.

    :param phase: from 0 to 1, the part of the interval before the first period; agents that share a machine take
        turns.
    :param turn: held while the agent registers its host; agents that share a data directory must not do so
        concurrently.
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
        """Start the agent; see the class.

        :raises AutoclaveError: this host cannot be served.
        """
        with self._turn:
            self._manager.init_host()
        self._heartbeat.start()
        self._server.start()
        self._manager.start()
        self._period.start()

    def stop(self) -> None:
        """Stop at once. A clean in progress is recorded: the next start finds it and moves it to error."""
        self._period.stop()
        self._heartbeat.stop()
        self._server.stop()
        self._server.wait()  # current messages are recorded, and its queues are released
        self._manager.stop()  # last: a message accepted after that would be recorded, but not carried out
        if self._notifications is not None:
            self._notifications.close()


def compute_parts(conf: cfg.ConfigOpts, paths: HostPaths, transport: Transport) -> ComputeParts:
    """Return the parts that run the instances of a host.

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


_SERVER = "any"
"""Name the server of all conductors on the bus.

No message addresses a particular conductor, and RabbitMQ keeps a queue for every name. A name for each run would
leave a queue behind each time.
"""


class ConductorService:
    """Run one of any number of conductors.

    :param name: recorded in the history of devices.
    :raises InvalidConfiguration: ``[nova]`` or ``[pci] alias`` cannot be used.
    """

    def __init__(self, conf: cfg.ConfigOpts, ports: Ports, transport: Transport, name: str) -> None:
        nova = http_adapter(conf)
        telling = _telling(conf, ports, name, nova)
        self._manager = ConductorManager(
            replace(ports, tells_nova=telling is not None),
            name,
            conf.conductor.bind_lease,
            resolved=telling.soon if telling else lambda: None,
            compute=_compute(conf, ports, transport, name),
        )
        self._server = transport.serve(CONDUCTOR_TOPIC, _SERVER, self._manager, conductor_api.VERSION)
        self._rounds = [Periodic(f"sweep of {name}", conf.conductor.sweep_interval, self._manager.sweep)]
        if telling:
            self._rounds.append(telling)
        if nova is not None and conf.nova.orphan_patience:
            self._rounds.append(_looking(conf, ports, transport, name, nova))

    def start(self) -> None:
        """Reconcile rows of an older release, take messages, sweep, and notify and query Nova."""
        self._manager.init_host()
        self._server.start()
        for periodic in self._rounds:
            periodic.start()

    def stop(self) -> None:
        """Finish the current work. Another conductor or the next run sends the remaining events to Nova."""
        for periodic in self._rounds:
            periodic.stop()
        self._server.stop()
        self._server.wait()


def _compute(conf: cfg.ConfigOpts, ports: Ports, transport: Transport, name: str) -> Compute | None:
    """Return the work for instances; None if the conductor runs none."""
    if not conf.compute.enabled:
        return None
    return Compute(
        ports,
        transport,
        name,
        parse_pci_alias(conf.pci.alias),
        patience_with_agents(conf),
        conf.conductor.bind_lease,
    )


def _telling(conf: cfg.ConfigOpts, ports: Ports, name: str, nova: Any) -> Periodic | None:
    """Return the notifier of Nova; None without Nova."""
    if nova is None:
        return None
    teller = Teller(ports, NovaClient(nova), conf.nova.arq_binding_timeout)
    return Periodic(f"events of {name} for Nova", conf.conductor.sweep_interval, teller.tell)


def _looking(conf: cfg.ConfigOpts, ports: Ports, transport: Transport, name: str, nova: Any) -> Periodic:
    """Return the periodic search for devices of servers that Nova has deleted without a notice."""
    guests = GuestsSeen(ports, AgentAPI(transport), patience_with_agents(conf))
    unbinder = Unbinder(ports, name, conf.conductor.bind_lease)
    patience = conf.nova.orphan_patience
    orphans = Orphans(ports, NovaServers(nova), guests, unbinder, name, timedelta(seconds=patience))
    return Periodic(f"look of {name} for deleted servers", patience / 2, orphans.look)
