"""Store the devices that flavors ask for with the functions that instances claim, and the ledger of burned cards.

A burned card stays burned in every slot of every host. Additions of the operator's provider configuration are recorded
before they are written to Placement.
"""

import json
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry
from sqlalchemy.engine import Connection

from autoclave.db import attributes as attribute_rows
from autoclave.db.columns import utcnow
from autoclave.db.devices import DEVICE, DeployableRecord, DeviceRecord
from autoclave.db.query import columns
from autoclave.db.tables import AttachType, attach_handles, burned_cards, deployables, devices
from autoclave.db.tables import provider_config_additions as additions
from autoclave.rules.pci_address import PCIAddress
from autoclave.rules.pci_inventory import FUNCTIONS_DRIVER
from autoclave.rules.reclaim import BurnState, Reclaim, RequestedBy


def note(tx: Connection, serial: str, rp_uuid: str) -> None:
    """Record that the card is burned, and the provider whose release ends that."""
    if noted_by(tx, serial) is None:
        # Another transaction may insert a card with the same serial concurrently.
        with suppress(DBDuplicateEntry), tx.begin_nested():
            tx.execute(burned_cards.insert().values(serial=serial, rp_uuid=rp_uuid))
            return
    tx.execute(burned_cards.update().where(burned_cards.c.serial == serial).values(rp_uuid=rp_uuid))


def remove(tx: Connection, serial: str, rp_uuid: str) -> None:
    """Record that the card is clean, if it was burned last by that provider."""
    tx.execute(burned_cards.delete().where(burned_cards.c.serial == serial, burned_cards.c.rp_uuid == rp_uuid))


def noted_by(tx: Connection, serial: str) -> str | None:
    """Return the uuid of the provider that burned the card, or None if it is not burned."""
    return tx.execute(sa.select(burned_cards.c.rp_uuid).where(burned_cards.c.serial == serial)).scalar_one_or_none()


@dataclass(frozen=True)
class ProviderRecord:
    """Represent a device that flavors ask for, with its resource provider.

    :param trait_names: the traits that its provider should have.
    """

    device: DeviceRecord
    deployable: DeployableRecord
    trait_names: frozenset[str]

    @property
    def id(self) -> int:
        """Return the id of the device."""
        return self.device.id

    @property
    def uuid(self) -> str:
        """Return the uuid of the resource provider, committed before the provider is created."""
        return self.deployable.rp_uuid

    @property
    def hostname(self) -> str:
        """Return the name of its host."""
        return self.device.hostname

    @property
    def address(self) -> str:
        """Return the address of its slot."""
        return self.device.pci_address

    @property
    def serial(self) -> str | None:
        """Return the unique identifier of the card in the slot; None if unknown."""
        return self.device.serial

    @property
    def card_serial(self) -> str | None:
        """Return the serial number of the card or drive itself, without the ids and the function stored before it."""
        if self.serial is None or self.device.is_drive:
            return self.serial
        return self.serial.partition(" ")[2]

    @property
    def resource_class(self) -> str:
        """Return the resource class of its inventory."""
        return self.deployable.resource_class

    @property
    def total(self) -> int:
        """Return the total of its inventory."""
        return self.deployable.num_accelerators

    @property
    def one_time_use(self) -> bool:
        """Return whether its policy holds it after each instance."""
        return self.device.reclaim is Reclaim.HOLD

    @property
    def burned(self) -> bool:
        """Return whether it is burned, or its release is still unknown to Placement."""
        return self.device.burned_at is not None

    @property
    def burn_state(self) -> BurnState:
        """Return the state in which ``burned`` shows it."""
        return self.device.burn_state

    @property
    def in_doubt(self) -> bool:
        """Return whether no further instance may get it, whatever its state is."""
        return self.device.outdated or self.device.unreadable_reason is not None


@dataclass(frozen=True)
class FunctionRecord:
    """Represent a function that instances claim. ``missing``: it is no longer on the host or in its configuration."""

    id: int
    provider_id: int
    hostname: str
    address: str
    dev_type: str
    vendor_id: str
    product_id: str
    managed: bool
    instance_uuid: str | None
    missing: bool


