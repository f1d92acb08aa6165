"""A move swaps the allocation of a burned device for that of the migration, and a revert swaps it back."""

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest
from hostworld import GPU_CLASS, HOST, HostWorld
from pciworld import ONE, TWO

from autoclave.agent.compute.claims import ResourceTracker
from autoclave.exceptions import PlacementConflict
from autoclave.placement.records import ConsumerAllocations
from autoclave.testing.placement import FakePlacement
from computerows import make_instance
from realplacement import running_placement

MIGRATION = "33333333-3333-4333-8333-333333333333"


@pytest.fixture(params=["embedded", "fake"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[HostWorld]:
    with running_placement(tmp_path) if request.param == "embedded" else nullcontext(FakePlacement()) as service:
        made = HostWorld(tmp_path, service=service)
        yield made
        made.close()


def swap(world: HostWorld, giver: str, heir: str, *others: str) -> None:
    """In one request, as Nova does: what *giver* holds is *heir*'s, and what *others* ask for is theirs."""
    held = world.onlooker.get_allocations(giver)
    new = [ConsumerAllocations(each, held.allocations, None, "project", "user") for each in (heir, *others)]
    nothing = ConsumerAllocations(giver, {}, held.generation, "project", "user")
    world.onlooker.post_allocations([nothing, *new])


def test_a_burned_allocation_is_swapped_and_back_and_given_to_no_third(world: HostWorld) -> None:
    tree = world.synced()
    row = world.row()
    with world.db.write() as tx:
        make_instance(tx, uuid=ONE)
    allocation = ConsumerAllocations(ONE, {row.uuid: {GPU_CLASS: 1}}, None, "project", "user")
    world.onlooker.put_allocations(allocation)
    ResourceTracker(world.ports, HOST).instance_claim(ONE, allocation, {"pci0": [row.uuid]})
    third = ConsumerAllocations(TWO, {row.uuid: {GPU_CLASS: 1}}, None, "project", "user")
    for giver, heir in ((ONE, MIGRATION), (MIGRATION, ONE)):
        with pytest.raises(PlacementConflict):
            swap(world, giver, heir, TWO)
        swap(world, giver, heir)
        tree.sync()
        assert world.onlooker.get_allocations_for_provider(row.uuid) == {heir: {GPU_CLASS: 1}}
        assert (world.row().device.burned_for, world.reserved(), world.function().instance_uuid) == (ONE, 1, ONE)
        with pytest.raises(PlacementConflict):
            world.onlooker.put_allocations(third)
    ResourceTracker(world.ports, HOST).free(ONE)
    world.onlooker.delete_allocations(ONE)
    tree.sync()
    with pytest.raises(PlacementConflict):
        world.onlooker.put_allocations(third)
    assert world.row().device.burn_confirmed
