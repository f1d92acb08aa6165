"""A function that is freed after its entry in [pci] device_spec was changed: not offered by the entry before."""

from typing import Any

import pytest
from hostworld import CARD, GPU, HOST, NIC, NIC_CLASS, NIC_SPEC, VF_CLASS, VF_SPEC, HostWorld
from test_pci_spec_changes import ONE, TWO, allocate, delete_guest, start_guest, whole
from test_unreadable_functions import Agent, give_back

from autoclave.agent.compute.claims import ResourceTracker
from autoclave.exceptions import ClaimRefused, PlacementConflict
from autoclave.lifecycle import claims
from autoclave.lifecycle.reserve import settle
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor
from autoclave.rules.reclaim import BurnState
from burnedrows import OPERATOR, ask_release

CHANGES: dict[str, list[dict[str, Any]]] = {
    "another class": [{**NIC_SPEC, "resource_class": "CUSTOM_NIC"}],
    "other traits": [{**NIC_SPEC, "traits": "CUSTOM_GOLD"}],
    "no entry": [dict(VF_SPEC)],
}


@pytest.mark.parametrize("specs", CHANGES.values(), ids=CHANGES)
def test_a_freed_function_is_not_offered_by_the_entry_before(
    host_world: HostWorld, specs: list[dict[str, Any]]
) -> None:
    """From the guest's end until the next period, a scheduler would give it to another as it was configured once."""
    host_world.synced()
    start_guest(host_world, ONE, NIC, NIC_CLASS)
    host_world.specs = specs
    agent = Agent(host_world)
    assert host_world.records(NIC) == {NIC_CLASS: whole(1, 1)}
    give_back(host_world, ONE)
    assert host_world.offered(NIC) == 0
    with pytest.raises(PlacementConflict):
        start_guest(host_world, TWO, NIC, NIC_CLASS)
    agent.period()
    agent.period()
    row = host_world.find_row(NIC)
    assert host_world.offered(NIC) == (0 if row is None else 1)
    assert row is None or (not row.device.outdated and not row.device.withheld)


def test_freed_virtual_functions_are_not_offered_by_the_entry_before(host_world: HostWorld) -> None:
    """The first of two guests ends: what the second one has keeps its inventory, as large as it is in use."""
    host_world.synced()
    start_guest(host_world, ONE, CARD, VF_CLASS)
    start_guest(host_world, TWO, CARD, VF_CLASS)
    host_world.specs = [{**VF_SPEC, "resource_class": "CUSTOM_VF"}]
    agent = Agent(host_world)
    give_back(host_world, ONE)
    assert host_world.offered(CARD) == 0
    agent.period()
    assert host_world.records(CARD) == {VF_CLASS: whole(1, 1)}
    give_back(host_world, TWO)
    agent.period()
    agent.period()
    assert host_world.records(CARD) == {"CUSTOM_VF": whole(2)}


def test_a_freed_function_is_withheld_by_a_run_that_died_at_freeing(host_world: HostWorld) -> None:
    host_world.synced()
    start_guest(host_world, ONE, NIC, NIC_CLASS)
    host_world.specs = CHANGES["another class"]
    Agent(host_world)
    with host_world.db.write() as tx:
        claims.free(tx, ONE, Cause(Actor.AGENT, HOST))
    give_back(host_world, ONE)
    assert host_world.offered(NIC) == 0


def test_an_allocation_by_the_entry_before_is_not_claimed(host_world: HostWorld) -> None:
    """A scheduler gave the other virtual function away before the agent was restarted."""
    host_world.synced()
    start_guest(host_world, ONE, CARD, VF_CLASS)
    allocation = allocate(host_world, TWO, CARD, VF_CLASS)
    host_world.specs = [{**VF_SPEC, "resource_class": "CUSTOM_VF"}]
    Agent(host_world)
    groups = {"pci0": list(allocation.allocations)}
    with pytest.raises(ClaimRefused, match="takes effect later"):
        ResourceTracker(host_world.ports, HOST).instance_claim(TWO, allocation, groups, at_least=1)


def test_a_released_device_is_not_offered_by_the_entry_before(host_world: HostWorld) -> None:
    host_world.synced()
    start_guest(host_world, ONE, GPU, "CUSTOM_PCI_10DE_25B6")
    delete_guest(host_world)
    host_world.specs = [{"vendor_id": "10de", "product_id": "25b6", "one_time_use": True, "resource_class": "CUSTOM_G"}]
    agent = Agent(host_world)
    ask_release(host_world.db, host_world.onlooker, host_world.row().uuid, OPERATOR)
    settle(host_world.db, host_world.onlooker, host_world.row().uuid)
    assert host_world.offered() == 0
    agent.period()
    agent.period()
    assert host_world.records() == {"CUSTOM_G": whole(1)}
    assert host_world.row().burn_state is BurnState.NOT_BURNED
