"""A device is not offered before Placement has the traits that say what it is.

Else a request that forbids a trait could get the very device that has it.
"""

import dataclasses

import pytest
from agentworld import AgentWorld
from pciworld import PCIWorld
from tenant import Tenant, conductor

from autoclave.exceptions import TraitsMissing
from autoclave.lifecycle.reserve import Settled
from autoclave.rules.resource_names import OWNER_CYBORG
from autoclave.testing.placement.faults import answer, before
from burnedrows import OPERATOR, ask_release

DRIVES = frozenset({OWNER_CYBORG, "HW_NVME_BES"})
"""What whoever sees the inventory of the drive must see as well."""


def sweep_of_a_conductor(world: AgentWorld) -> bool:
    """A conductor pays what is owed, on a way to Placement of its own; whether what is offered has its traits."""
    conductor(world, dataclasses.replace(world.ports, placement=world.onlooker)).sweep()
    return not world.offered() or world.onlooker.get_traits(world.provider().uuid).names >= DRIVES


def test_a_conductor_that_pays_for_a_new_drive_at_any_request_of_its_agent_waits_for_its_traits(
    one_drive: AgentWorld,
) -> None:
    kept: list[bool] = []
    one_drive.faults.add(before(lambda: kept.append(sweep_of_a_conductor(one_drive))))
    one_drive.start()
    assert len(kept) > 1
    assert all(kept)
    one_drive.assert_offered()


def test_a_drive_whose_traits_placement_refuses_is_not_offered_by_anybody(one_drive: AgentWorld) -> None:
    one_drive.faults.add(answer(400), method="PUT", path="/traits$")
    agent = one_drive.start()
    conductor(one_drive).sweep()
    assert not one_drive.offered()
    one_drive.faults.clear()
    agent.period()
    one_drive.assert_offered()


def test_a_drive_that_comes_back_is_offered_when_its_agent_has_mended_its_traits(one_drive: AgentWorld) -> None:
    agent = one_drive.start()
    tenant = Tenant(one_drive)
    tenant.bind()
    provider = one_drive.provider()
    one_drive.onlooker.put_traits(provider.uuid, provider.generation, {OWNER_CYBORG})  # by hand
    tenant.delete()
    one_drive.casts.deliver()
    one_drive.outcome()
    tenant.give_up()
    assert sweep_of_a_conductor(one_drive)
    assert not one_drive.offered()
    agent.period()
    one_drive.assert_offered()


def test_traits_that_somebody_takes_away_while_a_drive_is_settled_are_missed(one_drive: AgentWorld) -> None:
    def strip() -> None:
        provider = one_drive.provider()
        one_drive.onlooker.put_traits(provider.uuid, provider.generation, {OWNER_CYBORG})

    one_drive.faults.add(before(strip), method="PUT", path="/inventories$", times=1)
    agent = one_drive.start()
    assert not one_drive.offered()
    agent.period()
    one_drive.assert_offered()


def test_a_released_device_is_offered_when_its_provider_says_that_it_is_of_one_time_use(pci_world: PCIWorld) -> None:
    one_time_use = "HW_PCI_ONE_TIME_USE"
    gpu = pci_world.add(traits=[one_time_use])
    pci_world.onlooker.put_traits(gpu, 0, {one_time_use})
    pci_world.settle(gpu)
    pci_world.use_up(gpu)
    pci_world.onlooker.delete_provider(gpu)
    pci_world.make(gpu)  # its agent has not come to the traits yet
    with pytest.raises(TraitsMissing):
        ask_release(pci_world.db, pci_world.placement, gpu, OPERATOR)
    assert not pci_world.onlooker.get_inventories(gpu).records
    pci_world.onlooker.put_traits(gpu, 0, {one_time_use})
    assert pci_world.settle(gpu) is Settled.LOWERED
    assert pci_world.offered(gpu)
