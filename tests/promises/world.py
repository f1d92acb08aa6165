"""A cloud around the real conductor, agent and lifecycle, in which everything happens when somebody says so."""

import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from autoclave.agent.cleaning import Cleanup
from autoclave.agent.device_tree import RootProvider
from autoclave.agent.discovery import Discovery
from autoclave.agent.recovery import Recovery
from autoclave.conductor.binding import Unbinder
from autoclave.conductor.manager import ConductorManager
from autoclave.conductor.orphans import Orphans
from autoclave.db import agents
from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db.agents import AgentRecord
from autoclave.db.devices import DeployableRecord, DeviceRecord
from autoclave.db.engine import Database
from autoclave.drivers.base import Driver
from autoclave.exceptions import AutoclaveError, PlacementError, PlacementNotFound
from autoclave.hardware.journal import ToolJournal
from autoclave.lifecycle.guests_seen import GuestsSeen
from autoclave.lifecycle.ports import Ports, RPCCleaners
from autoclave.lifecycle.sweep import pay_debts
from autoclave.lifecycle.transitions import Cause
from autoclave.objects.base import Device, RequestContext
from autoclave.placement.client import PlacementClient
from autoclave.placement.transport import wsgi_adapter
from autoclave.rpc.agent_api import AgentAPI
from autoclave.rpc.inprocess import InProcessTransport
from autoclave.rpc.port import AGENT_TOPIC
from autoclave.rules.device_lifecycle import Actor as Who
from autoclave.rules.device_lifecycle import ARQState
from autoclave.testing.nova import FakeNova, FakeServer
from autoclave.testing.ports import HeldCasts
from nova_double import servers_within
from promises.checks import Meddling, Watch
from promises.gates import Actor, GatedDatabase, GatedNova, GatedPlacement, Stage
from promises.host import CARD, NVME, Cards, Drives, Entry, Host, Locks
from promises.simulated import SIMULATED, SimulatedSlot

LEASE = 240
OPERATOR = Cause(Who.OPERATOR, "olga", reason="in the rehearsal")
PATIENCE = timedelta(seconds=LEASE)
"""Between two lookups that find a server deleted."""
NEW, OLD = "1.3", "1.0"
"""RPC versions of an agent; an old one cannot clean."""


