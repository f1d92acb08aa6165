"""An instance on a host with an agent, and the conductors that serve it."""

import uuid
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from agentworld import SANITIZING, SECRET, AgentWorld

from autoclave.agent.manager import AgentManager
from autoclave.conductor.manager import ConductorManager
from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.lifecycle.ports import Ports
from autoclave.placement.records import ConsumerAllocations
from autoclave.rules.device_lifecycle import ARQState
from dbfixtures import make_arq


class Tenant:
    """One instance of Nova's: its allocation and its requests, one for each drive."""

    def __init__(self, world: AgentWorld, *addresses: str, claim: bool = True) -> None:
        """:param claim: whether it has an allocation, as Nova's instances have, or was made by hand."""
        self.instance = str(uuid.uuid4())
        self.requests: list[dict[str, str]] = []
        self._world = world
        self._addresses = addresses or (SANITIZING,)
        held = {}
        with world.db.write() as tx:
            for address in self._addresses:
                device = world.device(address)
                (deployable,) = device_rows.deployables_of(tx, [device.id])
                held[deployable.rp_uuid] = {deployable.resource_class: 1}
                self.requests.append(
                    {
                        "arq_uuid": make_arq(tx).uuid,
                        "hostname": device.hostname,
                        "device_rp_uuid": deployable.rp_uuid,
                        "instance_uuid": self.instance,
                    }
                )
        if claim:
            world.onlooker.put_allocations(
                ConsumerAllocations(self.instance, held, None, project_id=str(uuid.uuid4()), user_id="u")
            )

    @property
    def arqs(self) -> list[str]:
        return [request["arq_uuid"] for request in self.requests]

    def states(self) -> set[ARQState]:
        """The states of its requests; none if they are gone."""
        with self._world.db.read() as tx:
            return {arq.state for arq in arq_rows.get_many(tx, self.arqs)}

    def bind(self, ports: Ports | None = None) -> None:
        conductor(self._world, ports).arq_bind(self._world.context, self.requests)

    def write(self) -> None:
        """The guest runs, and writes on its drives."""
        assert self.states() == {ARQState.BOUND}
        for address in self._addresses:
            self._world.sim.fill(address, SECRET)

    def delete(self, ports: Ports | None = None) -> None:
        """Delete the requests; Nova gives up the allocation afterwards, see :meth:`give_up`."""
        conductor(self._world, ports).arq_delete(self._world.context, self.arqs)

    def give_up(self) -> None:
        """The allocation goes."""
        self._world.onlooker.delete_allocations(self.instance)


def conductor(world: AgentWorld, ports: Ports | None = None) -> ConductorManager:
    """A conductor; with *ports*, it sees the world through those."""
    return ConductorManager(ports or world.ports, "conductor-1", 240)


def assert_promises(world: AgentWorld, addresses: Sequence[str] = (SANITIZING,)) -> None:
    """Both promises, for each drive."""
    for address in addresses:
        world.assert_promises(address)


def recover(world: AgentWorld, agent: AgentManager, addresses: Sequence[str] = (SANITIZING,)) -> None:
    """Another conductor sweeps after the lease; messages arrive; the agent's period comes, and its cleans end."""
    later = replace(world.ports, clock=lambda: world.ports.clock() + timedelta(hours=1))
    ConductorManager(later, "conductor-2", 240).sweep()
    while world.casts.pending:
        world.casts.deliver()
    agent.period()
    for address in addresses:
        world.outcome(address)