_DEPLOYABLE = columns(DeployableRecord, deployables)
_OF_FLAVORS = devices.c.requested_by == RequestedBy.FLAVOR
_BOTH = sa.select(*DEVICE, *_DEPLOYABLE).join(deployables, deployables.c.device_id == devices.c.id).where(_OF_FLAVORS)
_FUNCTION = (
    sa.select(
        attach_handles.c.id,
        devices.c.id,
        devices.c.hostname,
        attach_handles.c.identity,
        attach_handles.c.attach_info,
        devices.c.vendor,
        devices.c.model,
        attach_handles.c.instance_uuid,
        attach_handles.c.missing,
    )
    .join(deployables, deployables.c.id == attach_handles.c.deployable_id)
    .join(devices, devices.c.id == deployables.c.device_id)
    .where(_OF_FLAVORS)
    .order_by(devices.c.hostname, attach_handles.c.identity)
)


def _records(tx: Connection, query: sa.Select[Any]) -> list[ProviderRecord]:
    rows = tx.execute(query).all()
    width = len(DEVICE)
    pairs = [(DeviceRecord(*row[:width]), DeployableRecord(*row[width:])) for row in rows]
    traits = attribute_rows.traits_of_all(tx, [deployable.id for _, deployable in pairs]) if pairs else {}
    return [ProviderRecord(device, own, traits.get(own.id, frozenset())) for device, own in pairs]


def _functions(tx: Connection, query: sa.Select[Any]) -> list[FunctionRecord]:
    found = []
    for number, device_id, host, address, stored, vendor, model, instance_uuid, missing in tx.execute(query):
        info = json.loads(stored)
        found.append(
            FunctionRecord(
                number,
                device_id,
                host,
                address,
                info.get("dev_type", "type-PCI"),
                info.get("vendor_id", vendor),
                info.get("product_id", model),
                info.get("managed", True),
                instance_uuid,
                missing,
            )
        )
    return found


def insert_function_device(tx: Connection, device: Mapping[str, Any], deployable: Mapping[str, Any]) -> int:
    """Insert a device that ``[pci] device_spec`` selects, and return its id.

    :param device: columns of ``devices``; its uuid is that of the provider.
    :param deployable: columns of ``deployables``.
    """
    values = {"requested_by": RequestedBy.FLAVOR, **device}
    device_id = int(tx.execute(devices.insert().values(**values)).inserted_primary_key[0])  # type: ignore[index]
    tx.execute(
        deployables.insert().values(
            uuid=str(uuid.uuid4()),
            device_id=device_id,
            rp_uuid=device["uuid"],
            driver_name=FUNCTIONS_DRIVER,
            **deployable,
        )
    )
    return device_id