class World:
    """``host`` is the truth about the drives, which the code under test cannot see.

    :param directory: for what the agent keeps.
    :param db: a migrated database; it is emptied.
    :param app: a Placement, real or its double; providers of other worlds in it do not matter.
    :param drivers: the driver of each of the host's devices.
    """

    def __init__(self, directory: Path, db: GatedDatabase, app: Any, drivers: Sequence[str] = (NVME,)) -> None:
        self.stage = Stage()
        self.db = db
        db.empty_for(self.stage)
        self.app = GatedPlacement(app, self.stage)
        self.placement = PlacementClient(wsgi_adapter(self.app))
        self.now = datetime(2026, 1, 1)
        self.casts = HeldCasts()
        self.transport = InProcessTransport(casts=self.casts)
        self.ports = Ports(self.db, self.placement, RPCCleaners(self.transport), lambda: self.now)
        self.conductors = [ConductorManager(self.ports, f"conductor-{n}", LEASE) for n in (1, 2)]
        self.journal = ToolJournal(directory / "journal")
        self.hostname = f"compute-{uuid.uuid4().hex[:8]}"
        self.host = Host(drivers)
        self._root = directory / self.hostname
        for number, (address, driver) in enumerate(self.host.drivers.items()):
            if driver in SIMULATED:
                root, serial = self._root / str(number), f"S{number}"
                self.host.simulated[address] = SimulatedSlot(root, self, address, serial, SIMULATED[driver])
        self.entries: dict[str, Entry] = {}
        """The configuration, by address, where it is not as at first. An agent reads it when it starts."""
        self.tally: Counter[str] = Counter()
        self.meddling = Meddling()
        self.watch = Watch(self)
        self.nova = FakeNova()
        servers = servers_within(GatedNova(self.nova, self.stage))
        agents_seen = GuestsSeen(self.ports, AgentAPI(self.transport), timedelta(days=1000))
        self.lookers = [
            Orphans(self.ports, servers, agents_seen, Unbinder(self.ports, name, LEASE), name, PATIENCE)
            for name in ("conductor-1", "conductor-2")
        ]
        self.guests: set[str] = set()
        """The requests whose device a guest has seen."""
        self.instances: dict[str, list[str]] = {}
        """Nova's, with their requests."""
        self.vanished: set[str] = set()
        """Instances that Nova has deleted without deleting their requests."""
        self.recovering = False
        self.running: Actor | None = None
        self._runs = self._spawned = 0
        self.steps: list[str] = []
        self.devices: list[tuple[DeviceRecord, DeployableRecord]] = []
        self.agent = self.start_agent()
        self.agent.period()
        with Database.read(self.db) as tx:
            for device in sorted(device_rows.list_all(tx, hostname=self.hostname), key=lambda d: d.pci_address):
                [deployable] = device_rows.deployables_of(tx, [device.id])
                self.devices.append((device, deployable))
        self.check()

    def start_agent(self, version: str = NEW) -> "AgentRun":
        """A new process takes the place of the agent; the one before is dead."""
        if self._runs:
            self.agent.server.stop()
        self._runs += 1
        self.agent = AgentRun(self, f"run-{self._runs}", version)
        record = AgentRecord(self.hostname, f"run-{self._runs}", version, self.now, self.now)
        self.db.transact(lambda tx: agents.register(tx, record))
        return self.agent

    def close(self) -> None:
        self.stage.kill()
        self.transport.close()
        for slot in self.host.simulated.values():
            slot.close()
        shutil.rmtree(self._root, ignore_errors=True)

    # Actors

    def spawn(self, name: str, group: str, work: Callable[[], Any]) -> Actor:
        self._spawned += 1

        def tolerant() -> None:
            try:
                work()
            except AutoclaveError as error:  # what a service answers to its caller
                self.steps.append(f"  {name}: {type(error).__name__}")

        return self.stage.add(f"{name}-{self._spawned}", group, tolerant)

    def worker_of(self, device_uuid: str) -> Actor | None:
        # only the holder of the device's lock gets as far as the driver, and it is not at a gate
        return self.running if self.running is not None and self.running.device == device_uuid else None

    def run(self, actor: Actor, fate: str | None = None) -> None:
        self.steps.append(f"{actor.name} {actor.at}{' ' + fate if fate else ''}")
        self.running = actor
        self.stage.run(actor, fate)
        self.check()

    def kill(self, group: str) -> None:
        self.steps.append(f"{group} dies")
        for actor in [a for a in self.stage.actors if a.group == group]:
            self.running = actor
            actor.dead = True
            self.stage.run(actor)
        if group == "agent":
            self.end_looks(recorded=False)
        self.check()

    def end_looks(self, *, recorded: bool) -> None:
        for slot in self.host.simulated.values():
            slot.end_look(recorded=recorded)

    def check(self) -> None:
        """Both promises hold, or this raises :class:`promises.checks.Broken`."""
        self.watch.look()

    # What tests and Nova see, and how Nova gives back

    @property
    def writes(self) -> tuple[int, int]:
        """How much was written in the database, and in Placement."""
        return self.db.writes, self.app.writes

    def device(self, number: int = 0) -> DeviceRecord:
        with Database.read(self.db) as tx:
            found = device_rows.get(tx, self.devices[number][0].uuid)
        assert found is not None
        return found

    def free(self, deployable: DeployableRecord) -> int:
        """total - reserved - used, as Placement has it now; 0 where all is reserved, or nothing there."""
        resource_class = deployable.resource_class
        inventories = self.app.look(f"/resource_providers/{deployable.rp_uuid}/inventories")
        record = inventories["inventories"].get(resource_class) if inventories else None
        if record is None or record["reserved"] >= record["total"]:
            return 0
        used = self.app.look(f"/resource_providers/{deployable.rp_uuid}/usages")["usages"]
        return int(record["total"] - record["reserved"] - used.get(resource_class, 0))

    def arq_state(self, arq: str) -> ARQState | None:
        with Database.read(self.db) as tx:
            found = arq_rows.get(tx, arq)
        return found.state if found else None

    def add_instance(self, instance: str, arqs: list[str]) -> None:
        """Nova has a server with these requests."""
        self.instances[instance] = arqs
        self.nova.servers[instance] = FakeServer("p")

    def vanish(self, instance: str) -> None:
        """Nova deletes a server; no request to delete what it has ever arrives."""
        self.steps.append(f"server {instance} vanishes")
        self.tally["vanished"] += 1
        self.host.guests.pop(instance, None)
        self.vanished.add(instance)
        self.deallocate(instance)
        self.nova.servers[instance].status = "DELETED"

    def give_back(self, instance: str, conductor: ConductorManager) -> None:
        self.host.guests.pop(instance, None)
        for arq in self.instances[instance]:
            while self.arq_state(arq) not in (None, ARQState.DELETING):
                self.stage.after("deleting")
                try:
                    conductor.arq_delete(RequestContext.admin(), [arq])
                except AutoclaveError as error:
                    self.steps.append(f"  delete: {type(error).__name__}")
        self.deallocate(instance)
        self.nova.servers[instance].status = "DELETED"

    def deallocate(self, instance: str) -> None:
        while True:
            try:
                self.placement.delete_allocations(instance)
            except PlacementNotFound:
                return
            except PlacementError:
                continue
            return

    def let_time_pass(self) -> None:
        self.steps.append("time passes")
        self.now += timedelta(seconds=LEASE)


