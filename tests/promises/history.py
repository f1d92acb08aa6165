"""A random history: who goes next, what fails and who dies, a seed decides. At its end, everything must come back."""

import random
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from autoclave.audit.auditor import Auditor, Scope
from autoclave.db import arqs as arq_rows
from autoclave.db import orphans
from autoclave.db.engine import Database
from autoclave.db.tables import DeviceStatus, device_events
from autoclave.lifecycle.sweep import pay_debts
from autoclave.objects.base import RequestContext
from autoclave.rules.audit.kinds import Kind
from autoclave.rules.device_lifecycle import DeviceState
from promises.checks import Broken
from promises.gates import Actor
from promises.host import NVME, Entry
from promises.people import Nova, Operator, Writer
from promises.simulated import Way
from promises.world import LEASE, NEW, OLD, PATIENCE, World

Choice = tuple[float, Callable[[], Any]]
"""What may happen next, and how likely it is beside the others."""

FALLS_ASLEEP = {"GET inventories": 0.15, "PUT inventories": 0.15, "db write": 0.06}
"""Where an actor stops for long, and how often. What it has read grows old; many a race needs just that."""
AWAKE, WAITING, ASLEEP, STARTLED = 1.0, 0.08, 0.02, 0.15
"""How likely an actor goes next. One that sleeps goes on most likely when another has just written something."""
GROUPS = ("agent", "conductor-0", "conductor-1", "nova")


