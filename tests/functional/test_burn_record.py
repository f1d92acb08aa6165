"""A burn is on record with its reasons, and an inventory that agrees with the record needs no second look."""

import json
from dataclasses import replace

import pytest
from pciworld import CLASS, GPU, HOST, ONE, TWO, PCIWorld

import burnedrows
from autoclave.agent.device_tree import DeviceProviders, known_functions
from autoclave.db import history as events
from autoclave.db import pci
from autoclave.db.columns import utcnow
from autoclave.db.pci import Addition, AdditionKind
from autoclave.exceptions import StateConflict
from autoclave.lifecycle import claims
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.reserve import Settled
from autoclave.lifecycle.transitions import Cause, swap
from autoclave.placement.records import Inventory
from autoclave.rules.device_lifecycle import Actor, DeviceState, Event
from autoclave.rules.reclaim import Reclaim
from autoclave.testing.placement.faults import refuse
from burnedrows import OPERATOR, ask_release

# What its agent need not look at again


def is_settled(world: PCIWorld, rp_uuid: str) -> bool:
    """Return whether the agent's next look at the device finds nothing to write."""
    providers = DeviceProviders(Ports(world.db, world.placement, burnedrows.NoCleaners()), HOST, known_functions)
    tree = world.onlooker.providers_in_tree(world.root)
    before = next(each.generation for each in tree if each.uuid == rp_uuid)
    world.faults.add(refuse, method="PUT", path="/inventories$")
    refused = providers.sync(world.root, tree)
    world.faults.clear()
    assert world.onlooker.get_inventories(rp_uuid).generation == before
    return refused is None


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
    with pci_world.db.write() as tx:
        swap(tx, pci_world.row(gpu).device, Event.RELEASE, OPERATOR)
    assert not is_settled(pci_world, gpu)
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
    assert pci_world.onlooker.get_inventories(root).records == {}


# Burning, and the history


def history(world: PCIWorld, rp_uuid: str) -> list[tuple[str | None, str | None, str, str]]:
    with world.db.read() as tx:
        return [(each.from_state, each.to_state, each.event, each.actor) for each in events.history(tx, rp_uuid)]


def test_the_life_of_a_burned_device_is_in_its_history(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.use_up(gpu)
    ask_release(pci_world.db, pci_world.placement, gpu, replace(OPERATOR, reason="wiped", evidence={"by": "ann"}))
    agent = f"{Actor.AGENT} {HOST}"
    assert history(pci_world, gpu) == [
        ("available", "allocated", "claim", agent),
        ("allocated", "spent", "spend", agent),
        ("spent", "spent", "confirm", "placement"),
        ("spent", "available", "release", f"{Actor.OPERATOR} ops"),
        ("available", "available", "offer", "placement"),
    ]
    with pci_world.db.read() as tx:
        lines = {each.event: each for each in events.history(tx, gpu)}
    assert f"instance {ONE}" in (lines["claim"].reason or "")
    assert lines["confirm"].reason == "it was seen idle, with reserved=total"
    assert lines["offer"].reason == "Placement has reserved=0 for it"
    assert (lines["release"].reason, lines["release"].request_id) == ("wiped", "req-1")
    where = {"hostname": HOST, "pci_address": GPU}
    assert json.loads(lines["release"].evidence or "") == {**where, "by": "ann"}
    assert json.loads(lines["offer"].evidence or "") == where
    assert {each.serial for each in lines.values()} == {None}


def test_a_release_by_hand_is_in_the_history(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.use_up(gpu)
    pci_world.lower(gpu)
    pci_world.settle(gpu)
    assert ("spent", "available", "release_seen", "placement") in history(pci_world, gpu)
    with pci_world.db.read() as tx:
        [seen] = [each for each in events.history(tx, gpu) if each.event == "release_seen"]
    assert seen.reason == "reserved was lowered there; Placement does not record by whom"


def test_a_device_of_many_uses_is_not_burned(pci_world: PCIWorld) -> None:
    rp_uuid = pci_world.add(reclaim=Reclaim.NONE)
    pci_world.settle(rp_uuid)
    pci_world.allocate(rp_uuid)
    pci_world.claim(rp_uuid)
    row = pci_world.row(rp_uuid)
    assert (row.burned, row.device.device_state) == (False, DeviceState.ALLOCATED)
    assert pci_world.settle(rp_uuid) is Settled.UNCHANGED
    assert pci_world.reserved(rp_uuid) == 0  # its allocation keeps it from others
    pci_world.free()
    pci_world.deallocate()
    assert pci_world.row(rp_uuid).device.device_state is DeviceState.AVAILABLE
    assert [event for _, _, event, _ in history(pci_world, rp_uuid)] == ["claim", "release"]
    assert pci_world.offered(rp_uuid)


def test_a_burn_does_not_end_with_the_policy(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.allocate(gpu)
    pci_world.claim(gpu)
    with pci_world.db.write() as tx:
        burnedrows.describe(tx, pci_world.row(gpu), {"reclaim": Reclaim.NONE})
    pci_world.settle(gpu)
    pci_world.free()
    pci_world.deallocate()
    assert pci_world.row(gpu).device.device_state is DeviceState.SPENT
    assert pci_world.settle(gpu) is Settled.CONFIRMED
    ask_release(pci_world.db, pci_world.placement, gpu, OPERATOR)
    pci_world.allocate(gpu, TWO)
    pci_world.claim(gpu, TWO)
    assert not pci_world.row(gpu).burned


def test_a_burn_of_a_row_that_has_moved_on_writes_nothing(pci_world: PCIWorld, gpu: str) -> None:
    stale = pci_world.row(gpu)
    pci_world.claim(gpu)
    before = pci_world.row(gpu)
    with pci_world.db.write() as tx, pytest.raises(StateConflict):
        claims.burn(tx, stale.device, TWO, Cause(Actor.AGENT, HOST), utcnow())
    assert pci_world.row(gpu) == before
    assert [event for _, _, event, _ in history(pci_world, gpu)] == ["claim"]


def test_a_device_that_an_unknown_consumer_has_is_burned(pci_world: PCIWorld, gpu: str) -> None:
    now = utcnow()
    assert claims.burn_for_unknown(pci_world.db, pci_world.row(gpu), [TWO, ONE], now, Cause(Actor.AGENT, HOST))
    row = pci_world.row(gpu)
    device = row.device
    assert (row.burned, device.burn_confirmed, device.burned_for, device.burned_at) == (True, False, None, now)
    with pci_world.db.read() as tx:
        [line] = events.history(tx, gpu)
    assert (line.event, line.actor) == ("burn", f"{Actor.AGENT} {HOST}")
    assert line.reason == f"allocated by {ONE}, {TWO}, of which no instance is on record"


def test_an_instance_that_came_first_is_not_taken_for_an_unknown_consumer(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.claim(gpu)
    before = pci_world.row(gpu)
    assert not claims.burn_for_unknown(pci_world.db, before, [TWO], utcnow(), Cause(Actor.AGENT, HOST))
    assert pci_world.row(gpu) == before
