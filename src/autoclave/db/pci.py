"""Store the PCI functions that flavors ask for, and which of them are burned.

A burned card stays burned in every slot of every host. Additions of the operator's provider configuration are recorded
before they are written to Placement.
"""

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from oslo_db.exception import DBDuplicateEntry
from sqlalchemy.engine import Connection

from autoclave.db.columns import utcnow
from autoclave.db.query import columns, fetch_all, fetch_one
from autoclave.db.tables import burned_cards, pci_functions, pci_providers
from autoclave.db.tables import provider_config_additions as additions
from autoclave.rules.burn import BurnFacts, BurnState


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
    """Represent a provider row.

    :param uuid: uuid of the resource provider, committed before the provider is created.
    :param traits: sorted JSON list.
    :param burned_for: the instance that burned it.
    :param waiting_for: the change of host or configuration that takes effect later, and why; None if there is none.
    :param outdated: because of that change, it is no longer offered.
    :param unreadable_reason: why its agent could not read it for ``[agent] unreadable_patience``.
    :param withheld: Autoclave has reserved it for one of these two reasons, and must lower ``reserved`` afterwards.
    """

    id: int
    uuid: str
    hostname: str
    address: str
    serial: str | None
    """Unique identifier of the card in the slot; None if unknown."""
    resource_class: str
    traits: str
    total: int
    one_time_use: bool
    burned: bool
    burn_confirmed: bool
    burned_at: datetime | None
    burned_for: str | None
    release_pending: bool
    waiting_for: str | None
    outdated: bool
    unreadable_reason: str | None
    withheld: bool
    state_version: int
    created_at: datetime
    updated_at: datetime | None

    @property
    def trait_names(self) -> frozenset[str]:
        """Return ``traits`` as a set."""
        return frozenset(json.loads(self.traits))

    @property
    def card_serial(self) -> str | None:
        """Return the serial number of the card itself, without the ids and the function stored before it."""
        return self.serial.partition(" ")[2] if self.serial else None

    @property
    def burn_state(self) -> BurnState:
        """Return its state in the life cycle of a burn."""
        if not self.burned:
            return BurnState.NOT_BURNED
        if self.release_pending:
            return BurnState.RELEASED
        return BurnState.CONFIRMED if self.burn_confirmed else BurnState.BURNED

    @property
    def in_doubt(self) -> bool:
        """Return whether no further instance may get it, burned or not."""
        return self.outdated or self.unreadable_reason is not None

    def facts(self, *, claimed: int, missing: bool = False) -> BurnFacts:
        """Return what ``rules.burn`` decides by.

        :param claimed: number of its functions that instances have.
        """
        return BurnFacts(
            self.one_time_use,
            self.burned,
            self.burn_confirmed,
            self.release_pending,
            claimed > 0,
            missing,
            doubted=self.in_doubt and claimed < self.total,
            withheld=self.withheld,
        )


@dataclass(frozen=True)
class FunctionRecord:
    """Represent a function row. ``missing``: it is no longer on the host or in its configuration."""

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
    created_at: datetime
    updated_at: datetime | None


NOT_BURNED: Mapping[str, Any] = {
    "burned": False,
    "burn_confirmed": False,
    "burned_at": None,
    "burned_for": None,
    "release_pending": False,
}
"""Columns of a provider whose burn has ended."""

_PROVIDER = columns(ProviderRecord, pci_providers)
_FUNCTION = columns(FunctionRecord, pci_functions)
_CLAIMED = (
    sa.exists()
    .where(pci_functions.c.provider_id == pci_providers.c.id, pci_functions.c.instance_uuid.is_not(None))
    .correlate(pci_providers)
)


def burned_for(instance_uuid: str | None, now: datetime) -> dict[str, Any]:
    """Return the columns of a provider that *instance_uuid* burns; an earlier release becomes void.

    :param instance_uuid: None if no instance is on record.
    """
    return {
        "burned": True,
        "burn_confirmed": False,
        "burned_at": now,
        "burned_for": instance_uuid,
        "release_pending": False,
    }


def insert_provider(tx: Connection, values: Mapping[str, Any]) -> int:
    """Insert a provider row and return its id."""
    return int(tx.execute(pci_providers.insert().values(**values)).inserted_primary_key[0])  # type: ignore[index]


