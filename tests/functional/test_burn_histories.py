"""A device that a guest may have touched is never offered, and never given, before the operator has released it.

Random histories of the real agent, with a simulated host, SQLite and Placement's double: instances come and go, the
agent dies, calls fail and answers are lost at any moment, other work goes on between any two calls, operators write
in Placement by hand, hold the device there, and change the configuration, also while the agent is at work. What an
instance has keeps its class, no two have it, and a hold lasts as long as its provider. ``AUTOCLAVE_HISTORIES`` says
how many, ``AUTOCLAVE_FIRST_SEED`` where to begin; a failing history names its seed and its steps.
"""

import logging
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hostworld import FUNCTIONS, GPU, GPU_CLASS, HOST
from instanceworld import InstanceWorld
from moments import Death, Moments, fail, hypervisor_of, ports_of

from autoclave.agent.manager import AgentManager
from autoclave.db import devices as device_rows
from autoclave.db import instances as instance_rows
from autoclave.db import pci
from autoclave.db.pci import FunctionRecord, ProviderRecord
from autoclave.exceptions import AutoclaveError, PlacementConflict
from autoclave.lifecycle import reserve
from autoclave.placement.embedded import EmbeddedPlacement
from autoclave.rules import device_lifecycle as rules
from autoclave.rules.instance_states import TaskState
from autoclave.simulator.guests import Guests
from autoclave.virt.driver import load_compute_driver
from burnedrows import OPERATOR, ask_release
from realplacement import running_placement

pytestmark = pytest.mark.thorough

HISTORIES = int(os.environ.get("AUTOCLAVE_HISTORIES", "0"))
FIRST = int(os.environ.get("AUTOCLAVE_FIRST_SEED", "0"))
LENGTH = 14
SPECS = {
    "one time use": {"vendor_id": "10de", "one_time_use": True},
    "another class": {"vendor_id": "10de", "one_time_use": True, "resource_class": "CUSTOM_GPU"},
    "another class, no flag": {"vendor_id": "10de", "resource_class": "CUSTOM_CARD", "traits": "CUSTOM_GOLD"},
    "no flag": {"vendor_id": "10de"},
    "no entry": {"vendor_id": "ffff"},
}

FLOORS = {"created": 1.0, "mishaps": 1.0, "deaths": 0.3, "cleaned": 0.2, "lowered": 0.3, "rebuilt": 0.2, "held": 0.04}
"""What happens in a history on average, at least."""


class Broken(AssertionError):
    """A promise."""


