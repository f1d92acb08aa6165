"""Devices of one time use for tests of those who ask what is burned, and release it."""

import uuid
from dataclasses import dataclass

from autoclave.db import pci
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.db.pci import ProviderRecord
from autoclave.lifecycle.burn import Settled, burn, settle_provider
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.client import PlacementClient
from autoclave.placement.records import ConsumerAllocations, Inventory
from autoclave.rules.device_lifecycle import Actor

CLASS = "CUSTOM_PCI_10DE_25B6"
TRAIT = "HW_PCI_ONE_TIME_USE"
OPERATOR = Cause(Actor.OPERATOR, "ops", "req-1")


@dataclass
class OneTimeUse:
    """The devices of one host, in a database and a Placement."""

    db: Database
    placement: PlacementClient
    host: str

    def add(self, address: str = "0000:81:00.0", resource_class: str = CLASS) -> str:
        """A clean device that is offered; the uuid of its provider."""
        rp_uuid = str(uuid.uuid4())
        row = {
            "uuid": rp_uuid,
            "hostname": self.host,
            "address": address,
            "resource_class": resource_class,
            "traits": f'["{TRAIT}"]',
            "total": 1,
            "one_time_use": True,
        }
        function = {"hostname": self.host, "address": address, "dev_type": "type-PCI", "managed": True}
        with self.db.write() as tx:
            provider_id = pci.insert_provider(tx, row)
            ids = {"provider_id": provider_id, "vendor_id": "10de", "product_id": "25b6"}
            pci.insert_functions(tx, [{**function, **ids}])
        root = self.placement.find_provider(self.host)
        if root is None:
            root = self.placement.create_provider(str(uuid.uuid4()), self.host)
        made = self.placement.create_provider(rp_uuid, f"{self.host}_{address.upper()}", root.uuid)
        self.placement.put_traits(rp_uuid, made.generation, [TRAIT])
        assert self.settle(rp_uuid) is Settled.LOWERED
        return rp_uuid

    def use(self, rp_uuid: str, instance: str | None = None) -> str:
        """Give it to an instance, whose uuid is returned."""
        instance = instance or str(uuid.uuid4())
        resources = {rp_uuid: {self.row(rp_uuid).resource_class: 1}}
        self.placement.put_allocations(ConsumerAllocations(instance, resources, None, "project", "user"))
        with self.db.write() as tx:
            provider = self.row(rp_uuid)
            assert pci.claim(tx, [each.id for each in pci.functions_of(tx, provider)], instance)
            assert burn(tx, provider, instance, utcnow(), Cause(Actor.AGENT, self.host))
        assert self.settle(rp_uuid) is Settled.RAISED
        return instance

    def delete(self, instance: str) -> None:
        """Delete the instance; its host's agent has not looked at the device since."""
        with self.db.write() as tx:
            pci.free(tx, instance)
        self.placement.delete_allocations(instance)

    def use_up(self, rp_uuid: str) -> str:
        """The whole life of an instance; the device is burned afterwards, and that is confirmed."""
        instance = self.use(rp_uuid)
        self.delete(instance)
        assert self.settle(rp_uuid) is Settled.CONFIRMED
        return instance

    def burned(self, address: str = "0000:81:00.0", resource_class: str = CLASS) -> str:
        """A device that an instance has used up."""
        rp_uuid = self.add(address, resource_class)
        self.use_up(rp_uuid)
        return rp_uuid

    def hold(self, rp_uuid: str) -> None:
        """An operator keeps it reserved, by hand in Placement."""
        present = self.placement.get_inventories(rp_uuid)
        [resource_class] = present.records
        held = Inventory(1, 1, 1, 1, 1, 1.0)
        self.placement.put_inventories(rp_uuid, present.generation, {resource_class: held})

    def settle(self, rp_uuid: str) -> Settled:
        """What the agent does in every period."""
        return settle_provider(self.db, self.placement, rp_uuid)

    def row(self, rp_uuid: str) -> ProviderRecord:
        with self.db.read() as tx:
            found = pci.get(tx, rp_uuid)
        assert found is not None
        return found

    def inventory(self, rp_uuid: str) -> Inventory:
        [record] = self.placement.get_inventories(rp_uuid).records.values()
        return record

    def offered(self, rp_uuid: str) -> bool:
        """Whether Placement would give it to somebody."""
        used = sum(self.placement.get_usages(rp_uuid).values())
        record = self.inventory(rp_uuid)
        return record.total - record.reserved - used > 0