def insert_functions(tx: Connection, device_id: int, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert functions of a device.

    :param rows: ``address`` and what ``attach_info`` keeps in addition: dev_type, vendor_id, product_id, managed.
    """
    deployable_id = tx.execute(sa.select(deployables.c.id).where(deployables.c.device_id == device_id)).scalar_one()
    for row in rows:
        tx.execute(
            attach_handles.insert().values(
                uuid=str(uuid.uuid4()),
                deployable_id=deployable_id,
                attach_type=AttachType.PCI,
                attach_info=_info(row),
                identity=row["address"],
            )
        )


def _info(function: Mapping[str, Any]) -> str:
    kept = {name: function[name] for name in ("dev_type", "vendor_id", "product_id", "managed")}
    return json.dumps({**PCIAddress.parse(function["address"]).as_attach_info(), **kept}, sort_keys=True)


def get(tx: Connection, uuid: str, *, lock: bool = False) -> ProviderRecord | None:
    """Return the device whose provider has *uuid*, or None; with *lock*, its row stays locked until the transaction
    ends.
    """
    query = _BOTH.where(deployables.c.rp_uuid == uuid)
    if lock:
        _lock(tx, query)
    return next(iter(_records(tx, query)), None)


def _lock(tx: Connection, query: sa.Select[Any]) -> None:
    """Lock the devices of *query* until the transaction ends, in its order.

    Read them afterwards, by another statement: PostgreSQL would combine the locked row with what the other tables had
    before the wait.
    """
    tx.execute(query.with_only_columns(devices.c.id).with_for_update(of=devices)).all()


def with_serial(tx: Connection, serial: str) -> list[ProviderRecord]:
    """Return the functions of ``[pci] device_spec``, of any host, in whose slot the card with *serial* was last
    seen.
    """
    query = _BOTH.where(devices.c.serial == serial, deployables.c.driver_name == FUNCTIONS_DRIVER)
    return _records(tx, query.order_by(devices.c.id))


def providers(
    tx: Connection,
    hostname: str | None = None,
    *,
    burned: bool | None = None,
    driver: str | None = None,
    lock: bool = False,
) -> list[ProviderRecord]:
    """Return the devices that flavors ask for, ordered by id, of one host or of all.

    :param driver: only those of one driver, such as :data:`FUNCTIONS_DRIVER`.
    """
    query = _BOTH.order_by(devices.c.id)
    if hostname is not None:
        query = query.where(devices.c.hostname == hostname)
    if burned is not None:
        query = query.where(devices.c.burned_at.is_not(None) if burned else devices.c.burned_at.is_(None))
    if driver is not None:
        query = query.where(deployables.c.driver_name == driver)
    if lock:
        _lock(tx, query)
    return _records(tx, query)


def functions(tx: Connection, hostname: str | None = None) -> list[FunctionRecord]:
    """Return functions ordered by host and address, of one host or of all."""
    return _functions(tx, _FUNCTION if hostname is None else _FUNCTION.where(devices.c.hostname == hostname))


def functions_of(tx: Connection, provider: ProviderRecord) -> list[FunctionRecord]:
    """Return the functions of a device, ordered by address."""
    return _functions(tx, _FUNCTION.where(devices.c.id == provider.id))


def functions_of_instances(tx: Connection, instance_uuids: Collection[str]) -> list[FunctionRecord]:
    """Return the functions of instances, ordered by host and address."""
    return _functions(tx, _FUNCTION.where(attach_handles.c.instance_uuid.in_(list(instance_uuids))))


def _claimed_by(condition: sa.ColumnElement[bool]) -> sa.Exists:
    """Return the condition that a function of the device meets *condition*."""
    own = sa.exists().where(
        attach_handles.c.deployable_id == deployables.c.id, deployables.c.device_id == devices.c.id, condition
    )
    return own.correlate(devices)


def providers_of_instance(tx: Connection, instance_uuid: str) -> list[ProviderRecord]:
    """Return the devices of which an instance has a function, and those that it has burned, even after it was freed."""
    has_function = _claimed_by(attach_handles.c.instance_uuid == instance_uuid)
    query = _BOTH.where(sa.or_(has_function, devices.c.burned_for == instance_uuid))
    return _records(tx, query.order_by(devices.c.id))


def is_claimed(tx: Connection, device_id: int) -> bool:
    """Return whether an instance has one of the functions of a device by its flavor."""
    query = sa.select(sa.func.count()).where(
        attach_handles.c.deployable_id == deployables.c.id,
        deployables.c.device_id == device_id,
        attach_handles.c.instance_uuid.is_not(None),
    )
    return bool(tx.execute(query).scalar_one())


def owners(tx: Connection) -> dict[int, dict[str, str | None]]:
    """Return the instance of each function that flavors ask for, or None, by device id and address."""
    found: dict[int, dict[str, str | None]] = {}
    for function in functions(tx):
        found.setdefault(function.provider_id, {})[function.address] = function.instance_uuid
    return found


def describe_function(tx: Connection, function: FunctionRecord, values: Mapping[str, Any]) -> None:
    """Write the descriptive columns of a function; only :func:`claim` and :func:`free` write its instance."""
    now = {
        "address": function.address,
        "dev_type": function.dev_type,
        "vendor_id": function.vendor_id,
        "product_id": function.product_id,
        "managed": function.managed,
        "missing": function.missing,
        **values,
    }
    statement = attach_handles.update().where(attach_handles.c.id == function.id)
    tx.execute(statement.values(attach_info=_info(now), missing=now["missing"]))


def claim(tx: Connection, function_ids: Sequence[int], instance_uuid: str) -> bool:
    """Assign functions to an instance if they are free and not missing.

    :returns: whether all were assigned; if not, the caller must not commit.
    """
    statement = attach_handles.update().where(
        attach_handles.c.id.in_(function_ids),
        attach_handles.c.instance_uuid.is_(None),
        attach_handles.c.missing.is_(False),
    )
    taken = tx.execute(statement.values(instance_uuid=instance_uuid, updated_at=utcnow())).rowcount
    return taken == len(function_ids)


def free(tx: Connection, function: FunctionRecord) -> bool:
    """Free a function if it still has the instance of *function*; return whether it was freed."""
    statement = attach_handles.update().where(
        attach_handles.c.id == function.id, attach_handles.c.instance_uuid == function.instance_uuid
    )
    return tx.execute(statement.values(instance_uuid=None, updated_at=utcnow())).rowcount == 1


def delete_functions(tx: Connection, function_ids: Iterable[int]) -> None:
    """Remove functions that no instance has."""
    tx.execute(
        attach_handles.delete().where(
            attach_handles.c.id.in_(list(function_ids)), attach_handles.c.instance_uuid.is_(None)
        )
    )


@dataclass(frozen=True)
class BurnedView:
    """Represent a burned device. Only whole devices are one-time-use, and these have one function."""

    provider: ProviderRecord
    functions: Sequence[FunctionRecord]

    @property
    def instance_uuid(self) -> str | None:
        """Return the instance that has it now; None if it is idle."""
        return next((each.instance_uuid for each in self.functions if each.instance_uuid is not None), None)

    @property
    def missing(self) -> bool:
        """Return whether it is no longer on its host, or in the configuration there."""
        return self.provider.device.missing


def list_all(tx: Connection, hostname: str | None = None) -> list[BurnedView]:
    """Return all burned devices that flavors ask for, of one host or of all."""
    burned = providers(tx, hostname, burned=True)
    own: dict[int, list[FunctionRecord]] = defaultdict(list)
    if burned:
        query = _FUNCTION.where(devices.c.burned_at.is_not(None))
        for function in _functions(tx, query if hostname is None else query.where(devices.c.hostname == hostname)):
            own[function.provider_id].append(function)
    return [BurnedView(each, own[each.id]) for each in burned]


def view(tx: Connection, provider: ProviderRecord) -> BurnedView:
    """Return the burned view of one device."""
    return BurnedView(provider, functions_of(tx, provider))


class AdditionKind(StrEnum):
    """Name the kind of an addition."""

    INVENTORY = "inventory"
    TRAIT = "trait"


@dataclass(frozen=True)
class Addition:
    """Represent an added inventory or trait of one provider. ``name`` is that of the resource class or the trait."""

    rp_uuid: str
    kind: AdditionKind
    name: str


def of_host(tx: Connection, hostname: str) -> frozenset[Addition]:
    """Return all additions on record for a host."""
    query = sa.select(additions.c.rp_uuid, additions.c.kind, additions.c.name).where(additions.c.hostname == hostname)
    return frozenset(Addition(row.rp_uuid, AdditionKind(row.kind), row.name) for row in tx.execute(query))


def added_classes(tx: Connection, rp_uuid: str) -> frozenset[str]:
    """Return the resource classes added to a provider."""
    query = sa.select(additions.c.name).where(
        additions.c.rp_uuid == rp_uuid, additions.c.kind == AdditionKind.INVENTORY.value
    )
    return frozenset(tx.execute(query).scalars())


def remember(tx: Connection, hostname: str, added: frozenset[Addition]) -> None:
    """Record additions before they are written to Placement; none of them may be on record."""
    tx.execute(
        additions.insert(),
        [{"hostname": hostname, "rp_uuid": each.rp_uuid, "kind": each.kind.value, "name": each.name} for each in added],
    )


def forget(tx: Connection, hostname: str, removed: frozenset[Addition]) -> None:
    """Remove the record of additions that are no longer in Placement."""
    for each in removed:
        tx.execute(
            additions.delete().where(
                additions.c.hostname == hostname,
                additions.c.rp_uuid == each.rp_uuid,
                additions.c.kind == each.kind.value,
                additions.c.name == each.name,
            )
        )
