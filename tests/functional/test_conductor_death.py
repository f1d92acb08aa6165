"""A conductor that dies at any write of a bind or an unbind, before or after it was applied."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from agentworld import SANITIZING, SECRET, AgentWorld
from sqlalchemy.engine import Connection

from autoclave.conductor.manager import ConductorManager
from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db.engine import Database
from autoclave.lifecycle.ports import Ports
from autoclave.placement.client import PlacementClient
from autoclave.placement.records import ConsumerAllocations
from autoclave.placement.transport import wsgi_adapter
from autoclave.rules.arq_states import ARQState
from autoclave.rules.device_states import DeviceState
from dbfixtures import make_arq

INSTANCE = "7d1b3cd6-6b6d-4f35-9b0c-2b1f6a2f4a01"
BIND_WRITES = 4
"""BindStarted; the swap; reserved=total; Bound."""
UNBIND_WRITES = 2
"""Deleting; gone. The bind has settled."""


class Death(BaseException):
    """Not an Exception: a dead process handles none."""


class Mortality:
    """Counts the writes of one conductor, and ends it at one of them."""

    def __init__(self, at: int, *, applied: bool) -> None:
        self._left = at
        self._applied = applied
        self.dead = False

    @contextmanager
    def write(self) -> Iterator[None]:
        self.alive()
        self._left -= 1
        if self._left == 0 and not self._applied:
            self.dead = True
            raise Death
        yield
        if self._left == 0:
            self.dead = True
            raise Death

    def alive(self) -> None:
        if self.dead:
            raise Death


class MortalDatabase(Database):
    def __init__(self, url: Any, mortality: Mortality) -> None:
        super().__init__(url)
        self._mortality = mortality

    @contextmanager
    def write(self) -> Iterator[Connection]:
        with self._mortality.write(), super().write() as tx:
            yield tx

    @contextmanager
    def read(self) -> Iterator[Connection]:
        self._mortality.alive()
        with super().read() as tx:
            yield tx


def mortal_placement(app: Any, mortality: Mortality) -> PlacementClient:
    def struck(environ: Any, start_response: Any) -> Any:
        mortality.alive()
        if environ["REQUEST_METHOD"] == "GET":
            return app(environ, start_response)
        with mortality.write():
            return app(environ, start_response)

    return PlacementClient(wsgi_adapter(struck))


class Tenant:
    """One instance of Nova's: allocation, request, guest."""

    def __init__(self, world: AgentWorld) -> None:
        self.world = world
        device = world.device()
        with world.db.write() as tx:
            (self.deployable,) = device_rows.deployables_of(tx, [device.id])
            self.arq = make_arq(tx).uuid
        self.request = {
            "arq_uuid": self.arq,
            "hostname": device.hostname,
            "device_rp_uuid": self.deployable.rp_uuid,
            "instance_uuid": INSTANCE,
        }
        held = {self.deployable.rp_uuid: {self.deployable.resource_class: 1}}
        world.placement.put_allocations(
            ConsumerAllocations(INSTANCE, held, None, project_id=str(uuid.uuid4()), user_id="u")
        )

    def state(self) -> ARQState | None:
        with self.world.db.read() as tx:
            arq = arq_rows.get(tx, self.arq)
        return arq.state if arq else None

    def assert_promises(self) -> None:
        """What Placement would offer is clean, and available or held by a bind that no guest has seen."""
        used = sum(self.world.placement.get_usages(self.deployable.rp_uuid).values())
        if self.world.inventory().reserved + used >= 1:
            return
        device = self.world.device()
        assert not self.world.sim.find(SANITIZING, SECRET), "offered dirty"
        unfinished = self.state() in (ARQState.BIND_STARTED, ARQState.DELETING)
        assert device.device_state is DeviceState.AVAILABLE or (
            device.device_state is DeviceState.ALLOCATED and unfinished
        )


def conductor(world: AgentWorld, mortality: Mortality | None = None) -> ConductorManager:
    ports = world.ports
    if mortality is not None:
        url = world.db.writer_engine.url
        ports = Ports(
            MortalDatabase(url.render_as_string(hide_password=False), mortality),
            mortal_placement(world.faults, mortality),
            world.ports.cleaners,
        )
    return ConductorManager(ports, "conductor-1", 240)


def recover(world: AgentWorld, agent: Any) -> None:
    """Another conductor sweeps after the lease; messages arrive; the agent's period comes; errors are cleaned."""
    later = replace(world.ports, clock=lambda: world.ports.clock() + timedelta(hours=1))
    ConductorManager(later, "conductor-2", 240).sweep()
    while world.casts.pending:
        world.casts.deliver()
    agent.period()
    world.outcome()


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, BIND_WRITES + 1))
def test_a_bind_that_dies_at_any_write_offers_nothing_dirty_and_loses_no_drive(
    world: AgentWorld,
    at: int,
    applied: bool,
) -> None:
    agent = world.start()
    tenant = Tenant(world)
    mortality = Mortality(at, applied=applied)
    with pytest.raises(Death):
        conductor(world, mortality).arq_bind(world.context, [tenant.request])
    assert mortality.dead
    tenant.assert_promises()
    if tenant.state() is not ARQState.BOUND:
        world.placement.delete_allocations(INSTANCE)  # Nova has no answer, and gives up
        tenant.assert_promises()

    recover(world, agent)

    tenant.assert_promises()
    if tenant.state() is ARQState.BOUND:
        assert world.device().device_state is DeviceState.ALLOCATED
        assert world.inventory().reserved == 1
    else:
        world.assert_offered()


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, UNBIND_WRITES + 1))
def test_an_unbind_that_dies_at_any_write_ends_in_a_clean_drive_that_is_offered(
    world: AgentWorld,
    at: int,
    applied: bool,
) -> None:
    agent = world.start()
    tenant = Tenant(world)
    conductor(world).arq_bind(world.context, [tenant.request])
    world.sim.fill(SANITIZING, SECRET)
    mortality = Mortality(at, applied=applied)
    with pytest.raises(Death):
        conductor(world, mortality).arq_delete(world.context, [tenant.arq])
    assert mortality.dead
    tenant.assert_promises()
    world.placement.delete_allocations(INSTANCE)  # Nova goes on regardless
    tenant.assert_promises()
    if tenant.state() is ARQState.BOUND:
        conductor(world).arq_delete(world.context, [tenant.arq])  # nothing had happened: Nova asks again

    recover(world, agent)

    assert tenant.state() is None
    assert not world.sim.find(SANITIZING, SECRET)
    world.assert_offered()
