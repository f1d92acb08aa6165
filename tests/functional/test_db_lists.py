"""Filters, orders and pages of lists, and attributes, on SQLite, PostgreSQL and MariaDB."""

from collections import Counter
from datetime import timedelta
from typing import Any

import pytest
from oslo_db.exception import DBDuplicateEntry, DBReferenceError

from autoclave.db import attributes, device_views
from autoclave.db import devices as device_rows
from autoclave.db import devices as device_summaries
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.db.query import FIELDS, Order
from autoclave.db.tables import DeviceStatus, devices
from autoclave.rules.device_lifecycle import SHOWN_STATES, ARQState, DeviceState, shown_state
from dbfixtures import make_arq, make_slot

pytestmark = pytest.mark.matrix

INSTANCE = "6f70656e-7374-6163-6b21-000000000001"


def test_every_field_filters_devices_and_deployables(database: Database) -> None:
    with database.write() as tx:
        plain, held = make_slot(tx), make_slot(tx)
        make_arq(
            tx,
            state=ARQState.BOUND,
            instance_uuid=INSTANCE,
            device_id=held.device.id,
            deployable_id=held.deployable.id,
            attach_handle_id=held.handle_id,
        )
    expected = {
        "name": (held.deployable.name, [held]),
        "board": (plain.device.model, [plain, held]),
        "availability": ("available", [plain, held]),
        "interface_type": ("PCI", [plain, held]),
        "instance_uuid": (INSTANCE, [held]),
        "parent_uuid": (INSTANCE, []),
        "root_uuid": (INSTANCE, []),
    }
    assert set(expected) == set(FIELDS)
    with database.read() as tx:
        for field, (value, slots) in expected.items():
            found = device_summaries.summaries(tx, related={field: value})
            assert [one.uuid for one in found] == [slot.device.uuid for slot in slots], field
            rows, _ = device_views.views(tx, related={field: value})
            assert [row.uuid for row in rows] == [slot.deployable.uuid for slot in slots], field
            for other in (value.swapcase(), "nobody"):
                if other != value:
                    assert device_summaries.summaries(tx, related={field: other}) == [], field


def as_clients_see(state: str | None) -> str | None:
    """The accelerator API has no state of its own for a spent device."""
    return DeviceState.ERROR.value if state == DeviceState.SPENT else state


def test_database_shows_the_states_that_the_rules_show(database: Database) -> None:
    flags: list[dict[str, Any]] = [
        {"held": True},
        {"forgetting": True},
        {"missing": True},
        {"excluded_reason": "no erase"},
        {"unreadable_reason": "given up"},
        {"outdated": True},
        {"status": DeviceStatus.MAINTAINING},
        {"host_maintained": True},
    ]
    both = [one | other for one in flags for other in flags]
    with database.write() as tx:
        for number, state in enumerate([*DeviceState, None]):
            for changes in [{}, *both] if state is DeviceState.AVAILABLE else [{}, *both[number :: len(flags)]]:
                uuid = make_slot(tx).device.uuid
                tx.execute(devices.update().where(devices.c.uuid == uuid).values(device_state=state, **changes))
    with database.read() as tx:
        everything = device_rows.list_all(tx)
        for state in SHOWN_STATES:
            expected = [device.uuid for device in everything if shown_state(device.offer) == state]
            assert [device.uuid for device in device_rows.list_all(tx, shown_state=state)] == expected
            found = device_summaries.summaries(tx, related={"availability": state})
            told = [each.uuid for each in everything if as_clients_see(shown_state(each.offer)) == state]
            assert [one.uuid for one in found] == told, state
        shown = {one.uuid: (one.status, one.device_state) for one in device_summaries.summaries(tx)}
        for device in everything:
            beside_status = shown_state(device.offer._replace(maintaining=False))
            status = "maintaining" if device.offer.maintaining else "enabled"
            assert shown[device.uuid] == (status, beside_status)
        counted: Counter[str | None] = Counter()
        for line in device_views.census(tx):
            counted[line.state] += line.count
    assert counted == Counter(shown_state(device.offer) for device in everything)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("key", ["id", "created_at", "updated_at", "hostname", "type"])
def test_the_pages_of_every_order_make_the_whole(database: Database, key: str, descending: bool) -> None:
    with database.write() as tx:
        made = [make_slot(tx).device for _ in range(5)]
        early = utcnow() - timedelta(days=1)
        # two that are alike, and one that was never changed
        tx.execute(devices.update().where(devices.c.id.in_([made[1].id, made[3].id])).values(created_at=early))
        tx.execute(devices.update().where(devices.c.id == made[2].id).values(updated_at=None, created_at=early))
    order = Order(key, descending)
    with database.read() as tx:
        whole = [one.uuid for one in device_summaries.summaries(tx, order=order)]
        pages: list[str] = []
        while len(pages) < len(whole):
            page = device_summaries.summaries(tx, order=order, after=pages[-1] if pages else None, limit=2)
            assert page
            pages += [one.uuid for one in page]
        assert device_summaries.summaries(tx, order=order, after="nobody") == []
        other_way = [one.uuid for one in device_summaries.summaries(tx, order=Order(key, not descending))]
    assert pages == whole == other_way[::-1]
    assert set(whole) == {device.uuid for device in made}


def test_an_attribute_is_its_deployables_and_its_key_is_taken_once(database: Database) -> None:
    with database.write() as tx:
        slot, other = make_slot(tx), make_slot(tx)
        made = attributes.insert(tx, slot.deployable.id, "rack", "A7 größe")
        for deployable, key in ((slot, "Rack"), (other, "rack")):
            attributes.insert(tx, deployable.deployable.id, key, "B1")
    with pytest.raises(DBDuplicateEntry), database.write() as tx:
        attributes.insert(tx, slot.deployable.id, "rack", "C9")
    with pytest.raises(DBReferenceError), database.write() as tx:
        attributes.insert(tx, 999_999, "rack", "A7")
    with database.read() as tx:
        found = attributes.get(tx, made)
        assert found is not None
        assert found.value == "A7 größe"
        assert [one.uuid for one in attributes.list_all(tx, deployable_id=slot.deployable.id, key="rack")] == [made]


def test_discovery_replaces_what_it_said_and_nothing_else(database: Database) -> None:
    with database.write() as tx:
        deployable = make_slot(tx).deployable
        attributes.replace(tx, deployable.id, {"rc": "CUSTOM_A", "trait0": "HW_X", "trait1": "HW_Y"})
        attributes.insert(tx, deployable.id, "rack", "A7")
        before = {one.key: one.uuid for one in attributes.list_all(tx, deployable_id=deployable.id)}
        attributes.replace(tx, deployable.id, {"rc": "CUSTOM_A", "trait0": "HW_Z"})
        after = {one.key: one for one in attributes.list_all(tx, deployable_id=deployable.id)}
        assert attributes.discovered(tx, [deployable.id]) == {deployable.id: {"rc": "CUSTOM_A", "trait0": "HW_Z"}}
    assert {key: one.value for key, one in after.items()} == {"rc": "CUSTOM_A", "trait0": "HW_Z", "rack": "A7"}
    assert {key: one.uuid for key, one in after.items()} == {key: before[key] for key in after}
