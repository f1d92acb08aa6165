"""A device of the policy ``none`` whose hold ends while an instance has it is offered after that instance."""

from collections.abc import Iterator

import pytest
from hostworld import GPU, NIC, NIC_CLASS, NIC_SPEC, HostWorld
from test_pci_spec_changes import ONE, allocate, change, start_guest, whole
from test_unreadable_functions import give_back

from autoclave.agent.compute.claims import ResourceTracker
from autoclave.lifecycle import maintenance, operator
from autoclave.testing.placement.faults import refuse
from burnedrows import OPERATOR


@pytest.fixture
def lent(host_world: HostWorld) -> Iterator[HostWorld]:
    """Instance ONE has the NIC."""
    host_world.synced()
    start_guest(host_world, ONE, NIC, NIC_CLASS)
    yield host_world
    give_back(host_world, ONE)
    tree = host_world.synced()
    tree.sync()
    assert host_world.records(NIC) == {NIC_CLASS: whole(1)}
    assert not host_world.row(NIC).device.release_pending


def uuid_of(world: HostWorld) -> str:
    return world.row(NIC).device.uuid


def test_hold_released_while_lent_leaves_no_hold(lent: HostWorld) -> None:
    operator.hold(lent.ports, uuid_of(lent), OPERATOR)
    assert lent.reserved(NIC) == 1
    operator.release(lent.ports, uuid_of(lent), OPERATOR)
    assert lent.reserved(NIC) == 0


def test_hold_released_without_placement_leaves_no_hold(lent: HostWorld) -> None:
    """The instance ends before Placement is reachable again."""
    operator.hold(lent.ports, uuid_of(lent), OPERATOR)
    lent.faults.add(refuse, path="/inventories", method="PUT")
    operator.release(lent.ports, uuid_of(lent), OPERATOR)
    assert lent.reserved(NIC) == 1
    lent.faults.clear()


def test_maintenance_ended_while_lent_leaves_no_hold(lent: HostWorld) -> None:
    maintenance.begin(lent.ports, lent.row(NIC).hostname, OPERATOR)
    assert lent.reserved(NIC) == 1
    maintenance.end(lent.ports, lent.row(NIC).hostname, OPERATOR)
    assert lent.reserved(NIC) == 0


def test_device_back_while_lent_leaves_no_hold(lent: HostWorld) -> None:
    change(lent, {"vendor_id": "10de", "product_id": "25b6"})
    assert (lent.row(NIC).device.missing, lent.reserved(NIC)) == (True, 1)
    change(lent, NIC_SPEC)
    assert (lent.row(NIC).device.missing, lent.reserved(NIC)) == (False, 0)


def test_claim_before_a_pending_release_leaves_no_hold(host_world: HostWorld) -> None:
    """The instance was scheduled before the hold, and claims before Placement is updated after its end."""
    host_world.synced()
    allocation = allocate(host_world, ONE, NIC, NIC_CLASS)
    operator.hold(host_world.ports, uuid_of(host_world), OPERATOR)
    host_world.faults.add(refuse, path="/inventories", method="PUT")
    operator.release(host_world.ports, uuid_of(host_world), OPERATOR)
    host_world.faults.clear()
    groups = {"pci0": list(allocation.allocations)}
    ResourceTracker(host_world.ports, host_world.row(NIC).hostname).instance_claim(ONE, allocation, groups)
    assert host_world.row(NIC).device.release_pending
    give_back(host_world, ONE)
    host_world.synced()
    assert host_world.records(NIC) == {NIC_CLASS: whole(1)}
    assert host_world.offered(GPU) == 1