def insert_functions(tx: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Insert function rows."""
    if rows:
        tx.execute(pci_functions.insert(), list(rows))


def get(tx: Connection, uuid: str, *, lock: bool = False) -> ProviderRecord | None:
    """Return the provider with *uuid*, or None; with *lock*, its row stays locked until the transaction ends."""
    query = sa.select(*_PROVIDER).where(pci_providers.c.uuid == uuid)
    return fetch_one(tx, ProviderRecord, query.with_for_update() if lock else query)


def with_serial(tx: Connection, serial: str) -> list[ProviderRecord]:
    """Return the providers of any host in whose slot the card with *serial* was last seen."""
    query = sa.select(*_PROVIDER).where(pci_providers.c.serial == serial).order_by(pci_providers.c.id)
    return fetch_all(tx, ProviderRecord, query)


def providers(
    tx: Connection, hostname: str | None = None, *, burned: bool | None = None, lock: bool = False
) -> list[ProviderRecord]:
    """Return providers ordered by id, of one host or of all."""
    query = sa.select(*_PROVIDER).order_by(pci_providers.c.id)
    if hostname is not None:
        query = query.where(pci_providers.c.hostname == hostname)
    if burned is not None:
        query = query.where(pci_providers.c.burned.is_(burned))
    return fetch_all(tx, ProviderRecord, query.with_for_update() if lock else query)


def functions(tx: Connection, hostname: str | None = None) -> list[FunctionRecord]:
    """Return functions ordered by host and address, of one host or of all."""
    query = sa.select(*_FUNCTION).order_by(pci_functions.c.hostname, pci_functions.c.address)
    return fetch_all(
        tx, FunctionRecord, query if hostname is None else query.where(pci_functions.c.hostname == hostname)
    )


def functions_of(tx: Connection, provider: ProviderRecord) -> list[FunctionRecord]:
    """Return the functions of a provider, ordered by address."""
    query = sa.select(*_FUNCTION).where(pci_functions.c.provider_id == provider.id).order_by(pci_functions.c.address)
    return fetch_all(tx, FunctionRecord, query)


def functions_of_instances(tx: Connection, instance_uuids: Collection[str]) -> list[FunctionRecord]:
    """Return the functions of instances, ordered by host and address."""
    query = (
        sa.select(*_FUNCTION)
        .where(pci_functions.c.instance_uuid.in_(list(instance_uuids)))
        .order_by(pci_functions.c.hostname, pci_functions.c.address)
    )
    return fetch_all(tx, FunctionRecord, query)


def providers_of_instance(tx: Connection, instance_uuid: str) -> list[ProviderRecord]:
    """Return the providers whose functions an instance has, and those that it has burned, even after it was freed."""
    has_function = sa.exists().where(
        pci_functions.c.provider_id == pci_providers.c.id, pci_functions.c.instance_uuid == instance_uuid
    )
    query = sa.select(*_PROVIDER).where(sa.or_(has_function, pci_providers.c.burned_for == instance_uuid))
    return fetch_all(tx, ProviderRecord, query.order_by(pci_providers.c.id))


def is_claimed(tx: Connection, provider: ProviderRecord) -> bool:
    """Return whether an instance has one of the provider's functions."""
    query = sa.select(sa.func.count()).where(
        pci_functions.c.provider_id == provider.id, pci_functions.c.instance_uuid.is_not(None)
    )
    return bool(tx.execute(query).scalar_one())


def count_unreadable(tx: Connection) -> list[tuple[str, int]]:
    """Return each host with functions on record, and how many of them are withheld as unreadable."""
    unreadable = sa.case((pci_providers.c.unreadable_reason.is_not(None), 1), else_=0)
    query = (
        sa.select(pci_providers.c.hostname, sa.func.sum(unreadable))
        .join(pci_functions, pci_functions.c.provider_id == pci_providers.c.id)
        .group_by(pci_providers.c.hostname)
        .order_by(pci_providers.c.hostname)
    )
    return [(host, int(count)) for host, count in tx.execute(query)]


def owners(tx: Connection) -> dict[int, dict[str, str | None]]:
    """Return the instance of each function, or None, by provider id and address."""
    of = pci_functions.c
    found: dict[int, dict[str, str | None]] = {}
    for row in tx.execute(sa.select(of.provider_id, of.address, of.instance_uuid)):
        found.setdefault(row.provider_id, {})[row.address] = row.instance_uuid
    return found


def swap(tx: Connection, provider: ProviderRecord, values: Mapping[str, Any], *, idle: bool = False) -> bool:
    """Write the burn columns of a provider, if its row still has the version of *provider*.

    :param idle: write only if no instance has a function of the provider.
    :returns: whether the row was written; False if it was changed concurrently.
    """
    statement = pci_providers.update().where(
        pci_providers.c.id == provider.id, pci_providers.c.state_version == provider.state_version
    )
    if idle:
        statement = statement.where(~_CLAIMED)
    written = statement.values(state_version=provider.state_version + 1, updated_at=utcnow(), **values)
    return tx.execute(written).rowcount == 1


def note_withheld(tx: Connection, provider: ProviderRecord, *, withheld: bool) -> bool:
    """Record whether Autoclave has reserved a doubted provider, if its row is unchanged.

    The version is kept, because the burn has not changed.

    :returns: whether the row was written.
    """
    of = pci_providers.c
    statement = pci_providers.update().where(
        of.id == provider.id,
        of.state_version == provider.state_version,
        of.outdated.is_(provider.outdated),
        of.withheld.is_(provider.withheld),
    )
    return tx.execute(statement.values(withheld=withheld)).rowcount == 1


def describe(tx: Connection, provider: ProviderRecord, values: Mapping[str, Any]) -> None:
    """Write the descriptive columns of a provider; only :func:`swap` writes its burn columns."""
    tx.execute(pci_providers.update().where(pci_providers.c.id == provider.id).values(**values))


def describe_function(tx: Connection, function: FunctionRecord, values: Mapping[str, Any]) -> None:
    """Write the descriptive columns of a function; only :func:`claim` and :func:`free` write its instance."""
    tx.execute(pci_functions.update().where(pci_functions.c.id == function.id).values(**values))


def claim(tx: Connection, function_ids: Sequence[int], instance_uuid: str) -> bool:
    """Assign functions to an instance if they are free and not missing.

    :returns: whether all were assigned; if not, the caller must not commit.
    """
    statement = pci_functions.update().where(
        pci_functions.c.id.in_(function_ids),
        pci_functions.c.instance_uuid.is_(None),
        pci_functions.c.missing.is_(False),
    )
    taken = tx.execute(statement.values(instance_uuid=instance_uuid, updated_at=utcnow())).rowcount
    return taken == len(function_ids)


def free(tx: Connection, instance_uuid: str) -> int:
    """Free all functions of an instance, and return their number. Burned functions stay burned."""
    statement = pci_functions.update().where(pci_functions.c.instance_uuid == instance_uuid)
    return int(tx.execute(statement.values(instance_uuid=None, updated_at=utcnow())).rowcount)


def take_back(tx: Connection, function: FunctionRecord) -> bool:
    """Free a function if it still has the instance of *function*; return whether it was freed."""
    statement = pci_functions.update().where(
        pci_functions.c.id == function.id, pci_functions.c.instance_uuid == function.instance_uuid
    )
    return tx.execute(statement.values(instance_uuid=None, updated_at=utcnow())).rowcount == 1


def delete_functions(tx: Connection, function_ids: Iterable[int]) -> None:
    """Remove functions that no instance has."""
    tx.execute(
        pci_functions.delete().where(
            pci_functions.c.id.in_(list(function_ids)), pci_functions.c.instance_uuid.is_(None)
        )
    )


def delete(tx: Connection, provider: ProviderRecord) -> bool:
    """Remove a provider with its functions, if it is unchanged, idle, and either not burned or released.

    :returns: whether it was removed.
    """
    found = get(tx, provider.uuid, lock=True)
    if found is None or found.state_version != provider.state_version or is_claimed(tx, found):
        return False
    if found.burned and not found.release_pending:
        return False
    if found.serial is not None:
        remove(tx, found.serial, found.uuid)
    tx.execute(pci_functions.delete().where(pci_functions.c.provider_id == provider.id))
    tx.execute(pci_providers.delete().where(pci_providers.c.id == provider.id))
    return True


@dataclass(frozen=True)
class BurnedView:
    """Represent a burned provider. Only whole devices are one-time-use, and these have one function."""

    provider: ProviderRecord
    functions: Sequence[FunctionRecord]

    @property
    def instance_uuid(self) -> str | None:
        """Return the instance that has it now; None if it is idle."""
        return next((each.instance_uuid for each in self.functions if each.instance_uuid is not None), None)

    @property
    def missing(self) -> bool:
        """Return whether it is no longer on its host, or in the configuration there."""
        return all(each.missing for each in self.functions)


def list_all(tx: Connection, hostname: str | None = None) -> list[BurnedView]:
    """Return all burned providers, of one host or of all, with two queries."""
    query = (
        sa.select(*columns(FunctionRecord, pci_functions))
        .join(pci_providers, pci_functions.c.provider_id == pci_providers.c.id)
        .where(pci_providers.c.burned.is_(True))
        .order_by(pci_functions.c.address)
    )
    if hostname is not None:
        query = query.where(pci_providers.c.hostname == hostname)
    functions: dict[int, list[FunctionRecord]] = defaultdict(list)
    for function in fetch_all(tx, FunctionRecord, query):
        functions[function.provider_id].append(function)
    return [BurnedView(each, functions[each.id]) for each in providers(tx, hostname, burned=True)]


def view(tx: Connection, provider: ProviderRecord) -> BurnedView:
    """Return the burned view of one provider."""
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
