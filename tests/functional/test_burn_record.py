"""A burn is on record with its reasons, and an inventory that agrees with the record needs no second look."""

import json
from dataclasses import replace

import pytest
from autoclave.lifecycle.burn import Settled, ask_release
from pciworld import CLASS, GPU, HOST, ONE, TWO, PCIWorld

from autoclave.db import history as events
from autoclave.db import pci
from autoclave.db.columns import utcnow
from autoclave.db.pci import Addition, AdditionKind
from autoclave.lifecycle import burn as burning
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.records import Inventory
from autoclave.rules.device_lifecycle import Actor
from burnedrows import OPERATOR

# What its agent need not look at again


def is_settled(world: PCIWorld, rp_uuid: str) -> bool:
    return burning.is_settled(world.db, rp_uuid, world.onlooker.get_inventories(rp_uuid))


def test_a_device_is_settled_once_placement_has_what_its_row_demands(pci_world: PCIWorld, gpu: str) -> None:
    assert is_settled(pci_world, gpu)
    pci_world.allocate(gpu)
    pci_world.claim(gpu)
    assert not is_settled(pci_world, gpu)  # to be raised
    pci_world.settle(gpu)
    assert is_settled(pci_world, gpu)
    pci_world.free()
    pci_world.deallocate()
    assert not is_settled(pci_world, gpu)  # to be confirmed
    pci_world.settle(gpu)
    assert is_settled(pci_world, gpu)
    pci_world.lower(gpu)
    assert not is_settled(pci_world, gpu)  # released by hand


