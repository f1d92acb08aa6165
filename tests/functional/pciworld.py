"""A database and a Placement with one host's providers of PCI functions, for tests of what becomes of ``reserved``."""

import uuid
from typing import Any

import pytest

import burnedrows
from autoclave.db import pci
from autoclave.db.engine import Database
from autoclave.db.pci import ProviderRecord
from autoclave.lifecycle import claims
from autoclave.lifecycle.reserve import Settled, settle
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.records import ConsumerAllocations, Inventory
from autoclave.rules.device_lifecycle import Actor
from autoclave.testing.placement import FakePlacement
from autoclave.testing.placement.faults import Faults

HOST = "host-1"
GPU = "0000:81:00.0"
CLASS = "CUSTOM_PCI_10DE_25B6"
ONE, TWO = "11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"


class PCIWorld:
    """``placement`` may be made to fail; ``onlooker`` sees it as it is."""

    def __init__(self, database: Database) -> None:
        self.db = database
        self.service = FakePlacement()
        self.faults = Faults(self.service)
        self.placement = self.faults.client()
        self.onlooker = self.service.client()
        self.root = self.onlooker.create_provider(str(uuid.uuid4()), HOST).uuid

    def add(self, address: str = GPU, total: int = 1, **values: Any) -> str:
        """A device and its functions, as the agent makes them; returns the uuid of both it and its provider."""
        made = str(uuid.uuid4())
        functions = [f"{address[:-1]}{number}" for number in range(total)]
        with self.db.write() as tx:
            burnedrows.insert(tx, made, HOST, address, functions, **values)
        self.make(made, address)
        return made

    def make(self, rp_uuid: str, address: str = GPU) -> None:
        """Make the provider in Placement, without inventory."""
        self.onlooker.create_provider(rp_uuid, f"{HOST}_{address.upper()}", self.root)

    def settle(self, rp_uuid: str) -> Settled:
        return settle(self.db, self.placement, rp_uuid)

    def row(self, rp_uuid: str) -> ProviderRecord:
        with self.db.read() as tx:
            found = pci.get(tx, rp_uuid)
        assert found is not None
        return found

    def inventory(self, rp_uuid: str) -> Inventory:
        return self.onlooker.get_inventories(rp_uuid).records[CLASS]

    def reserved(self, rp_uuid: str) -> int:
        return self.inventory(rp_uuid).reserved

    def offered(self, rp_uuid: str) -> bool:
        """Whether Placement would give it to somebody."""
        used = self.onlooker.get_usages(rp_uuid)
        records = self.onlooker.get_inventories(rp_uuid).records
        return any(record.total - record.reserved - used[name] > 0 for name, record in records.items())

    def lower(self, rp_uuid: str, reserved: int = 0) -> None:
        """What an operator does in Placement by hand."""
        present = self.onlooker.get_inventories(rp_uuid)
        records = {
            name: Inventory(each.total, reserved, 1, each.total, 1, 1.0) for name, each in present.records.items()
        }
        self.onlooker.put_inventories(rp_uuid, present.generation, records)

    def allocate(self, rp_uuid: str, instance: str = ONE) -> None:
        """What the scheduler does."""
        claim = ConsumerAllocations(instance, {rp_uuid: {CLASS: 1}}, None, "project", "user")
        self.onlooker.put_allocations(claim)

    def deallocate(self, instance: str = ONE) -> None:
        self.onlooker.delete_allocations(instance)

    def claim(self, rp_uuid: str, instance: str = ONE) -> None:
        """The transaction in which an instance gets a device."""
        with self.db.write() as tx:
            burnedrows.claim(tx, rp_uuid, instance)

    def free(self, instance: str = ONE) -> None:
        with self.db.write() as tx:
            claims.free(tx, instance, Cause(Actor.AGENT, HOST))

    def use_up(self, rp_uuid: str, instance: str = ONE) -> None:
        """The whole life of an instance; its device is idle and burned afterwards, and that is confirmed."""
        self.allocate(rp_uuid, instance)
        self.claim(rp_uuid, instance)
        assert self.settle(rp_uuid) is Settled.RAISED
        self.free(instance)
        self.deallocate(instance)
        assert self.settle(rp_uuid) is Settled.CONFIRMED


@pytest.fixture
def pci_world(database: Database) -> PCIWorld:
    """On each engine: what is decided here is decided by rows that two may write at once."""
    return PCIWorld(database)


@pytest.fixture
def gpu(pci_world: PCIWorld) -> str:
    """The uuid of the provider of a graphics card of one time use that is clean and offered."""
    rp_uuid = pci_world.add()
    assert pci_world.settle(rp_uuid) is Settled.LOWERED
    return rp_uuid
