"""The conductor service: the RPC endpoint, the sweep, and what it reports to Nova and asks it."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from oslo_config import cfg

from autoclave.conductor.binding import Unbinder
from autoclave.conductor.compute import Compute
from autoclave.conductor.manager import ConductorManager
from autoclave.conductor.nova_events import Teller
from autoclave.conductor.orphans import Orphans
from autoclave.conf.agent import patience_with_agents
from autoclave.lifecycle.guests_seen import GuestsSeen
from autoclave.lifecycle.ports import Ports
from autoclave.nova.client import NovaClient, http_adapter
from autoclave.nova.servers import NovaServers
from autoclave.rpc import conductor_api
from autoclave.rpc.agent_api import AgentAPI
from autoclave.rpc.port import CONDUCTOR_TOPIC, Transport
from autoclave.rules.pci_alias import parse_pci_alias
from autoclave.services.periodic import Periodic

_SERVER = "any"
"""The name of all of them on the bus. Nobody asks for a particular conductor, and RabbitMQ keeps a queue for every name
that it has ever heard: a name of its own for each run, or for each container, would leave one behind every time."""


class ConductorService:
    """One of any number of conductors.

    :param name: told in the history of devices.
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
        """Put rows of an older release right, take messages, sweep, and tell and ask Nova."""
        self._manager.init_host()
        self._server.start()
        for periodic in self._rounds:
            periodic.start()

    def stop(self) -> None:
        """Finish what was begun. What Nova was not told by then, another conductor will tell it, or the next run."""
        for periodic in self._rounds:
            periodic.stop()
        self._server.stop()
        self._server.wait()


def _compute(conf: cfg.ConfigOpts, ports: Ports, transport: Transport, name: str) -> Compute | None:
    """What it does for instances; None if it does nothing for them."""
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
    """What tells Nova; None if there is no Nova to be told."""
    if nova is None:
        return None
    teller = Teller(ports, NovaClient(nova), conf.nova.arq_binding_timeout)
    return Periodic(f"events of {name} for Nova", conf.conductor.sweep_interval, teller.tell)


def _looking(conf: cfg.ConfigOpts, ports: Ports, transport: Transport, name: str, nova: Any) -> Periodic:
    """What looks for devices of servers that Nova has deleted without a word."""
    guests = GuestsSeen(ports, AgentAPI(transport), patience_with_agents(conf))
    unbinder = Unbinder(ports, name, conf.conductor.bind_lease)
    patience = conf.nova.orphan_patience
    orphans = Orphans(ports, NovaServers(nova), guests, unbinder, name, timedelta(seconds=patience))
    return Periodic(f"look of {name} for deleted servers", patience / 2, orphans.look)