def test_a_device_in_use_that_somebody_lowered_is_not_settled(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.allocate(gpu)
    pci_world.claim(gpu)
    pci_world.settle(gpu)
    pci_world.lower(gpu)
    assert not is_settled(pci_world, gpu)


def test_a_pending_release_is_not_settled(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.use_up(gpu)
    for missing in (False, True):
        with pci_world.db.write() as tx:
            assert pci.swap(tx, pci_world.row(gpu), {"release_pending": True})
            [function] = pci.functions_of(tx, pci_world.row(gpu))
            pci.describe_function(tx, function, {"missing": missing})
        assert not is_settled(pci_world, gpu)


def test_an_inventory_that_another_has_written_is_not_settled(pci_world: PCIWorld, gpu: str) -> None:
    client = pci_world.onlooker
    client.ensure_resource_class("CUSTOM_FOREIGN")
    for records in (
        {},
        {"CUSTOM_FOREIGN": Inventory(1, 0, 1, 1, 1, 1.0)},
        {CLASS: Inventory(1, 0, 1, 1, 1, 1.0), "CUSTOM_FOREIGN": Inventory(1, 0, 1, 1, 1, 1.0)},
        {CLASS: Inventory(2, 0, 1, 1, 1, 1.0)},
        {CLASS: Inventory(1, 0, 1, 1, 1, 4.0)},
    ):
        client.put_inventories(gpu, client.get_inventories(gpu).generation, records)
        assert not is_settled(pci_world, gpu)


def test_a_hold_by_an_operator_is_settled(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.lower(gpu, 1)
    assert is_settled(pci_world, gpu)


def test_a_class_that_provider_config_added_leaves_the_device_settled(pci_world: PCIWorld, gpu: str) -> None:
    with pci_world.db.write() as tx:
        pci.remember(tx, HOST, frozenset({Addition(gpu, AdditionKind.INVENTORY, "CUSTOM_LICENCE")}))
    client = pci_world.onlooker
    client.ensure_resource_class("CUSTOM_LICENCE")
    present = client.get_inventories(gpu)
    client.put_inventories(
        gpu, present.generation, {**present.records, "CUSTOM_LICENCE": Inventory(8, 0, 1, 8, 1, 1.0)}
    )
    assert is_settled(pci_world, gpu)


def test_a_device_that_is_not_on_record_is_gone(pci_world: PCIWorld) -> None:
    root = pci_world.root
    assert pci_world.settle(root) is Settled.GONE
    assert not is_settled(pci_world, root)
    assert pci_world.onlooker.get_inventories(root).records == {}


# Burning, and the history


def history(world: PCIWorld, rp_uuid: str) -> list[tuple[str | None, str | None, str, str]]:
    with world.db.read() as tx:
        return [(each.from_state, each.to_state, each.event, each.actor) for each in events.history(tx, rp_uuid)]


def test_the_life_of_a_burned_device_is_in_its_history(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.use_up(gpu)
    ask_release(pci_world.db, pci_world.placement, gpu, replace(OPERATOR, reason="wiped", evidence={"by": "ann"}))
    agent = f"{Actor.AGENT} {HOST}"
    assert sorted(history(pci_world, gpu)) == [
        ("burned", "confirmed", "confirm", "Placement"),
        ("confirmed", "released", "release", f"{Actor.OPERATOR} ops"),
        ("not_burned", "burned", "burn", agent),
        ("released", "not_burned", "offer", "Placement"),
    ]
    with pci_world.db.read() as tx:
        lines = {each.event: each for each in events.history(tx, gpu)}
    assert lines["burn"].reason == f"instance {ONE} gets it"
    assert lines["confirm"].reason == "it was seen idle, with reserved=total"
    assert lines["offer"].reason == "it has been told that reserved is 0"
    assert (lines["release"].reason, lines["release"].request_id) == ("wiped", "req-1")
    where = {"hostname": HOST, "pci_address": GPU}
    assert json.loads(lines["release"].evidence or "") == {**where, "by": "ann"}
    assert json.loads(lines["offer"].evidence or "") == where
    assert {each.serial for each in lines.values()} == {None}


def test_a_release_by_hand_is_in_the_history(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.use_up(gpu)
    pci_world.lower(gpu)
    pci_world.settle(gpu)
    assert ("confirmed", "released", "release_seen", "Placement") in history(pci_world, gpu)
    with pci_world.db.read() as tx:
        [seen] = [each for each in events.history(tx, gpu) if each.event == "release_seen"]
    assert seen.reason == "somebody has lowered reserved there; Placement does not say who"


def test_a_device_of_many_uses_is_not_burned(pci_world: PCIWorld) -> None:
    rp_uuid = pci_world.add(one_time_use=False)
    pci_world.settle(rp_uuid)
    before = pci_world.row(rp_uuid)
    pci_world.allocate(rp_uuid)
    pci_world.claim(rp_uuid)
    assert pci_world.row(rp_uuid) == before
    assert history(pci_world, rp_uuid) == []


def test_a_burn_ends_when_an_instance_gets_what_is_no_longer_one_time_use(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.use_up(gpu)
    with pci_world.db.write() as tx:
        pci.describe(tx, pci_world.row(gpu), {"one_time_use": False})
    pci_world.claim(gpu, TWO)
    row = pci_world.row(gpu)
    assert (row.burned, row.burn_confirmed, row.burned_for, row.burned_at) == (False, False, None, None)
    assert ("confirmed", "not_burned", "burn_ends", f"{Actor.AGENT} {HOST}") in history(pci_world, gpu)
    with pci_world.db.read() as tx:
        [ended] = [each for each in events.history(tx, gpu) if each.event == "burn_ends"]
    assert ended.reason == f"instance {TWO} gets it"


@pytest.mark.parametrize("one_time_use", [True, False])
def test_a_burn_of_a_row_that_has_moved_on_writes_nothing(pci_world: PCIWorld, gpu: str, one_time_use: bool) -> None:
    stale = replace(pci_world.row(gpu), one_time_use=one_time_use, burned=not one_time_use)
    with pci_world.db.write() as tx:
        assert pci.swap(tx, pci_world.row(gpu), {"release_pending": True})
        before = pci.get(tx, gpu)
        assert not burning.burn(tx, stale, ONE, utcnow(), OPERATOR)
        assert pci.get(tx, gpu) == before
    assert history(pci_world, gpu) == []


def test_a_device_that_an_unknown_consumer_has_is_burned(pci_world: PCIWorld, gpu: str) -> None:
    now = utcnow()
    assert burning.burn_for_unknown(pci_world.db, pci_world.row(gpu), [TWO, ONE], now, Cause(Actor.AGENT, HOST))
    row = pci_world.row(gpu)
    assert (row.burned, row.burn_confirmed, row.burned_for, row.burned_at) == (True, False, None, now)
    with pci_world.db.read() as tx:
        [line] = events.history(tx, gpu)
    assert (line.event, line.actor) == ("burn", f"{Actor.AGENT} {HOST}")
    assert line.reason == f"allocated by {ONE}, {TWO}, of which no instance is on record"


def test_an_instance_that_came_first_is_not_taken_for_an_unknown_consumer(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.claim(gpu)
    before = pci_world.row(gpu)
    assert not burning.burn_for_unknown(pci_world.db, before, [TWO], utcnow(), Cause(Actor.AGENT, HOST))
    assert pci_world.row(gpu) == before
