"""A simulated cloud around the real conductor, agent and lifecycle; who goes next, a seed decides."""

import random
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from autoclave.agent.cleanup import Cleanup
from autoclave.agent.recovery import Recovery
from autoclave.conductor.manager import ConductorManager
from autoclave.conf import new_config
from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db.devices import DeployableRecord, DeviceRecord
from autoclave.db.engine import Database
from autoclave.db.tables import metadata
from autoclave.drivers.base import AttachHandle, CleanableDevice, CleanupControl, DiscoveredDevice, Driver, Evidence
from autoclave.exceptions import (
    AutoclaveError,
    HardwareError,
    PlacementError,
    PlacementNotFound,
)
from autoclave.hardware.host import HostPaths
from autoclave.hardware.journal import ToolJournal
from autoclave.lifecycle import holds
from autoclave.lifecycle.agents import RPCCleaners
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.register import register
from autoclave.lifecycle.settle import settle
from autoclave.lifecycle.swap import Cause
from autoclave.lifecycle.sweep import pay_debts
from autoclave.objects.context import RequestContext
from autoclave.objects.device import Device
from autoclave.placement.client import PlacementClient
from autoclave.placement.records import ConsumerAllocations
from autoclave.placement.transport import wsgi_adapter
from autoclave.rpc.casts import HeldCasts
from autoclave.rpc.inprocess import InProcessTransport
from autoclave.rpc.port import AGENT_TOPIC
from autoclave.rules.arq_states import ARQState
from autoclave.rules.device_states import Actor as Who
from autoclave.rules.device_states import DeviceState
from dbfixtures import make_arq
from promises.gates import Actor, Died, GatedDatabase, GatedPlacement, Stage

HOST = "compute-1"
CLASS = "CUSTOM_NVME_144D_A808"
LEASE = 240
OPERATOR = Cause(Who.OPERATOR, "olga", reason="in the rehearsal")


class Broken(AssertionError):
    """A promise was broken."""


class _Eraser(Driver):
    """Erases the flag that says that a guest has written."""

    name = "nvme_driver"

    def __init__(self, world: "World") -> None:
        super().__init__(new_config((), {}), HostPaths())
        self._world = world

    def cleanup(self, device: CleanableDevice, control: CleanupControl | None = None) -> Evidence:
        world = self._world
        # The agent runs us in a thread of our own; we go on in the name of the worker that waits for us.
        world.stage.here.actor = world.worker_of(device.uuid)
        world.erasing.add(device.uuid)
        try:
            fate = world.stage.gate("erase")
            if fate is not None:
                raise HardwareError("the erase failed, as arranged")
            world.dirty.discard(device.uuid)
            world.stage.gate("erased")
        except Died:
            raise HardwareError("the process is dead") from None
        finally:
            world.erasing.discard(device.uuid)
        return {"method": "rehearsed"}


class _Workers:
    """The agent's pool: each piece of work is an actor, or done at once outside of a history."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def submit(self, work: Callable[..., Any], context: RequestContext, pending: DeviceRecord) -> None:
        if self._world.recovering:
            work(context, pending)
            return
        self._world.spawn("worker", "agent", lambda: work(context, pending)).device = pending.uuid

    def shutdown(self, wait: bool) -> None:
        """Nothing runs that the stage does not end."""


class _Agent:
    """The agent's RPC endpoint; the process behind it may be another one each time."""

    def __init__(self, world: "World") -> None:
        self._world = world

    def cleanup_device(self, context: RequestContext, device: Device) -> None:
        self._world.cleanup.request(context, device.uuid, device.state_version)