class AgentRun:
    """One process of the host's agent, as :class:`autoclave.agent.manager.AgentManager` puts it together."""

    def __init__(self, world: World, run_id: str, version: str) -> None:
        self._world = world
        self._entries = dict(world.entries)
        made = {NVME: Drives, CARD: Cards, **SIMULATED}
        served = {NVME, CARD, *world.host.drivers.values()}
        drivers: dict[str, Driver] = {name: made[name](world, self._entries) for name in sorted(served)}
        self.cleanup = Cleanup(
            world.ports,
            drivers,
            world.journal,
            host=world.hostname,
            run_id=run_id,
            timeout=3600,
            max_concurrent=2,
            sleep=lambda _s: world.stage.gate("sleep") and None,
            pool=_Workers(world),  # type: ignore[arg-type]
        )
        self.cleanup._locks = Locks(world.stage)
        self._recovery = Recovery(world.ports, self.cleanup, world.journal, host=world.hostname)
        self._discovery = Discovery(
            world.ports,
            drivers,
            self.cleanup,
            RootProvider(world.placement, world.hostname, create=True),
            host=world.hostname,
            run_id=run_id,
            clean_on_discovery=False,
            unreadable_patience=0.0,
        )
        self.server = world.transport.serve(AGENT_TOPIC, world.hostname, self, version)
        self.server.start()
        self.blind = False
        """Whether a driver could not look in this period."""

    def cleanup_device(self, context: RequestContext, device: Device) -> None:
        """The RPC API."""
        self.cleanup.request(context, device.uuid, device.state_version)

    def function_users(self, _context: RequestContext, addresses: list[str]) -> dict[str, list[str]]:
        """The RPC API."""
        host = self._world.host
        return {address: ["a guest"] if host.is_with_guest(address) else [] for address in addresses}

    def serves(self, address: str) -> bool:
        """Whether the configuration of this process has the device."""
        return self._entries.get(address) is not Entry.GONE

    def period(self) -> None:
        """Recovery's check, discovery, debts. If nothing failed, people's meddling is an excuse no more."""
        world, context = self._world, RequestContext.admin()
        period = world.meddling.period_begins(world.watch.rows)
        self.blind = False
        whole = True
        for step in (self._recovery.check, self._discovery.run):
            try:
                step(context)
            except AutoclaveError as error:
                world.steps.append(f"  period: {type(error).__name__}")
                whole = False
        pay_debts(world.ports, world.hostname)
        world.end_looks(recorded=whole)
        if whole and not self.blind:
            world.meddling.period_ended(period, world.watch.rows, self.serves)


class _Workers:
    """The agent's pool: each piece of work is an actor, or done at once outside of a history."""

    def __init__(self, world: World) -> None:
        self._world = world

    def submit(self, work: Callable[..., Any], context: RequestContext, pending: DeviceRecord, *more: Any) -> None:
        if self._world.recovering:
            work(context, pending, *more)
            return
        self._world.spawn("worker", "agent", lambda: work(context, pending, *more)).device = pending.uuid

    def shutdown(self, wait: bool) -> None:
        """Nothing runs that the stage does not end."""