class History:
    """One random history in a world of its own."""

    def __init__(self, tmp_path: Path, seed: int, service: Any = None) -> None:
        self._rng = random.Random(seed)
        self.seed = seed
        self.steps: list[str] = []
        self.world = InstanceWorld(tmp_path, functions=FUNCTIONS[:1], service=service)
        self.world.specs = [SPECS["one time use"]]
        self.moments = Moments()
        self.tally: Counter[str] = Counter()
        self._touched: str | None = None
        """The instance whose guest has had the device since it was released."""
        self._excused = False
        """Somebody has lowered ``reserved`` without right, and no whole period has passed since."""
        self._held_by: str | None = None
        """The uuid of the provider that an operator holds by hand, of a device that was not burned."""
        self._lines: dict[str, str] = {}
        """The class of what an instance has, by its uuid."""
        self._depth = 0
        self.agent: AgentManager | None = self._start()

    def run(self) -> None:
        for _ in range(LENGTH):
            name, deed = self._choice(self._deeds())
            self._do(name, deed)
        self._recover()

    def close(self) -> None:
        self.moments.live_again()
        self.world.close()

    def _do(self, name: str, deed: Callable[[], Any]) -> None:
        """Do something, perhaps with a mishap at one of its moments; then look."""
        self.steps.append(name)
        if self._depth == 0 and self._rng.random() < 0.6:
            what, happens = self._choice(
                [
                    ("the agent dies", self.moments.die),
                    ("a call fails", fail),
                    ("meanwhile", self._meanwhile),
                    ("meanwhile", self._meanwhile),
                ]
            )
            self.moments.arm(self._rng.randrange(45), happens)
            self.steps.append(f"({what})")
        try:
            deed()
        except Death:
            if self._depth:
                raise
            self.tally["deaths"] += 1
            if self._rng.random() < 0.3:  # the operator has changed the configuration in the meantime
                self._configure(self._choice(list(SPECS)))
            else:
                self._restart()
        except AutoclaveError as error:
            self.steps.append(f"[{type(error).__name__}]")
        finally:
            if self._depth == 0:
                self.tally["mishaps"] += self.moments.happened
                self.moments.disarm()
        self.look()

    def _meanwhile(self, _whom: str) -> None:
        self._depth += 1
        try:
            name, deed = self._choice(self._deeds())
            self._do(f"meanwhile {name}", deed)
        finally:
            self._depth -= 1

    def _deeds(self) -> list[tuple[str, Callable[[], Any]]]:
        deeds: list[tuple[str, Callable[[], Any]]] = [
            ("period", self._period),
            ("period", self._period),
            ("lower", self._lower),
            ("release", self._release),
            ("clean", self._clean),
            ("clean", self._clean),
            ("delete provider", self._delete_provider),
            ("hold", self._hold),
        ]
        if self.world.offered():
            deeds += [("create", self._create)] * 6
        deeds += [("delete", lambda each=each: self.world.delete(each)) for each in self._instances()] * 3
        deeds += [("guest dies", lambda each=each: self._guest_dies(each)) for each in self._instances()[:1]]
        deeds += [("stop", lambda each=each: self._stop(each)) for each in self._idle_instances()]
        deeds += [("rebuild", lambda each=each: self._rebuild(each)) for each in self._idle_instances()] * 3
        if self._depth == 0:
            spec = self._rng.choice(["one time use", "one time use", *SPECS])
            deeds.append((f"restart with {spec}", lambda: self._configure(spec)))
        return deeds

    def _choice(self, among: list[Any]) -> Any:
        return among[self._rng.randrange(len(among))]

    # The agent

    def _start(self) -> AgentManager:
        driver = load_compute_driver(self.world.configuration())
        return self.world.start(ports_of(self.world, self.moments), hypervisor_of(driver, self.moments))

    def _restart(self) -> None:
        self.moments.live_again()
        self.world.end_all()
        self.agent = self._start()

    def _configure(self, spec: str) -> None:
        self.steps.append(f"[{spec}]")
        self.world.specs = [SPECS[spec]]
        self._restart()

    def _period(self) -> None:
        if self.agent is None:
            return
        was, self._excused_since = self._excused, False
        self.agent.period()
        if was and not self._excused_since and not self.moments.happened and self._depth == 0:
            self._excused = False

    # Users

    def _create(self) -> None:
        row = self.world.row()
        instance = self.world.ask(GPU)
        self.tally["created"] += 1
        self.world.agents.build_instance(self.world.context, HOST, instance, {"": [row.uuid]})
        self.world.casts.deliver()

    def _instances(self) -> list[str]:
        with self.world.db.read() as tx:
            return [
                each.uuid for each in instance_rows.on_host(tx, HOST) if each.task_state in (None, TaskState.DELETING)
            ]

    def _idle_instances(self) -> list[str]:
        """Those that have run once, and with which nothing is done: what the API lets users ask for more."""
        with self.world.db.read() as tx:
            found = instance_rows.on_host(tx, HOST)
        return [each.uuid for each in found if each.task_state is None and each.launched_at is not None]

    def _stop(self, instance: str) -> None:
        self.world.power("stop_instance", TaskState.POWERING_OFF, instance)

    def _rebuild(self, instance: str) -> None:
        self.world.rebuild(instance)
        self.tally["rebuilt"] += 1

    def _guest_dies(self, instance: str) -> None:
        if self.world.guest(instance) is not None:
            Guests(self.world.sim).end(instance)

    # Operators

    def _idle(self) -> bool:
        """Whether it reads as a burned device does that waits for its operator."""
        provider = self.world.onlooker.find_provider(f"{HOST}_{GPU}")
        if provider is None:
            return False
        records = self.world.onlooker.get_inventories(provider.uuid).records.values()
        used = any(self.world.onlooker.get_usages(provider.uuid).values())
        return not used and any(record.reserved >= record.total for record in records)

    def _clean(self) -> None:
        """The operator's own workflow: clean, then lower."""
        row = self.world.find_row()
        if row is None or not self._idle() or not row.device.burn_confirmed:
            return
        self._touched = None
        self.tally["cleaned"] += 1
        self.world.by_hand(0)

    def _lower(self) -> None:
        """Somebody lowers ``reserved``, cleaned or not. If it was seen idle and burned, that is a release."""
        row = self.world.find_row()
        provider = self.world.onlooker.find_provider(f"{HOST}_{GPU}")
        if row is None or provider is None or not self.world.onlooker.get_inventories(provider.uuid).records:
            return
        # In the middle of a call, the agent may have seen the device idle and not have written that down yet.
        if self._idle() and (row.device.burn_confirmed or self._depth):
            self._touched = None
        elif self._touched is not None:
            self._excused = self._excused_since = True
        self.tally["lowered"] += 1
        self._held_by = None
        self.world.by_hand(0)

    def _hold(self) -> None:
        """Keep back what is offered, for reasons of the operator's own."""
        row = self.world.find_row()
        if row is None or row.burned or row.device.release_pending or not self.world.offered():
            return
        self.world.by_hand(1)
        self._held_by = self.world.provider().uuid
        self.tally["held"] += 1

    def _release(self) -> None:
        row = self.world.find_row()
        if row is None:
            return
        touched, self._touched = self._touched, None  # on the operator's word, from the moment that it is given
        try:
            ask_release(self.world.db, self.world.onlooker, row.uuid, OPERATOR)
            self.tally["released"] += 1
        except AutoclaveError:
            if not self.world.row().device.release_pending:
                self._touched = touched
            raise

    def _delete_provider(self) -> None:
        provider = self.world.onlooker.find_provider(f"{HOST}_{GPU}")
        if provider is not None:
            try:
                self.world.onlooker.delete_provider(provider.uuid)
                self.tally["deleted providers"] += 1
            except PlacementConflict:
                self.steps.append("[in use]")

    # The promise

    def look(self) -> None:
        row = self.world.find_row()
        self._look_at_lines(row)
        provider = self.world.onlooker.find_provider(f"{HOST}_{GPU}")
        if provider is None or provider.uuid != self._held_by:
            self._held_by = None
        elif self.world.offered():
            raise self._broken("hold lost", row)
        guests = Guests(self.world.sim).all().items()
        having = [uuid for uuid, guest in guests if guest.running and GPU in {each.address for each in guest.functions}]
        if len(having) > 1:
            raise self._broken("given to two", row)
        for uuid, guest in guests:
            if not any(function.address == GPU for function in guest.functions):
                continue
            if self._touched not in (None, uuid):
                raise self._broken("given dirty", row)
            if row is not None and (row.one_time_use or row.burned):
                self._touched = uuid
        if self._touched is not None and self.world.offered() and not self._excused:
            raise self._broken("offered dirty", row)

    def _look_at_lines(self, row: ProviderRecord | None) -> None:
        """What an instance has keeps its class until it is given back."""
        having = [each.instance_uuid for each in self._functions() if each.instance_uuid is not None]
        if any(instance not in having for instance in self._lines):
            self._lines = {instance: line for instance, line in self._lines.items() if instance in having}
        for instance in having:
            if row is None or self._lines.setdefault(instance, row.resource_class) != row.resource_class:
                raise self._broken("what is in use lost its class", row)

    def _functions(self) -> list[FunctionRecord]:
        with self.world.db.read() as tx:
            return pci.functions(tx, HOST)

    def _broken(self, what: str, row: Any) -> Broken:
        return Broken(f"seed {self.seed}: {what}: {'; '.join(self.steps)}: {row}")

    def _recover(self) -> None:
        """Nothing fails any more: all converges, and once released, the device is offered again."""
        self.steps.append("recovery")
        self.moments.live_again()
        self.world.specs = [SPECS["one time use"]]
        self._restart()
        assert self.agent is not None
        for _ in range(2):
            self.agent.period()
        self._excused = False
        self.look()
        with self.world.db.read() as tx:
            everything = instance_rows.list_for(tx)
        for instance in everything:
            self.world.delete(instance.uuid)
            self.look()
        for _ in range(2):
            self.agent.period()
            self.look()
        row = self.world.row()
        if self._held_by is not None:
            self._held_by = None
            self.world.by_hand(0)
        if row.burned:
            self._touched = None
            ask_release(self.world.db, self.world.placement, row.uuid, OPERATOR)
        for _ in range(2):
            self.agent.period()
        if self.world.offered() != 1 or self.world.records().keys() != {GPU_CLASS}:
            raise self._broken("lost for good", self.world.row())