class World:
    """One history. ``dirty`` is the truth about the drives, which the code under test cannot see.

    :param app: a Placement, real or its double; providers of other histories in it do not matter.
    """

    def __init__(self, directory: Path, database: Path, app: Any, devices: int = 1) -> None:
        self.stage = Stage()
        self.db = GatedDatabase(f"sqlite:///{database}", self.stage)
        sa.event.listen(self.db.writer_engine, "connect", lambda c, _r: c.execute("PRAGMA synchronous=OFF"))
        with Database.write(self.db) as tx:
            for table in reversed(metadata.sorted_tables):
                tx.execute(table.delete())
        self.app = GatedPlacement(app, self.stage)
        self.placement = PlacementClient(wsgi_adapter(self.app))
        self.now = datetime(2026, 1, 1)
        self.casts = HeldCasts()
        self.transport = InProcessTransport(casts=self.casts)
        self.transport.serve(AGENT_TOPIC, HOST, _Agent(self), "1.1").start()
        self.ports = Ports(self.db, self.placement, RPCCleaners(self.transport), lambda: self.now)
        self.conductors = [ConductorManager(self.ports, f"conductor-{n}", LEASE) for n in (1, 2)]
        self.journal = ToolJournal(directory / "journal")
        self.dirty: set[str] = set()
        self.erasing: set[str] = set()
        self.guests: set[str] = set()
        self.instances: dict[str, str] = {}
        self.recovering = False
        self._runs = self._spawned = 0
        self._seen = (-1, -1)
        self._offered: dict[str, int] = {}
        self._rows: dict[str, tuple[Any, list[Any]]] = {}
        self.steps: list[str] = []
        self.devices = [self._add_device(n) for n in range(devices)]
        self.start_agent()
        self.check()

    def _add_device(self, number: int) -> tuple[DeviceRecord, DeployableRecord]:
        address = f"0000:0{number + 1}:00.0"
        found = DiscoveredDevice(
            pci_address=address,
            device_type="NVME",
            vendor="144d",
            product="a808",
            resource_class=CLASS,
            traits=[],
            attach_handles=[AttachHandle("PCI", {"bus": f"0{number + 1}"}, address)],
            std_board_info={"product_id": "a808", "pci_address": address},
            serial=f"S{number}",
            drive_model="Model",
            cleanup_action="sanitize_crypto",
        )
        with self.db.write() as tx:
            cause = Cause(Who.AGENT, HOST)
            made = register(tx, HOST, "nvme_driver", found, None, cause, clean_on_discovery=False, run_id="run-0")
            [deployable] = device_rows.deployables_of(tx, [made.id])
        self.placement.create_provider(deployable.rp_uuid, f"{deployable.name}_{deployable.rp_uuid}")
        self.placement.ensure_resource_class(CLASS)
        settle(self.db, self.placement, made.uuid)
        return made, deployable

    def start_agent(self) -> Recovery:
        self._runs += 1
        self.cleanup = Cleanup(
            self.ports,
            {"nvme_driver": _Eraser(self)},
            self.journal,
            host=HOST,
            run_id=f"run-{self._runs}",
            timeout=3600,
            max_concurrent=2,
            sleep=lambda _s: self.stage.gate("sleep") and None,
            pool=_Workers(self),  # type: ignore[arg-type]
        )
        self.recovery = Recovery(self.ports, self.cleanup, self.journal, host=HOST)
        return self.recovery

    def close(self) -> None:
        self.stage.kill()
        self.transport.close()
        self.db.dispose()

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

    running: Actor | None = None

    def client(self, rng: random.Random) -> Callable[[], None]:
        """An instance's life as Nova leads it; *rng* says when it gives up."""

        def life() -> None:
            _device, deployable = rng.choice(self.devices)
            instance = str(uuid.uuid4())
            self.instances[instance] = ""
            claim = ConsumerAllocations(instance, {deployable.rp_uuid: {CLASS: 1}}, project_id="p", user_id="u")
            try:
                self.placement.put_allocations(claim)
            except PlacementError:
                self._deallocate(instance)
                return
            with self.db.write() as tx:
                arq = make_arq(tx, project_id="p").uuid
                self.instances[instance] = arq
            request = {
                "arq_uuid": arq,
                "hostname": HOST,
                "device_rp_uuid": deployable.rp_uuid,
                "instance_uuid": instance,
            }
            number = rng.randrange(2)
            self.spawn(
                "bind",
                f"conductor-{number}",
                lambda: self.conductors[number].arq_bind(RequestContext.admin(), [request]),
            )
            patience = rng.choice((0, 2, 5, 10, 20, 20, 20))
            for _ in range(patience):
                self.stage.gate("waiting")
                state = self._arq_state(arq)
                if state is ARQState.BOUND:
                    self.guests.add(arq)
                    self.dirty.add(_device.uuid)
                    break
                if state is ARQState.BIND_FAILED:
                    break
            self.stage.gate("lived")
            self.give_back(instance, rng.choice(self.conductors))

        return life

    def give_back(self, instance: str, conductor: ConductorManager) -> None:
        arq = self.instances[instance]
        while arq and self._arq_state(arq) not in (None, ARQState.DELETING):
            self.stage.gate("deleting")
            try:
                conductor.arq_delete(RequestContext.admin(), [arq])
            except AutoclaveError as error:
                self.steps.append(f"  delete: {type(error).__name__}")
        self._deallocate(instance)

    def _arq_state(self, arq: str) -> ARQState | None:
        with Database.read(self.db) as tx:
            found = arq_rows.get(tx, arq)
        return found.state if found else None

    def _deallocate(self, instance: str) -> None:
        while True:
            try:
                self.placement.delete_allocations(instance)
            except PlacementNotFound:
                return
            except PlacementError:
                continue
            return

    def device(self, number: int = 0) -> DeviceRecord:
        with Database.read(self.db) as tx:
            found = device_rows.get(tx, self.devices[number][0].uuid)
        assert found is not None
        return found

    def clean_again(self, number: int) -> None:
        with self.db.read() as tx:
            found = device_rows.get(tx, self.devices[number][0].uuid)
        if found is not None and found.device_state is DeviceState.ERROR:
            self.ports.cleaners.clean(RequestContext.admin(), found)

    # Steps

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
        self.check()

    def check(self) -> None:
        """Both promises, by looking at the database, Placement and the drives."""
        seen = (self.db.writes, self.app.writes)
        if seen[1] != self._seen[1]:
            for device, deployable in self.devices:
                self._offered[device.uuid] = self.free(deployable)
        if seen[0] != self._seen[0]:
            with Database.read(self.db) as tx:
                self._rows = {
                    device.uuid: (device_rows.get_by_id(tx, device.id), arq_rows.active_of_device(tx, device.id))
                    for device, _ in self.devices
                }
        self._seen = seen
        for device_uuid, (row, holders) in self._rows.items():
            assert row is not None
            clean = device_uuid not in self.dirty
            unseen = [arq for arq in holders if arq.uuid not in self.guests]
            if unseen and not clean:
                raise Broken(f"never bound dirty: {unseen[0].state} of a dirty device")
            if row.device_state is DeviceState.AVAILABLE and not clean:
                raise Broken("never bound dirty: available without being clean")
            if self._offered[device_uuid] > 0:
                unfinished = row.device_state is DeviceState.ALLOCATED and any(
                    arq.state in (ARQState.BIND_STARTED, ARQState.DELETING) for arq in unseen
                )
                if not clean or not (row.device_state is DeviceState.AVAILABLE or unfinished):
                    raise Broken(f"never offered dirty: offered while {row.device_state}, clean={clean}")
            if device_uuid in self.erasing and any(arq.state is ARQState.BOUND for arq in holders):
                raise Broken("erased while bound")

    def free(self, deployable: DeployableRecord) -> int:
        """total - reserved - used, as Placement has it now; nobody is asked to wait."""
        actor = getattr(self.stage.here, "actor", None)
        assert actor is None, "only the scheduler looks"
        record = self.placement.get_inventories(deployable.rp_uuid).records[CLASS]
        return record.total - record.reserved - self.placement.get_usages(deployable.rp_uuid).get(CLASS, 0)

    def history(self, seed: int, length: int) -> None:
        """*length* random steps, then recovery; everything is offered again at its end."""
        rng = random.Random(seed)
        for _ in range(length):
            choices = self._choices(rng)
            rng.choices([act for _, act in choices], [weight for weight, _ in choices])[0]()
        self.recover()

    def _choices(self, rng: random.Random) -> list[tuple[float, Callable[[], Any]]]:
        """What may happen next, and how likely it is."""
        choices: list[tuple[float, Callable[[], Any]]] = [
            (0.3 if actor.at == "waiting" else 1.0, lambda actor=actor: self.run(actor, self._fate(rng)))
            for actor in self.stage.actors
        ]
        if sum(a.group == "nova" for a in self.stage.actors) < 2:
            choices.append((0.3, lambda: self.spawn("nova", "nova", self.client(rng))))
        running = {actor.name.partition("-")[0] for actor in self.stage.actors}
        number = rng.randrange(len(self.devices))
        error = 0.3 if self._rows[self.devices[number][0].uuid][0].device_state is DeviceState.ERROR else 0.0
        for name, group, weight, work in (
            ("sweep", "conductor-1", 0.05, self.conductors[1].sweep),
            ("pay", "conductor-0", 0.03, lambda: pay_debts(self.ports)),
            ("check", "agent", 0.04, lambda: self.recovery.check(RequestContext.admin())),
            ("hold", "api", 0.01, lambda: holds.hold(self.ports, self.devices[number][0].uuid, OPERATOR)),
            ("release", "api", 0.03, lambda: holds.release(self.ports, self.devices[number][0].uuid, OPERATOR)),
            ("again", "api", error, lambda: self.clean_again(number)),
        ):
            if weight and name not in running:
                choices.append((weight, lambda n=name, g=group, w=work: self.spawn(n, g, w)))
        choices.append((0.04, self._let_time_pass))
        for group in ("agent", "conductor-0", "conductor-1", "nova"):
            if any(a.group == group for a in self.stage.actors):
                choices.append((0.008, lambda group=group: self._die(group)))
        if self.casts.pending:
            index = rng.randrange(len(self.casts.pending))
            choices.append((0.7, lambda: self._deliver(index)))
            choices.append((0.1, lambda: self.casts.drop(index)))
            if len(self.casts.pending) < 4:
                choices.append((0.3, lambda: self.casts.duplicate(index)))
        return choices

    def _fate(self, rng: random.Random) -> str | None:
        return rng.choices((None, "fail", "lose"), (0.96, 0.02, 0.02))[0]

    def _let_time_pass(self) -> None:
        self.steps.append("time passes")
        self.now += timedelta(seconds=LEASE)

    def _deliver(self, index: int) -> None:
        # The message is taken when its turn comes, not when the actor first runs.
        cast, deliver = self.casts._waiting.pop(index)
        self.spawn("deliver", "agent", lambda: deliver(cast))

    def _die(self, group: str) -> None:
        self.kill(group)
        if group == "agent":
            recovery = self.start_agent()
            self.spawn("check", "agent", lambda: recovery.check(RequestContext.admin()))

    def recover(self) -> None:
        """Everything starts again, nothing fails, Nova cleans up after itself: each device is offered."""
        for group in {actor.group for actor in self.stage.actors}:
            self.kill(group)
        self.steps.append("recovery")
        self.running, self.recovering = None, True
        context = RequestContext.admin()
        recovery = self.start_agent()
        recovery.check(context)
        self.check()
        for instance in self.instances:
            self.give_back(instance, self.conductors[0])
            self.check()
        self.now += timedelta(seconds=2 * LEASE)
        self.conductors[0].sweep()
        while self.casts.pending:
            self.casts.deliver()
            self.check()
        recovery.check(context)
        self.check()
        for number, (device, deployable) in enumerate(self.devices):
            holds.release(self.ports, device.uuid, OPERATOR)
            self.clean_again(number)
            while self.casts.pending:
                self.casts.deliver()
            self.conductors[0].sweep()
            self.check()
            row = self.device(number)
            with Database.read(self.db) as tx:
                held = [arq.state for arq in arq_rows.active_of_device(tx, row.id)]
            if row.device_state is not DeviceState.AVAILABLE or self.free(deployable) != 1:
                raise Broken(
                    f"never lost for good: {row.device_state} ({row.state_reason}), "
                    f"free={self.free(deployable)}, {held}"
                )
