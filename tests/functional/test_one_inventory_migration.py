"""The devices that flavors ask for, and their functions, move from their own tables into those of device profiles."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from migrating import PowerCutError, deaths, dying_at, sync
from pciworld import CLASS, HOST, ONE, TWO, PCIWorld

from autoclave.db import devices as device_rows
from autoclave.db import history, pci, schema
from autoclave.db.columns import utcnow
from autoclave.db.devices import DeviceRecord
from autoclave.db.engine import Database, current_revision
from autoclave.exceptions import Conflict, InvalidConfiguration
from autoclave.lifecycle.reserve import Settled
from autoclave.placement.records import Inventory
from autoclave.rules.device_lifecycle import DeviceState
from autoclave.rules.reclaim import BurnState, Reclaim, RequestedBy
from autoclave.rules.resource_names import OWNER_CYBORG, OWNER_NOVA
from dbfixtures import server_database
from oldrows import NOW, address, column, insert

pytestmark = pytest.mark.matrix

BEFORE = "0018_published_totals"
TRAITS = frozenset({"COMPUTE_MANAGED_PCI_DEVICE", "CUSTOM_RACK_7", OWNER_NOVA, "HW_PCI_ONE_TIME_USE"})
BURNED = {"one_time_use": True, "burned": True, "burned_at": NOW, "burned_for": ONE}
IDLE: tuple[str | None, ...] = (None,)


@dataclass(frozen=True)
class Card:
    """A device of a flavor as the release before stores it, and what becomes of it.

    :param columns: of ``pci_providers``, if they differ from an idle device.
    :param instances: the instance of each of its functions.
    :param gone: its functions are not on the host.
    :param full: Placement has all of it reserved.
    :param used: the amount allocated in Placement.
    :param state: the state, policy, burn and outcome after the upgrade.
    """

    columns: dict[str, Any] = field(default_factory=dict)
    instances: tuple[str | None, ...] = IDLE
    gone: bool = False
    full: bool = False
    used: int = 0
    state: DeviceState = DeviceState.AVAILABLE
    reclaim: Reclaim = Reclaim.NONE
    burn: BurnState = BurnState.NOT_BURNED
    settled: Settled = Settled.UNCHANGED
    reserved: bool = False


_SPENT: dict[str, Any] = {
    "columns": BURNED,
    "full": True,
    "state": DeviceState.SPENT,
    "reclaim": Reclaim.HOLD,
    "reserved": True,
}
CARDS = {
    "idle": Card(),
    "idle, one-time-use": Card({"one_time_use": True}, reclaim=Reclaim.HOLD),
    "used": Card(instances=(ONE,), used=1, state=DeviceState.ALLOCATED),
    "used in part": Card({"total": 2}, instances=(ONE, None), used=1),
    "used by two": Card({"total": 2}, instances=(ONE, TWO), used=2, state=DeviceState.ALLOCATED),
    "burned, in use": Card(
        BURNED,
        (ONE,),
        full=True,
        used=1,
        state=DeviceState.ALLOCATED,
        reclaim=Reclaim.HOLD,
        burn=BurnState.BURNED,
        settled=Settled.RAISED,
        reserved=True,
    ),
    "burned, unconfirmed": Card(**_SPENT, burn=BurnState.BURNED, settled=Settled.CONFIRMED),
    "burned, unconfirmed, still allocated": Card(**_SPENT, used=1, burn=BurnState.BURNED),
    "burned, unconfirmed, lowered": Card(**{**_SPENT, "full": False}, burn=BurnState.BURNED, settled=Settled.RAISED),
    "burned, confirmed": Card(**{**_SPENT, "columns": {**BURNED, "burn_confirmed": True}}, burn=BurnState.CONFIRMED),
    "burned, confirmed, lowered": Card(
        **{
            **_SPENT,
            "columns": {**BURNED, "burn_confirmed": True},
            "full": False,
            "reserved": False,
        },
        burn=BurnState.CONFIRMED,
        settled=Settled.LOWERED,
    ),
    "burned without a time": Card(
        **{**_SPENT, "columns": {"one_time_use": True, "burned": True}},
        burn=BurnState.BURNED,
        settled=Settled.CONFIRMED,
    ),
    "released": Card(
        {**BURNED, "burn_confirmed": True, "release_pending": True},
        full=True,
        reclaim=Reclaim.HOLD,
        burn=BurnState.RELEASED,
        settled=Settled.LOWERED,
    ),
    "mark taken away while burned": Card(
        **{**_SPENT, "columns": {**BURNED, "one_time_use": False, "burn_confirmed": True}, "reclaim": Reclaim.NONE},
        burn=BurnState.CONFIRMED,
    ),
    "mark taken away in use": Card(
        {**BURNED, "one_time_use": False},
        (ONE,),
        full=True,
        used=1,
        state=DeviceState.ALLOCATED,
        burn=BurnState.BURNED,
        settled=Settled.RAISED,
        reserved=True,
    ),
    "unreadable": Card(
        {"unreadable_reason": "its configuration space is empty", "withheld": True}, full=True, reserved=True
    ),
    "unreadable, not reserved yet": Card(
        {"unreadable_reason": "its configuration space is empty"}, settled=Settled.RAISED, reserved=True
    ),
    "outdated": Card(
        {"outdated": True, "waiting_for": "it waits until its functions are free"},
        settled=Settled.RAISED,
        reserved=True,
    ),
    "no longer outdated": Card({"withheld": True}, full=True, settled=Settled.LOWERED),
    "held in Placement": Card(full=True, settled=Settled.OPERATORS_HOLD, reserved=True),
    "missing": Card(gone=True, settled=Settled.RAISED, reserved=True),
    "serial number of a burned card": Card(
        **{**_SPENT, "columns": {**BURNED, "burn_confirmed": True, "serial": "10de:25b6:0 0123456789abcdef"}},
        burn=BurnState.CONFIRMED,
    ),
}
DRIVE_STATES = ["available", "allocated", "pending_cleaning", "cleaning", "error", None]


@pytest.fixture
def old(empty_url: str) -> Iterator[Database]:
    """A database of the release before."""
    found = Database(empty_url)
    schema.upgrade(found, BEFORE)
    yield found
    found.dispose()


def slot(number: int) -> str:
    return f"0000:{number + 1:02x}:00.0"


def old_card(tx: sa.Connection, number: int, card: Card, hostname: str = HOST) -> str:
    """Insert a device as the release before does; return the uuid of its provider."""
    made = str(uuid.UUID(int=number + 1))
    defaults = {"resource_class": CLASS, "traits": json.dumps(sorted(TRAITS)), "total": 1, "state_version": 7}
    insert(
        tx, "pci_providers", id=number + 1, uuid=made, hostname=hostname, address=slot(number),
        **{**defaults, **card.columns},
    )  # fmt: skip
    for function, instance in enumerate(card.instances):
        insert(
            tx, "pci_functions", provider_id=number + 1, hostname=hostname, address=f"{slot(number)[:-1]}{function}",
            dev_type="type-PF", vendor_id="10de", product_id="25b6", managed=function == 0, instance_uuid=instance,
            missing=card.gone,
        )  # fmt: skip
    insert(
        tx, "device_events", device_uuid=made, event="burn", actor=f"agent {HOST}", reason="of the release before",
    )  # fmt: skip
    if serial := card.columns.get("serial"):
        insert(tx, "burned_cards", serial=serial, rp_uuid=made)
    return made


def publish(world: PCIWorld, made: str, number: int, card: Card) -> None:
    """Write the provider as the release before has left it in Placement."""
    world.make(made, slot(number))
    total = card.columns.get("total", 1)
    state = world.onlooker.get_inventories(made)
    world.onlooker.ensure_traits(TRAITS)
    world.onlooker.put_traits(made, state.generation, TRAITS)
    state = world.onlooker.get_inventories(made)
    record = Inventory(total, total if card.full else 0, 1, total, 1, 1.0)
    # Use first: Placement refuses an allocation from what is reserved.
    world.onlooker.ensure_resource_class(CLASS)
    world.onlooker.put_inventories(made, state.generation, {CLASS: Inventory(total, 0, 1, total, 1, 1.0)})
    for _ in range(card.used):
        world.allocate(made, str(uuid.uuid4()))
    state = world.onlooker.get_inventories(made)
    world.onlooker.put_inventories(made, state.generation, {CLASS: record})


@pytest.mark.parametrize("name", CARDS)
def test_device_of_a_flavor_keeps_state_and_reserved(old: Database, name: str) -> None:
    card = CARDS[name]
    with old.write() as tx:
        made = old_card(tx, 0, card)
    assert schema.upgrade(old) == BEFORE
    world = PCIWorld(old)
    publish(world, made, 0, card)
    row = world.row(made)
    assert (row.device.device_state, row.device.reclaim, row.burn_state) == (card.state, card.reclaim, card.burn)
    with old.read() as tx:
        assert [each.instance_uuid for each in pci.functions_of(tx, row)] == list(card.instances)
        assert [each.reason for each in history.history(tx, made)] == ["of the release before"]
    assert world.settle(made) is card.settled
    assert world.reserved(made) == (row.total if card.reserved else 0)
    world.settle(made)
    assert world.reserved(made) == (row.total if card.reserved else 0), "the second time writes the same"


def test_every_column_of_a_device_moves(old: Database) -> None:
    columns = {
        **BURNED,
        "burn_confirmed": True,
        "serial": "10de:25b6:0 0123456789abcdef",
        "outdated": True,
        "waiting_for": "its total, when it is free",
        "unreadable_reason": "its configuration space is empty",
        "withheld": True,
        "updated_at": "2026-01-03 00:00:00",
    }
    with old.write() as tx:
        made = old_card(tx, 0, Card(columns))
    schema.upgrade(old)
    with old.read() as tx:
        row = pci.get(tx, made)
        assert row is not None
        [function] = pci.functions_of(tx, row)
        assert pci.noted_by(tx, columns["serial"]) == made
        tables = sa.inspect(tx).get_table_names()
    device = row.device
    assert (device.uuid, row.uuid, row.hostname, row.address) == (made, made, HOST, slot(0))
    assert (device.requested_by, device.type.value, device.state_version) == (RequestedBy.FLAVOR, "PCI", 7)
    assert (device.serial, device.burned_for, str(device.burned_at)) == (columns["serial"], ONE, NOW)
    assert (device.outdated, device.waiting_for, device.withheld) == (True, columns["waiting_for"], True)
    assert device.unreadable_reason == columns["unreadable_reason"]
    assert (str(device.created_at), str(device.updated_at)) == (NOW, columns["updated_at"])
    assert (row.resource_class, row.total, row.trait_names) == (CLASS, 1, TRAITS)
    assert (row.deployable.name, row.deployable.driver_name) == (f"{HOST}_{slot(0).upper()}", "pci_device_spec")
    assert (function.address, function.dev_type, function.managed) == (slot(0), "type-PF", True)
    assert (function.vendor_id, function.product_id, function.missing) == ("10de", "25b6", False)
    assert not {"pci_providers", "pci_functions"} & set(tables)


def test_devices_of_all_states_move_together(old: Database) -> None:
    with old.write() as tx:
        made = [old_card(tx, number, card) for number, card in enumerate(CARDS.values())]
    schema.upgrade(old)
    with old.read() as tx:
        rows = {row.uuid: row.device.device_state for row in pci.providers(tx)}
    assert rows == {each: card.state for each, card in zip(made, CARDS.values(), strict=True)}


def test_release_after_the_upgrade_offers_the_device(old: Database) -> None:
    """A spent device that was confirmed before the upgrade is released by a lowered ``reserved``, and its card too."""
    card = CARDS["serial number of a burned card"]
    with old.write() as tx:
        made = old_card(tx, 0, card)
    schema.upgrade(old)
    world = PCIWorld(old)
    publish(world, made, 0, card)
    world.lower(made)
    assert world.settle(made) is Settled.LOWERED
    assert (world.row(made).device.device_state, world.row(made).burned) == (DeviceState.AVAILABLE, False)
    with old.read() as tx:
        assert pci.noted_by(tx, card.columns["serial"]) is None
    assert world.offered(made)


def test_device_in_use_is_spent_after_its_instance(old: Database) -> None:
    card = CARDS["burned, in use"]
    with old.write() as tx:
        made = old_card(tx, 0, card)
    schema.upgrade(old)
    world = PCIWorld(old)
    publish(world, made, 0, Card(card.columns, (ONE,), full=True))
    world.free(ONE)
    assert world.settle(made) is Settled.CONFIRMED
    assert world.row(made).device.device_state is DeviceState.SPENT
    assert not world.offered(made)


def id_of(tx: sa.Connection, table: str, made: str) -> Any:
    """Return the id of a row. The database chooses it: PostgreSQL would give a chosen one again."""
    return tx.scalar(sa.text(f"SELECT id FROM {table} WHERE uuid = :made"), {"made": made})


def old_device(tx: sa.Connection, number: int, kind: str, state: str | None, **values: Any) -> str:
    """Insert a device of a profile as the release before does; return its uuid."""
    made = str(uuid.UUID(int=1000 + number))
    insert(
        tx, "devices", uuid=made, type=kind, vendor="144d", model="a808", hostname=HOST, status="enabled",
        pci_address=f"0000:{number:02x}:10.0", device_state=state, serial=f"S{number}", **values,
    )  # fmt: skip
    device_id = id_of(tx, "devices", made)
    insert(
        tx, "deployables", uuid=f"deployable-{number}", name=f"name-{number}", num_accelerators=1,
        device_id=device_id, rp_uuid=made, resource_class=CLASS, driver_name="driver", published_total=1,
    )  # fmt: skip
    deployable_id = id_of(tx, "deployables", f"deployable-{number}")
    insert(tx, "attributes", uuid=f"attribute-{number}", deployable_id=deployable_id, key="rc", value=CLASS)
    insert(
        tx, "attach_handles", uuid=f"handle-{number}", deployable_id=deployable_id, attach_type="PCI",
        attach_info=address("0a"), identity="0000:0a:00.0",
    )  # fmt: skip
    return made


@pytest.mark.parametrize(("kind", "reclaim"), [("NVME", Reclaim.ERASE), ("PCI", Reclaim.NONE), ("GPU", Reclaim.NONE)])
def test_devices_of_profiles_keep_state_and_policy(old: Database, kind: str, reclaim: Reclaim) -> None:
    with old.write() as tx:
        made = [old_device(tx, number, kind, state) for number, state in enumerate(DRIVE_STATES, start=1)]
    schema.upgrade(old)
    rows = [find(old, each) for each in made]
    assert [row.device_state for row in rows] == DRIVE_STATES
    assert {(row.requested_by, row.reclaim) for row in rows} == {(RequestedBy.PROFILE, reclaim)}
    assert not any(row.withheld or row.outdated or row.burned_at for row in rows)
    assert [row.serial for row in rows] == [f"S{number}" for number in range(1, len(rows) + 1)]
    assert column(old, "attach_handles", "instance_uuid") == [None] * len(rows)


@pytest.mark.parametrize("state", DRIVE_STATES)
def test_reserved_of_devices_of_profiles_stays(old: Database, state: str | None) -> None:
    with old.write() as tx:
        made = old_device(tx, 1, "NVME", state)
    schema.upgrade(old)
    world = PCIWorld(old)
    publish(world, made, 0, Card(full=state != "available"))
    world.settle(made)
    assert world.reserved(made) == (0 if state == "available" else 1)


def test_unreadable_drive_is_offered_again_once_it_is_read(old: Database) -> None:
    """The release before has reserved it for that alone, and has no record of it."""
    with old.write() as tx:
        made = old_device(tx, 1, "NVME", "available", unreadable_reason="it does not answer")
    schema.upgrade(old)
    world = PCIWorld(old)
    publish(world, made, 0, Card(full=True))
    state = world.onlooker.get_inventories(made)
    world.onlooker.put_traits(made, state.generation, {OWNER_CYBORG})
    assert find(old, made).withheld
    assert (world.settle(made), world.reserved(made)) == (Settled.UNCHANGED, 1)
    with old.write() as tx:
        device_rows.update(tx, find(old, made), {"unreadable_reason": None})
    assert (world.settle(made), world.reserved(made), find(old, made).withheld) == (Settled.LOWERED, 0, False)


def find(database: Database, made: str) -> DeviceRecord:
    with database.read() as tx:
        found = device_rows.get(tx, made)
    assert found is not None
    return found


def contents(database: Database) -> dict[str, list[Any]]:
    """All rows of the former tables and of devices."""
    with database.read() as tx:
        present = set(sa.inspect(tx).get_table_names())
        tables = [each for each in ("pci_providers", "pci_functions", "devices") if each in present]
        return {each: list(tx.execute(sa.text(f"SELECT * FROM {each} ORDER BY id"))) for each in tables}


def test_interrupted_upgrade_is_finished_by_the_next_one(old: Database) -> None:
    cards = [CARDS[name] for name in ("used by two", "released", "burned, confirmed", "unreadable")]
    with old.write() as tx:
        made = [old_card(tx, number, card) for number, card in enumerate(cards)]
        drive = old_device(tx, 100, "NVME", "available")
    before = contents(old)
    for statement in deaths(old):
        try:
            with dying_at(old, statement):
                schema.upgrade(old)
        except PowerCutError:
            assert current_revision(old) == BEFORE
            if old.backend != "mysql":
                assert contents(old) == before, f"statement {statement}"
        else:
            break
    assert statement > 3
    assert current_revision(old) == schema.head()
    with old.read() as tx:
        rows = pci.providers(tx)
        functions = pci.functions(tx)
    assert {row.uuid: row.device.device_state for row in rows} == {
        each: card.state for each, card in zip(made, cards, strict=True)
    }
    assert len(rows) == len(cards)
    assert {row.trait_names for row in rows} == {TRAITS}
    assert len(functions) == sum(len(card.instances) for card in cards)
    assert find(old, drive).reclaim is Reclaim.ERASE


@pytest.mark.integration
@pytest.mark.parametrize("statement", range(1, 41, 4))
def test_upgrade_killed_once_on_mariadb_loses_no_row(statement: int) -> None:
    """MariaDB keeps the changed tables of an interrupted upgrade, but no half-moved device."""
    with server_database("mariadb") as url:
        database = Database(url)
        try:
            schema.upgrade(database, BEFORE)
            with database.write() as tx:
                made = [old_card(tx, 0, CARDS["used by two"]), old_card(tx, 1, CARDS["released"])]
            with pytest.raises(PowerCutError), dying_at(database, statement):
                schema.upgrade(database)
            schema.upgrade(database)
            with database.read() as tx:
                rows = pci.providers(tx)
                instances = [each.instance_uuid for each in pci.functions(tx)]
            assert [row.uuid for row in rows] == made
            assert instances == [ONE, TWO, None]
            assert [row.device.release_pending for row in rows] == [False, True]
        finally:
            database.dispose()


def test_slot_on_record_twice_refuses_and_changes_nothing(old: Database) -> None:
    with old.write() as tx:
        old_card(tx, 0, CARDS["burned, confirmed"])
        old_card(tx, 1, CARDS["idle"])
        old_device(tx, 1, "PCI", "available")
        tx.execute(sa.text(f"UPDATE devices SET pci_address = '{slot(0)}'"))
    before = contents(old)
    for _ in range(2):
        with pytest.raises(InvalidConfiguration, match="have a device of a driver and a function") as refused:
            schema.upgrade(old)
        said = str(refused.value)
        assert f"{HOST}/{slot(0)}" in said
        assert f"{HOST}/{slot(1)}" not in said
        assert "autoclave device forget" in said
        assert "autoclave burned release" in said
        assert (contents(old), current_revision(old)) == (before, BEFORE)


def test_same_address_on_another_host_is_no_conflict(old: Database) -> None:
    with old.write() as tx:
        made = old_card(tx, 0, CARDS["idle"], hostname="host-2")
        old_device(tx, 1, "PCI", "available")
        tx.execute(sa.text(f"UPDATE devices SET pci_address = '{slot(0)}'"))
    schema.upgrade(old)
    assert find(old, made).hostname == "host-2"


def seen(database: Database, hostname: str, ago: timedelta) -> None:
    """An agent has reported that long ago."""
    at = utcnow() - ago
    with database.write() as tx:
        tx.execute(
            sa.text(
                "INSERT INTO agents (hostname, run_id, rpc_version, started_at, last_seen) "
                "VALUES (:host, 'run', '1.3', :at, :at)"
            ),
            {"host": hostname, "at": at},
        )


def test_db_sync_refuses_beside_a_running_agent(old: Database, empty_url: str, tmp_path: Path) -> None:
    with old.write() as tx:
        old_card(tx, 0, CARDS["used"])
    before = contents(old)
    seen(old, "host-1", timedelta(seconds=5))
    seen(old, "host-2", timedelta(days=1))
    with pytest.raises(Conflict, match=r"running on host-1, or were less than \d+ s ago.*Stop every agent") as refused:
        sync(empty_url, tmp_path)
    assert "Nothing was changed" in str(refused.value)
    assert "host-2" not in str(refused.value)
    assert (contents(old), current_revision(old)) == (before, BEFORE)


def test_db_sync_upgrades_once_agents_are_stopped(old: Database, empty_url: str, tmp_path: Path) -> None:
    with old.write() as tx:
        made = old_card(tx, 0, CARDS["used"])
    seen(old, "host-1", timedelta(days=1))
    assert f"upgraded from {BEFORE} to {schema.head()}" in sync(empty_url, tmp_path)
    assert find(old, made).device_state is DeviceState.ALLOCATED


def test_db_sync_of_the_current_schema_ignores_agents(old: Database, empty_url: str, tmp_path: Path) -> None:
    schema.upgrade(old)
    seen(old, "host-1", timedelta(0))
    assert "already at" in sync(empty_url, tmp_path)