@pytest.fixture
def quiet() -> Iterator[None]:
    """Nothing is logged: pytest would keep every record of every history."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def live(tmp_path: Path, seeds: range) -> Counter[str]:
    tally: Counter[str] = Counter()
    for seed in seeds:
        history = History(tmp_path / str(seed), seed)
        try:
            history.run()
        finally:
            history.close()
        tally += history.tally
    return tally


@pytest.mark.usefixtures("quiet")
def test_no_history_breaks_the_promise(tmp_path: Path) -> None:
    number = HISTORIES or 25
    for seed in range(FIRST, FIRST + number):
        (tmp_path / str(seed)).mkdir()
    tally = live(tmp_path, range(FIRST, FIRST + number))
    print(f"{number} histories: {dict(tally)}")
    for event, at_least in FLOORS.items():
        assert tally[event] >= at_least * number, f"too few of: {event}, {tally}"


@pytest.fixture
def real(tmp_path: Path) -> Iterator[EmbeddedPlacement]:
    """The real Placement, for all histories of a test."""
    with running_placement(tmp_path) as service:
        yield service


@pytest.mark.usefixtures("quiet")
def test_no_history_breaks_the_promise_with_the_real_placement(tmp_path: Path, real: EmbeddedPlacement) -> None:
    client = real.client()
    for seed in range(5000 + FIRST, 5000 + FIRST + (HISTORIES or 3)):
        (tmp_path / str(seed)).mkdir()
        history = History(tmp_path / str(seed), seed, real)
        try:
            history.run()
        finally:
            history.close()
        root = client.find_provider(HOST)
        assert root is not None
        for provider in sorted(client.providers_in_tree(root.uuid), key=lambda each: each.uuid == root.uuid):
            client.delete_provider(provider.uuid)


def not_raised_at_all(_db: Any, _placement: Any, _rp_uuid: str) -> None:
    """A claim and a deletion do not settle; the period does."""


def frees_without_settling(m: pytest.MonkeyPatch) -> None:
    from autoclave.agent.compute import claims, instance_work

    m.setattr(claims, "settle", not_raised_at_all)
    m.setattr(instance_work, "settle", not_raised_at_all)


def releases_unconfirmed(facts: Any, reading: Any) -> Any:
    """What was lowered at any time is taken for a release."""
    return verdict(facts._replace(confirmed=True), reading)


def forgets_with_the_entry(m: pytest.MonkeyPatch) -> None:
    """A burned device's row goes with its entry."""
    from autoclave.agent.compute import pci_tree
    from autoclave.lifecycle import pci_inventory

    def forget(found: Any, row: Any, own: Any) -> None:
        found.withdrawn.append(row)

    def delete(tx: Any, provider: Any) -> bool:
        device_rows.delete(tx, provider.device)
        return True

    m.setattr(pci_inventory, "_withdraw", forget)
    m.setattr(pci_tree, "withdraw", delete)


