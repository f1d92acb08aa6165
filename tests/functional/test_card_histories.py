"""An operator who changes [pci] device_spec under running instances never lends one tenant's card to another.

Random histories of the real agent, with a simulated host, SQLite and Placement's double: instances come and go, the
operator changes the entries of a card from its physical function to its virtual ones and back, or to another class or
other traits, and restarts the agent. ``AUTOCLAVE_HISTORIES`` says how many, ``AUTOCLAVE_FIRST_SEED`` where to begin.
"""

import logging
import os
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hostworld import CARD, FUNCTIONS, HOST, VF_SPEC, VFS
from instanceworld import InstanceWorld

from autoclave.agent.manager import AgentManager
from autoclave.db import instances as instance_rows
from autoclave.exceptions import AutoclaveError
from autoclave.placement.records import Inventory
from autoclave.rules.device_lifecycle import must_be_reserved
from autoclave.simulator.guests import Guests

pytestmark = pytest.mark.thorough

HISTORIES = int(os.environ.get("AUTOCLAVE_HISTORIES", "0"))
FIRST = int(os.environ.get("AUTOCLAVE_FIRST_SEED", "0"))
LENGTH = 16
PARENT: Mapping[str, Any] = {"vendor_id": "8086", "product_id": "1572"}
SPECS: Mapping[str, list[Mapping[str, Any]]] = {
    "parent": [PARENT],
    "virtual": [VF_SPEC],
    "one virtual": [{**VF_SPEC, "address": VFS[0]}],
    "parent of another class": [{**PARENT, "resource_class": "CUSTOM_NIC"}],
    "virtual of another class": [{**VF_SPEC, "resource_class": "CUSTOM_NIC"}],
    "parent with a trait": [{**PARENT, "traits": "CUSTOM_GOLD"}],
    "virtual with a trait": [{**VF_SPEC, "traits": "CUSTOM_GOLD"}],
    "both": [PARENT, VF_SPEC],
    "contradiction": [{**VF_SPEC, "address": VFS[0], "traits": "CUSTOM_GOLD"}, VF_SPEC],
    "nothing": [],
}
FLOORS = {"created": 1.5, "changed in use": 1.5, "deleted": 1.0}
"""What happens in a history on average, at least."""


class Broken(AssertionError):
    """A promise."""


class History:
    """One random history in a world of its own."""

    def __init__(self, tmp_path: Path, seed: int) -> None:
        self._rng = random.Random(seed)
        self.seed = seed
        self.steps: list[str] = []
        self.tally: Counter[str] = Counter()
        self.world = InstanceWorld(tmp_path, functions=[each for each in FUNCTIONS if each.address[:7] == CARD[:7]])
        self.world.specs = SPECS["parent"]
        self.agent: AgentManager = self.world.start()
        self._kept: dict[str, tuple[str, frozenset[str]]] = {}
        """Class and traits of the provider, as each instance got them."""

    def run(self) -> None:
        for _ in range(LENGTH):
            deeds = self._deeds()
            name, deed = deeds[self._rng.randrange(len(deeds))]
            self.steps.append(name)
            try:
                deed()
            except AutoclaveError as error:
                self.steps.append(f"[{type(error).__name__}]")
            self.look()
        self._recover()

    def _deeds(self) -> list[tuple[str, Callable[[], Any]]]:
        deeds: list[tuple[str, Callable[[], Any]]] = [("period", self.agent.period)] * 2
        if self.world.offered(CARD):
            deeds += [("create", self._create)] * 6
        deeds += [("delete", lambda each=each: self._delete(each)) for each in self._instances()]
        spec = self._rng.choice([*SPECS])
        deeds += [(f"restart with {spec}", lambda: self._configure(spec))] * 2
        return deeds

    def _create(self) -> None:
        instance = self.world.create(CARD)
        self.tally["created"] += 1
        if self.world.guest(instance) is not None:
            self._kept[instance] = self._line()

    def _delete(self, instance: str) -> None:
        self.world.delete(instance)
        self._kept.pop(instance, None)
        self.tally["deleted"] += 1

    def _instances(self) -> list[str]:
        with self.world.db.read() as tx:
            return [each.uuid for each in instance_rows.on_host(tx, HOST) if each.task_state is None]

    def _configure(self, spec: str) -> None:
        self.tally["changed in use"] += bool(self._kept)
        self.world.specs = SPECS[spec]
        self.world.end_all()
        self.agent = self.world.start()

    def _line(self) -> tuple[str, frozenset[str]]:
        row = self.world.row(CARD)
        return row.resource_class, self.world.onlooker.get_traits(row.uuid).names

    # The promise

    def look(self) -> None:
        given = [
            (function.address, instance)
            for instance, guest in Guests(self.world.sim).all().items()
            for function in guest.functions
        ]
        parents = {instance for address, instance in given if address == CARD}
        if parents and {instance for _, instance in given} - parents:
            raise self._broken("another tenant has a function of the card")
        if len({address for address, _ in given}) < len(given):
            raise self._broken("two instances have one function")
        for instance, line in self._kept.items():
            if line != self._line():
                raise self._broken(f"what {instance} has is no longer {line}")
        if not parents:
            return
        row = self.world.row(CARD)
        reserved = int(must_be_reserved(row.device.offer))  # while its entry says something else
        if self.world.records(CARD) != {row.resource_class: Inventory(1, reserved, 1, 1, 1, 1.0)}:
            raise self._broken(f"the inventory is {self.world.records(CARD)}")

    def _broken(self, what: str) -> Broken:
        return Broken(f"seed {self.seed}: {what}: {'; '.join(self.steps)}")

    def _recover(self) -> None:
        """When all instances are gone, the card is what the entry says."""
        self.steps.append("recovery")
        self._configure("virtual")
        self.look()
        with self.world.db.read() as tx:
            everything = instance_rows.list_for(tx)
        for instance in everything:
            self._delete(instance.uuid)
            self.look()
        for _ in range(2):
            self.agent.period()
        if self.world.offered(CARD) != 2 or self.world.row(CARD).device.waiting_for is not None:
            raise self._broken(f"not offered: {self.world.row(CARD)}")


@pytest.fixture
def quiet() -> Iterator[None]:
    """Nothing is logged: pytest would keep every record of every history."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def live(tmp_path: Path, seed: int) -> Counter[str]:
    directory = tmp_path / str(seed)
    directory.mkdir()
    history = History(directory, seed)
    try:
        history.run()
    finally:
        history.world.close()
    return history.tally


@pytest.mark.usefixtures("quiet")
def test_no_change_of_device_spec_lends_a_card_twice(tmp_path: Path) -> None:
    number = HISTORIES or 25
    tally: Counter[str] = Counter()
    for seed in range(FIRST, FIRST + number):
        tally += live(tmp_path, seed)
    print(f"{number} histories: {dict(tally)}")
    for event, at_least in FLOORS.items():
        assert tally[event] >= at_least * number, f"too few of: {event}, {tally}"


@pytest.mark.usefixtures("quiet")
def test_entries_applied_to_what_is_in_use_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from autoclave.lifecycle import pci_inventory

    def all_of_them() -> None:
        for seed in range(25):
            live(tmp_path, seed)

    monkeypatch.setattr(pci_inventory, "_later", lambda _row, _bound, _wanted: [])
    with pytest.raises(Broken):
        all_of_them()
