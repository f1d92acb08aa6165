"""A device is offered under one resource class: what its provider had before is not offered beside it."""

import uuid

from agentworld import SANITIZING, AgentWorld

from autoclave.db import devices as device_rows
from autoclave.lifecycle.reserve import settle
from autoclave.placement.provider_tree import whole_record
from autoclave.placement.records import ConsumerAllocations
from autoclave.testing.placement.faults import before

FORMER = "PGPU"


def add_former_class(world: AgentWorld) -> str:
    """Give the provider a record of the class that it had under another driver; returns the provider."""
    provider = world.provider().uuid
    present = world.onlooker.get_inventories(provider)
    world.onlooker.put_inventories(provider, present.generation, {**present.records, FORMER: whole_record(1, 0)})
    return provider


def test_a_former_class_goes_with_the_next_period(one_drive: AgentWorld) -> None:
    agent = one_drive.start()
    provider = add_former_class(one_drive)

    agent.period()

    assert FORMER not in one_drive.onlooker.get_inventories(provider).records
    one_drive.assert_offered()


def test_a_bind_leaves_nothing_of_a_former_class_on_offer(one_drive: AgentWorld) -> None:
    one_drive.start()
    add_former_class(one_drive)

    one_drive.bind()

    assert not one_drive.offered()


def test_a_former_class_that_somebody_still_has_an_allocation_of_is_not_offered(one_drive: AgentWorld) -> None:
    one_drive.start()
    provider = add_former_class(one_drive)
    present = one_drive.onlooker.get_inventories(provider)
    two = {**present.records, FORMER: whole_record(2, 0)}
    one_drive.onlooker.put_inventories(provider, present.generation, two)
    one_drive.onlooker.put_allocations(
        ConsumerAllocations(str(uuid.uuid4()), {provider: {FORMER: 1}}, project_id="project", user_id="user")
    )

    one_drive.bind()

    assert one_drive.onlooker.get_inventories(provider).records[FORMER].reserved == 2
    assert not one_drive.offered()


def test_what_is_settled_is_the_class_of_the_moment_at_which_the_generation_was_read(one_drive: AgentWorld) -> None:
    """A class that changes between the first look at the row and the write must not come back with the old name."""
    one_drive.start()
    device = one_drive.device()

    def rename() -> None:
        with one_drive.db.write() as tx:
            [deployable] = device_rows.deployables_of(tx, [device.id])
            device_rows.set_resource_class(tx, deployable, "CUSTOM_NEW")

    one_drive.onlooker.ensure_resource_class("CUSTOM_NEW")
    one_drive.faults.add(before(rename), method="GET", path="/inventories$", times=1)

    settle(one_drive.db, one_drive.placement, device.uuid)

    assert set(one_drive.onlooker.get_inventories(one_drive.provider(SANITIZING).uuid).records) == {"CUSTOM_NEW"}