def follows_at_once(m: pytest.MonkeyPatch) -> None:
    """A changed entry counts for what is in use."""
    from autoclave.lifecycle import pci_inventory

    m.setattr(pci_inventory, "_later", lambda _row, _bound, _wanted: [])


def overrides_holds(facts: Any, reading: Any) -> Any:
    """What an operator holds by hand is offered."""
    judged = verdict(facts, reading)
    return rules.Verdict.LOWER if judged is rules.Verdict.HOLD else judged


verdict = rules.verdict
MUTANTS: dict[str, tuple[int, Callable[[pytest.MonkeyPatch], None]]] = {
    "a claim and a deletion do not settle": (0, frees_without_settling),
    "what was lowered at any time is a release": (12, lambda m: m.setattr(reserve, "verdict", releases_unconfirmed)),
    "a burned row goes with its entry": (90, forgets_with_the_entry),
    "an entry is applied to what is in use": (13, follows_at_once),
    "what is held by hand is offered": (49, lambda m: m.setattr(reserve, "verdict", overrides_holds)),
}
"""Rules of the protocol, each broken in the real code, and from which seed on that is looked for."""


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("rule", MUTANTS)
def test_a_broken_rule_is_noticed(rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, break_it = MUTANTS[rule]
    break_it(monkeypatch)
    for seed in range(first, first + 150):
        (tmp_path / str(seed)).mkdir()
        try:
            live(tmp_path, range(seed, seed + 1))
        except Broken:
            return
    pytest.fail("not noticed")