class History:
    """*length* random steps in *world*, then recovery."""

    def __init__(self, world: World, seed: int) -> None:
        self._world = world
        self._rng = random.Random(seed)
        self._written = False
        self._late = 0

    def live(self, length: int) -> None:
        self._world.stage.fine = False
        for _ in range(length):
            choices = [*self._turns(), *self._beginnings(), *self._messages(), *self._mishaps(), *self._meddling()]
            choices += [*self._configuring(), *self._programs()]
            [(_, act)] = self._rng.choices(choices, [weight for weight, _ in choices])
            act()
        self._count()
        recover(self._world)

    def _count(self) -> None:
        query = sa.select(device_events.c.event, sa.func.count().label("number")).group_by(device_events.c.event)
        with Database.read(self._world.db) as tx:
            self._world.tally.update({row.event: row.number for row in tx.execute(query)})
        self._world.tally["settled"] += self._world.app.inventories

    def _turns(self) -> list[Choice]:
        asleep = STARTLED if self._written else ASLEEP
        return [
            (
                asleep if actor.asleep else WAITING if actor.at == "waiting" else AWAKE,
                lambda actor=actor: self._run(actor),
            )
            for actor in self._world.stage.actors
        ]

    def _run(self, actor: Actor) -> None:
        actor.asleep = False
        fate = self._fate(actor)
        before = self._world.writes
        self._world.run(actor, fate)
        self._written = self._world.writes != before
        actor.asleep = self._rng.random() < FALLS_ASLEEP.get(actor.at, 0.01)

    def _fate(self, actor: Actor) -> str | None:
        if actor.at == "erase" and self._rng.random() < 0.1:
            return "hang"
        [fate] = self._rng.choices((None, "fail", "lose"), (0.98, 0.01, 0.01))
        self._world.tally["failed calls"] += fate is not None
        return fate

    def _beginnings(self) -> list[Choice]:
        """Services begin what they do now and then, and people what they like."""
        world = self._world
        choices: list[Choice] = []
        if sum(actor.group == "nova" for actor in world.stage.actors) < 2:
            something_offered = any(world.watch.offered.values())
            life = Nova(world, self._rng).live
            choices.append((0.5 if something_offered else 0.004, lambda: world.spawn("nova", "nova", life)))
        operator = self._operator()
        error = operator.device.device_state is DeviceState.ERROR
        debt = operator.device.release_pending
        maintained = operator.device.status is DeviceStatus.MAINTAINING
        asking = 0.1 if world.vanished else 0.01
        running = {actor.name.partition("-")[0] for actor in world.stage.actors}
        for name, group, weight, work in (
            ("sweep", "conductor-1", 0.01, world.conductors[1].sweep),
            ("look", "conductor-0", asking, world.lookers[0].look),
            ("second", "conductor-1", asking, world.lookers[1].look),
            ("pay", "conductor-0", 0.2 if debt else 0.01, lambda: pay_debts(world.ports)),
            ("period", "agent", 0.01, lambda: world.agent.period()),
            ("hold", "api", 0.004, operator.hold),
            ("release", "api", 0.1 if operator.device.held else 0.002, operator.release),
            ("disable", "api", 0.004, operator.disable),
            ("enable", "api", 0.1 if maintained else 0.002, operator.enable),
            ("mend", "api", 0.3 if error else 0.0, operator.mend),
        ):
            if weight and name not in running:
                choices.append((weight, lambda n=name, g=group, w=work: world.spawn(n, g, w)))
        return choices

    def _operator(self) -> Operator:
        return Operator(self._world, self._rng.randrange(len(self._world.devices)))

    def _messages(self) -> list[Choice]:
        waiting = len(self._world.casts.pending)
        if not waiting:
            return []
        index = self._rng.randrange(waiting)
        delivery = 0.7 if waiting > self._late else 0.02
        choices: list[Choice] = [
            (delivery, lambda: self._deliver(index)),
            (0.05 * delivery, lambda: self._lose(index)),
        ]
        if waiting < 4:
            choices.append((0.2 if waiting > self._late else 0.0, lambda: self._double(index)))
        return choices

    def _lose(self, index: int) -> None:
        self._world.casts.drop(index)
        self._late = min(self._late, len(self._world.casts.pending))

    def _double(self, index: int) -> None:
        # One of the two comes much later than the other.
        self._world.casts.duplicate(index)
        self._late += 1

    def _deliver(self, index: int) -> None:
        # The message is taken when its turn comes, not when the actor first runs.
        cast, deliver = self._world.casts._waiting.pop(index)
        self._late = min(self._late, len(self._world.casts.pending))
        self._world.spawn("deliver", "agent", lambda: deliver(cast))

    def _mishaps(self) -> list[Choice]:
        choices: list[Choice] = [(0.02, self._world.let_time_pass)]
        for group in GROUPS:
            if any(actor.group == group for actor in self._world.stage.actors):
                choices.append((0.006, lambda group=group: self._die(group)))
        return choices

    def _die(self, group: str) -> None:
        self._world.tally["deaths"] += 1
        self._world.kill(group)
        if group == "agent":
            self._start_agent()

    def _start_agent(self) -> None:
        agent = self._world.start_agent(OLD if self._rng.random() < 0.2 else NEW)
        self._world.spawn("period", "agent", agent.period)

    def _meddling(self) -> list[Choice]:
        operator = self._operator()
        choices: list[Choice] = [
            (0.002, operator.raise_by_hand),
            (0.004, operator.lower_by_hand),
            (0.003, operator.delete_inventory),
            (0.003, operator.write_as_nova),
        ]
        if all(actor.group == "nova" and actor.at == "waiting" for actor in self._world.stage.actors):
            choices.append((0.01, operator.delete_provider))
        if self._world.host.drivers[operator.device.pci_address] == NVME:
            choices += [(0.003, operator.exchange_drive), (0.001, operator.pull_drive)]
        return choices

    def _configuring(self) -> list[Choice]:
        """The operator changes the configuration under whatever goes on, and starts the agent again or does not yet."""
        operator = self._operator()
        address = operator.device.pci_address
        changed = self._world.entries.get(address, Entry.FIRST) is not Entry.FIRST
        entry = Entry.FIRST if changed else self._rng.choice((Entry.OTHER, Entry.CONTRADICTORY, Entry.GONE))
        return [(0.04 if changed else 0.0025, lambda: self._configure(operator, entry))]

    def _configure(self, operator: Operator, entry: Entry) -> None:
        operator.edit_entry(entry)
        if self._rng.random() < 0.8:
            self._world.kill("agent")
            self._start_agent()

    def _programs(self) -> list[Choice]:
        """Programs of a simulated host come and go; much of it while an erase is at work."""
        choices: list[Choice] = []
        for number, (device, _) in enumerate(self._world.devices):
            if device.pci_address not in self._world.host.simulated:
                continue
            writer = Writer(self._world, number)
            at_work = writer.slot.at_work
            if writer.slot.program is not None:
                choices += [(0.4 if at_work else 0.02, writer.write), (0.1 if at_work else 0.03, writer.close)]
                continue
            way, often = self._rng.choice(list(Way)), 0.06 if at_work else 0.003
            choices.append((often, lambda writer=writer, way=way: writer.open(way)))
            choices.append((often, writer.write_and_close))
        return choices


