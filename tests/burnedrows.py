"""Devices of one time use for tests of those who ask what is burned, and release it."""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy.engine import Connection

from autoclave.db import attributes, pci
from autoclave.db import devices as device_rows
from autoclave.db.columns import utcnow
from autoclave.db.devices import DeviceRecord
from autoclave.db.engine import Database
from autoclave.db.pci import ProviderRecord
from autoclave.db.tables import DeviceType
from autoclave.lifecycle import claims, operator
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.reserve import Settled, settle
from autoclave.lifecycle.transitions import Cause
from autoclave.objects.base import RequestContext
from autoclave.placement.client import PlacementClient
from autoclave.placement.records import ConsumerAllocations, Inventory
from autoclave.rules.device_lifecycle import Actor, DeviceState
from autoclave.rules.reclaim import Reclaim

CLASS = "CUSTOM_PCI_10DE_25B6"
TRAIT = "HW_PCI_ONE_TIME_USE"
OPERATOR = Cause(Actor.OPERATOR, "ops", "req-1")


def insert(
    tx: Connection,
    rp_uuid: str,
    host: str,
    address: str,
    functions: Sequence[str],
    *,
    resource_class: str = CLASS,
    traits: Sequence[str] = (),
    managed: bool = True,
    **values: Any,
) -> None:
    """Insert a device that flavors ask for, with its functions, as an agent does.

    :param values: other columns of the device.
    """
    device = {
        "uuid": rp_uuid,
        "type": DeviceType.PCI,
        "vendor": "10de",
        "model": "25b6",
        "hostname": host,
        "pci_address": address,
        "reclaim": Reclaim.HOLD,
        "device_state": DeviceState.AVAILABLE,
        **values,
    }
    deployable = {
        "name": f"{host}_{address.upper()}",
        "num_accelerators": len(functions),
        "resource_class": resource_class,
    }
    device_id = pci.insert_function_device(tx, device, deployable)
    known = {"dev_type": "type-PCI", "vendor_id": "10de", "product_id": "25b6", "managed": managed}
    pci.insert_functions(tx, device_id, [{"address": each, **known} for each in functions])
    made = pci.get(tx, rp_uuid)
    assert made is not None
    named = {f"trait{number}": trait for number, trait in enumerate(traits)}
    attributes.replace(tx, made.deployable.id, {"rc": resource_class, **named})


def claim(tx: Connection, rp_uuid: str, instance: str) -> None:
    """Give the first free function of a device to an instance, as its agent does."""
    provider = pci.get(tx, rp_uuid, lock=True)
    assert provider is not None
    own = pci.functions_of(tx, provider)
    wanted = next(each for each in own if each.instance_uuid is None)
    cause = Cause(Actor.AGENT, provider.hostname)
    claims.claim(tx, provider.device, own, [wanted], instance, cause, utcnow())


def describe(tx: Connection, provider: ProviderRecord, values: Mapping[str, Any]) -> None:
    """Write columns of a device as the agent does when the configuration changes; ``resource_class`` as well."""
    own = dict(values)
    if "resource_class" in own:
        device_rows.set_resource_class(tx, provider.deployable, own.pop("resource_class"))
    if own:
        device_rows.update(tx, provider.device, own)


def ask_release(
    db: Database, placement: PlacementClient, rp_uuid: str, cause: Cause, burned_for: str | None = None
) -> Settled:
    """Release a device by the operator's word, and tell Placement, as the api does."""
    operator.release_spent(Ports(db, placement, NoCleaners()), rp_uuid, cause, burned_for)
    return settle(db, placement, rp_uuid)


class NoCleaners:
    """No agent cleans."""

    def why_not(self, _hostname: str) -> str | None:
        return "there is no agent"

    def clean(self, _context: RequestContext, _device: DeviceRecord) -> None:
        raise AssertionError("nothing is to be cleaned")


@dataclass
class OneTimeUse:
    """The devices of one host, in a database and a Placement."""

    db: Database
    placement: PlacementClient
    host: str

    def add(self, address: str = "0000:81:00.0", resource_class: str = CLASS) -> str:
        """A clean device that is offered; the uuid of its provider."""
        rp_uuid = str(uuid.uuid4())
        with self.db.write() as tx:
            insert(tx, rp_uuid, self.host, address, [address], resource_class=resource_class, traits=[TRAIT])
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
            claim(tx, rp_uuid, instance)
        assert self.settle(rp_uuid) is Settled.RAISED
        return instance

    def delete(self, instance: str) -> None:
        """Delete the instance; its host's agent has not looked at the device since."""
        with self.db.write() as tx:
            claims.free(tx, instance, Cause(Actor.AGENT, self.host))
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
        return settle(self.db, self.placement, rp_uuid)

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