def recover(world: World) -> None:
    """Everything starts again, nothing fails, Nova cleans up after itself, the operator mends what is in error.

    :raises Broken: a device is not offered afterwards, or an audit finds that the records do not agree.
    """
    for group in sorted({actor.group for actor in world.stage.actors}):
        world.kill(group)
    world.steps.append("recovery")
    world.running, world.recovering = None, True
    world.entries.clear()
    for slot in world.host.simulated.values():
        slot.close()
    world.start_agent(NEW)
    _period(world)
    for instance in world.instances:
        if instance in world.vanished:
            world.deallocate(instance)  # Nova may have died between the two
        else:
            world.give_back(instance, world.conductors[0])
        world.check()
    world.now += timedelta(seconds=2 * LEASE)
    world.conductors[0].sweep()
    return_orphans(world)
    _deliver_all(world)
    for address, drive in world.host.slots.items():
        if drive is None:
            world.host.exchange(address)
    _period(world)
    for number, (device, _) in enumerate(world.devices):
        if world.device(number).held or device.uuid in world.meddling.raised:
            Operator(world, number).release()
        Operator(world, number).enable()
        Operator(world, number).mend()
        _deliver_all(world)
    world.conductors[0].sweep()
    _period(world)
    for number, (_, deployable) in enumerate(world.devices):
        row, free = world.device(number), world.free(deployable)
        if row.device_state is not DeviceState.AVAILABLE or free != deployable.num_accelerators:
            with Database.read(world.db) as tx:
                held = [arq.state for arq in arq_rows.active_of_device(tx, row.id)]
            raise Broken(f"never lost for good: {row.device_state} ({row.state_reason}), {free=}, {held}")
    auditor = Auditor(world.db, world.placement, [], clock=lambda: world.now, sleep=lambda _: None)
    scope = Scope(host=world.hostname)
    # no agent of this world says that it is alive
    found = [each for each in auditor.audit(scope, 0) if each.counts and each.kind is not Kind.AGENT_SILENT]
    if found:
        raise Broken(f"every crash converges: {[(each.kind.label, each.seen) for each in found]}")


def return_orphans(world: World) -> None:
    """Conductors look for servers that have vanished; what they do not give back, they show, and the operator does.

    :raises Broken: a device is neither given back nor shown.
    """
    for looker in (*world.lookers, world.lookers[0]):
        looker.look()
        world.check()
        world.now += PATIENCE
    with Database.read(world.db) as tx:
        left = [each for each in orphans.bound(tx) if each.hostname == world.hostname]
    for each in left:
        if each.orphan_reason is None:
            raise Broken(f"never lost for good: the server of {each.pci_address} has vanished, and no operator sees it")
        world.conductors[0].arq_delete(RequestContext.admin(), [each.uuid])
        world.check()


def _period(world: World) -> None:
    world.agent.period()
    world.check()


def _deliver_all(world: World) -> None:
    while world.casts.pending:
        world.casts.deliver()
        world.check()
