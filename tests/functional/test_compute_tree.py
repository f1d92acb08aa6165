"""What a compute host publishes in Placement, and what becomes of that when the host or its configuration changes."""

from dataclasses import replace
from typing import Any

import pytest
from hostworld import (
    CARD,
    FUNCTIONS,
    GPU,
    GPU_CLASS,
    GPU_SPEC,
    HOST,
    NIC,
    NIC_SPEC,
    VF_CLASS,
    VF_SPEC,
    VFS,
    HostWorld,
)
from pciworld import ONE, TWO

from autoclave.agent.compute.claims import ResourceTracker
from autoclave.db import devices as device_rows
from autoclave.db import history, hosts, pci
from autoclave.db.columns import utcnow
from autoclave.exceptions import (
    ClaimRefused,
    GuestError,
    InvalidConfiguration,
    PlacementConflict,
    PlacementError,
    PlacementNotFound,
)
from autoclave.lifecycle import claims
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.records import ConsumerAllocations, Inventory
from autoclave.rules.device_lifecycle import Actor
from autoclave.simulator.functions import FunctionSpec
from autoclave.testing.placement.faults import before, refuse
from autoclave.virt.driver import load_compute_driver
from burnedrows import OPERATOR, ask_release
from computerows import make_instance
from dbfixtures import make_slot


def claim(world: HostWorld, address: str = GPU, instance: str = ONE, *, function: str | None = None) -> None:
    """An instance is allocated a function and claims it."""
    row = world.row(address)
    allocation = ConsumerAllocations(instance, {row.uuid: {row.resource_class: 1}}, None, "project", "user")
    world.onlooker.put_allocations(allocation)
    with world.db.write() as tx:
        own = pci.functions_of(tx, row)
        found = next(each for each in own if each.address == (function or each.address))
        claims.claim(tx, row.device, own, [found], instance, Cause(Actor.AGENT, HOST), utcnow())


def give_back(world: HostWorld, instance: str = ONE) -> None:
    with world.db.write() as tx:
        claims.free(tx, instance, Cause(Actor.AGENT, HOST))
    world.onlooker.delete_allocations(instance)


def use_up(world: HostWorld) -> None:
    """The card has served an instance and is idle, burned, and confirmed so."""
    tree = world.synced()
    claim(world)
    tree.sync()
    give_back(world)
    tree.sync()
    assert world.row().device.burn_confirmed


def test_a_host_publishes_itself_and_its_functions(host_world: HostWorld) -> None:
    host_world.synced()
    root = host_world.onlooker.find_provider(HOST)
    assert root is not None
    records = host_world.onlooker.get_inventories(root.uuid).records
    assert records["VCPU"] == Inventory(32, 0, 1, 32, 1, 4.0)
    assert set(records) == {"VCPU", "MEMORY_MB", "DISK_GB"}
    assert "COMPUTE_NODE" in host_world.onlooker.get_traits(root.uuid).names
    gpu = host_world.provider(GPU)
    assert (gpu.name, gpu.parent) == (f"{HOST}_{GPU}", root.uuid)
    assert host_world.records(GPU) == {GPU_CLASS: Inventory(1, 0, 1, 1, 1, 1.0)}
    assert host_world.onlooker.get_traits(gpu.uuid).names == {
        "COMPUTE_MANAGED_PCI_DEVICE",
        "OWNER_NOVA",
        "HW_PCI_ONE_TIME_USE",
    }
    assert host_world.records(CARD) == {VF_CLASS: Inventory(2, 0, 1, 2, 1, 1.0)}
    with host_world.db.read() as tx:
        host = hosts.find(tx, HOST)
    assert host is not None
    assert (host.rp_uuid, host.vcpus, host.hypervisor_type) == (root.uuid, 32, "null")


def test_a_sync_that_finds_nothing_new_costs_one_request(host_world: HostWorld) -> None:
    host_world.configure(
        "meta: {schema_version: '1.0'}\nproviders:\n- identification: {uuid: $COMPUTE_NODE}\n"
        "  traits: {additional: [CUSTOM_GOLD]}\n"
    )
    tree = host_world.synced()
    tree.sync()
    host_world.faults.clear()
    tree.sync()
    assert [call.method for call in host_world.faults.calls] == ["GET"], host_world.faults.calls


def test_a_burned_device_is_confirmed_and_then_costs_nothing(host_world: HostWorld) -> None:
    use_up(host_world)
    tree = host_world.tree()
    tree.sync()
    tree.sync()
    host_world.faults.clear()
    tree.sync()
    assert len(host_world.faults.calls) == 1, host_world.faults.calls


def test_a_device_in_use_costs_nothing(host_world: HostWorld) -> None:
    tree = host_world.synced()
    claim(host_world)
    for _ in range(3):
        tree.sync()
    assert host_world.reserved() == 1
    host_world.faults.clear()
    tree.sync()
    assert len(host_world.faults.calls) == 1, host_world.faults.calls


def test_a_burned_device_is_not_offered_when_its_provider_was_deleted(host_world: HostWorld) -> None:
    use_up(host_world)
    uuid = host_world.provider().uuid
    host_world.onlooker.delete_provider(uuid)
    host_world.synced()
    assert host_world.provider().uuid == uuid
    assert host_world.offered() == 0


def test_a_burned_device_is_not_offered_when_its_entry_was_removed_and_put_back(host_world: HostWorld) -> None:
    use_up(host_world)
    host_world.specs = (NIC_SPEC, VF_SPEC)
    host_world.synced()
    assert host_world.offered() == 0
    assert host_world.reserved() == 1
    host_world.specs = (GPU_SPEC, NIC_SPEC)
    host_world.synced()
    assert host_world.offered() == 0


def test_a_burned_device_keeps_its_class_until_it_is_released(host_world: HostWorld) -> None:
    use_up(host_world)
    host_world.specs = ({**GPU_SPEC, "resource_class": "CUSTOM_GPU"},)
    host_world.synced()
    assert host_world.records() == {GPU_CLASS: Inventory(1, 1, 1, 1, 1, 1.0)}
    host_world.by_hand(0)
    tree = host_world.synced()
    tree.sync()
    assert host_world.records() == {"CUSTOM_GPU": Inventory(1, 0, 1, 1, 1, 1.0)}


def test_the_flag_taken_from_a_burned_device_changes_nothing_until_it_is_released(host_world: HostWorld) -> None:
    use_up(host_world)
    host_world.specs = ({"vendor_id": "10de", "product_id": "25b6"},)
    host_world.synced()
    assert host_world.offered() == 0
    assert "HW_PCI_ONE_TIME_USE" in host_world.onlooker.get_traits(host_world.provider().uuid).names
    host_world.by_hand(0)
    tree = host_world.synced()
    tree.sync()
    assert host_world.offered() == 1
    assert "HW_PCI_ONE_TIME_USE" not in host_world.onlooker.get_traits(host_world.provider().uuid).names


def told(host_world: HostWorld) -> list[tuple[str, str, str | None, str | None]]:
    """The history of the GPU."""
    with host_world.db.read() as tx:
        found = history.history(tx, host_world.row().uuid)
    return [(each.event, each.actor, each.from_state, each.reason) for each in found]


def test_a_device_that_becomes_one_time_use_while_in_use_is_burned(host_world: HostWorld) -> None:
    host_world.specs = ({"vendor_id": "10de", "product_id": "25b6"},)
    host_world.synced()
    claim(host_world)
    assert not host_world.row().burned
    host_world.specs = (GPU_SPEC,)
    host_world.synced()
    assert (host_world.row().burned, host_world.row().device.burned_for) == (True, ONE)
    assert host_world.reserved() == 1
    assert told(host_world)[-1] == (
        "burn",
        f"agent {HOST}",
        "allocated",
        f"it is one-time-use now, and instance {ONE} has it",
    )


def test_a_device_that_becomes_one_time_use_while_somebody_holds_it_in_placement_is_burned(
    host_world: HostWorld,
) -> None:
    host_world.specs = ({"vendor_id": "10de", "product_id": "25b6"},)
    host_world.synced()
    row = host_world.row()
    host_world.onlooker.put_allocations(
        ConsumerAllocations(ONE, {row.uuid: {row.resource_class: 1}}, None, "project", "user")
    )
    host_world.specs = (GPU_SPEC,)
    host_world.synced()
    assert (host_world.row().burned, host_world.row().device.burned_for) == (True, None)
    assert told(host_world)[-1] == (
        "burn",
        f"agent {HOST}",
        "available",
        "it is one-time-use now, and an unknown consumer has allocated it",
    )
    host_world.onlooker.delete_allocations(ONE)
    assert host_world.offered() == 0
    host_world.synced()
    assert host_world.row().device.burn_confirmed
    assert host_world.offered() == 0


def test_an_unknown_consumer_burns_a_one_time_use_device(
    host_world: HostWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """`openstack resource provider allocation set` gives a device to something that is no instance of ours."""
    tree = host_world.synced()
    row = host_world.row()
    host_world.onlooker.put_allocations(
        ConsumerAllocations(ONE, {row.uuid: {row.resource_class: 1}}, None, "project", "user")
    )
    tree.sync()
    assert (host_world.row().burned, host_world.row().device.burned_for, host_world.reserved()) == (True, None, 1)
    assert ONE in caplog.text
    host_world.onlooker.delete_allocations(ONE)
    assert host_world.offered() == 0
    tree.sync()
    assert host_world.row().device.burn_confirmed
    assert host_world.offered() == 0
    assert ask_release(host_world.db, host_world.onlooker, row.uuid, OPERATOR).value == "lowered"
    assert host_world.offered() == 1


def test_an_unknown_consumer_after_a_release_burns_it_again(host_world: HostWorld) -> None:
    """The operator releases in Placement, and the device is allocated before a period has seen the release."""
    use_up(host_world)
    tree = host_world.tree()
    tree.sync()
    host_world.by_hand(0)
    row = host_world.row()
    host_world.onlooker.put_allocations(
        ConsumerAllocations(TWO, {row.uuid: {row.resource_class: 1}}, None, "project", "user")
    )
    tree.sync()
    host_world.onlooker.delete_allocations(TWO)
    tree.sync()
    assert host_world.row().burned
    assert host_world.offered() == 0


def test_an_instance_before_its_claim_burns_nothing(host_world: HostWorld) -> None:
    """What fails before the claim burns nothing, also where a period comes between allocation and claim."""
    tree = host_world.synced()
    row = host_world.row()
    with host_world.db.write() as tx:
        make_instance(tx, uuid=ONE)
    host_world.onlooker.put_allocations(
        ConsumerAllocations(ONE, {row.uuid: {row.resource_class: 1}}, None, "project", "user")
    )
    tree.sync()
    assert not host_world.row().burned


def test_a_raised_total_lets_no_instance_claim(host_world: HostWorld) -> None:
    """Placement allocates a burned device whose total another has raised; its claim is refused before any guest."""
    use_up(host_world)
    row = host_world.row()
    present = host_world.onlooker.get_inventories(row.uuid)
    record = replace(present.records[GPU_CLASS], total=2, max_unit=2)
    host_world.onlooker.put_inventories(row.uuid, present.generation, {GPU_CLASS: record})
    allocation = ConsumerAllocations(TWO, {row.uuid: {row.resource_class: 1}}, None, "project", "user")
    host_world.onlooker.put_allocations(allocation)
    with host_world.db.write() as tx:
        make_instance(tx, uuid=TWO)
    with pytest.raises(ClaimRefused, match="its total was changed"):
        ResourceTracker(host_world.ports, HOST).instance_claim(TWO, allocation, {"pci0": [row.uuid]})
    assert host_world.row().device.burned_for == ONE
    assert host_world.records(GPU) == {GPU_CLASS: Inventory(1, 1, 1, 1, 1, 1.0)}


def test_an_instance_on_its_way_to_what_becomes_one_time_use_burns_it_by_its_claim(host_world: HostWorld) -> None:
    host_world.specs = ({"vendor_id": "10de", "product_id": "25b6"},)
    host_world.synced()
    row = host_world.row()
    allocation = ConsumerAllocations(ONE, {row.uuid: {row.resource_class: 1}}, None, "project", "user")
    host_world.onlooker.put_allocations(allocation)
    with host_world.db.write() as tx:
        make_instance(tx, uuid=ONE)
    host_world.specs = (GPU_SPEC,)
    host_world.synced()
    assert not host_world.row().burned
    ResourceTracker(host_world.ports, HOST).instance_claim(ONE, allocation, {"pci0": [row.uuid]})
    assert (host_world.row().device.burned_for, host_world.reserved()) == (ONE, 1)


def test_a_device_in_use_that_somebody_lowered_is_burned_again_in_the_next_period(host_world: HostWorld) -> None:
    tree = host_world.synced()
    claim(host_world)
    tree.sync()
    host_world.by_hand(0)
    tree.sync()
    assert host_world.reserved() == 1


def test_a_hypervisor_that_is_away_keeps_no_device_from_being_burned_again(host_world: HostWorld) -> None:
    host_world.synced()
    claim(host_world)
    host_world.synced()
    host_world.by_hand(0)
    with pytest.raises(GuestError):
        host_world.tree(driver=_Away()).sync()
    assert host_world.reserved() == 1


class _Away:
    """A hypervisor that does not answer."""

    def inventory(self) -> Any:
        raise GuestError("libvirt does not answer, as arranged")


def test_a_release_by_hand_is_noticed_in_the_next_period(host_world: HostWorld) -> None:
    use_up(host_world)
    host_world.by_hand(0)
    host_world.tree().sync()
    assert not host_world.row().burned
    assert host_world.offered() == 1


def test_what_is_configured_no_more_goes_if_it_is_idle(host_world: HostWorld) -> None:
    host_world.synced()
    host_world.specs = (GPU_SPEC,)
    host_world.synced()
    assert host_world.onlooker.find_provider(f"{HOST}_{NIC}") is None
    assert host_world.find_row(NIC) is None
    host_world.specs = (GPU_SPEC, NIC_SPEC)
    host_world.synced()
    assert host_world.offered(NIC) == 1


def test_what_is_in_use_stays_as_much_as_is_used_of_it(host_world: HostWorld, caplog: pytest.LogCaptureFixture) -> None:
    host_world.synced()
    claim(host_world, CARD, function=VFS[1])
    host_world.specs = (GPU_SPEC,)
    tree = host_world.synced()
    assert host_world.records(CARD)[VF_CLASS].total == 1
    assert host_world.offered(CARD) == 0
    assert (
        f"{CARD} is not there, or not configured, any more; its provider is kept: instance {ONE} has it" in caplog.text
    )
    give_back(host_world)
    tree.sync()
    assert host_world.find_row(CARD) is None


def test_a_function_in_use_is_padded_when_its_virtual_functions_become_fewer(host_world: HostWorld) -> None:
    host_world.synced()
    claim(host_world, CARD, function=VFS[1])
    host_world.specs = ({**VF_SPEC, "address": VFS[0]},)
    host_world.synced()
    assert host_world.records(CARD)[VF_CLASS].total == 2
    assert host_world.function(VFS[1]).missing
    give_back(host_world)
    host_world.synced()
    assert host_world.records(CARD)[VF_CLASS].total == 1


def test_an_instance_on_its_way_to_what_is_withdrawn_keeps_the_provider(host_world: HostWorld) -> None:
    host_world.synced()
    row = host_world.row(NIC)
    host_world.onlooker.put_allocations(
        ConsumerAllocations(TWO, {row.uuid: {row.resource_class: 1}}, None, "project", "user")
    )
    host_world.specs = (GPU_SPEC,)
    tree = host_world.synced()
    with host_world.db.write() as tx:
        assert not pci.claim(tx, [host_world.function(NIC).id], TWO), "it is not for instances any more"
    host_world.onlooker.delete_allocations(TWO)
    tree.sync()
    assert host_world.find_row(NIC) is None


def test_a_provider_that_another_database_left_in_use_is_taken_for_burned(host_world: HostWorld) -> None:
    host_world.synced()
    claim(host_world)
    with host_world.db.write() as tx:
        for row in pci.providers(tx):
            pci.delete_functions(tx, [each.id for each in pci.functions_of(tx, row)])
            device_rows.delete(tx, row.device)
    host_world.synced()
    assert host_world.row().burned
    assert host_world.reserved() == 1
    assert told(host_world)[-1] == (
        "discovered",
        f"agent {HOST}",
        None,
        "it was in Placement before it was on record, and is in use",
    )


def test_a_new_device_that_is_reserved_already_is_held(host_world: HostWorld) -> None:
    tree = host_world.synced()
    host_world.by_hand(1)
    tree.sync()
    assert host_world.reserved() == 1
    assert not host_world.row().burned


def test_a_provider_of_somebody_else_is_left_alone(host_world: HostWorld, caplog: pytest.LogCaptureFixture) -> None:
    host_world.specs = ()
    host_world.synced()
    root = host_world.onlooker.find_provider(HOST)
    assert root is not None
    host_world.onlooker.create_provider(ONE, f"{HOST}_{GPU}", root.uuid)
    host_world.specs = (GPU_SPEC,)
    host_world.synced()
    assert host_world.find_row() is None
    assert f"{GPU} is skipped" in caplog.text


def test_a_card_that_was_pulled_is_kept_while_it_is_burned(host_world: HostWorld) -> None:
    use_up(host_world)
    host_world.sim.functions.pull(GPU)
    tree = host_world.synced()
    assert host_world.function().missing
    host_world.sim.functions.plug(FUNCTIONS[0])
    tree.sync()
    assert not host_world.function().missing
    assert host_world.offered() == 0


def test_a_pulled_card_that_is_released_is_not_offered_and_goes(host_world: HostWorld) -> None:
    use_up(host_world)
    host_world.sim.functions.pull(GPU)
    tree = host_world.synced()
    provider = host_world.row()
    ask_release(host_world.db, host_world.onlooker, provider.uuid, OPERATOR)
    assert host_world.offered() == 0
    tree.sync()
    assert host_world.find_row() is None
    assert host_world.onlooker.find_provider(f"{HOST}_{GPU}") is None


def test_a_pulled_card_that_is_released_by_hand_is_not_offered_and_goes(host_world: HostWorld) -> None:
    use_up(host_world)
    host_world.sim.functions.pull(GPU)
    tree = host_world.synced()
    host_world.by_hand(0)
    tree.sync()
    assert host_world.offered() == 0
    tree.sync()
    assert host_world.find_row() is None


def test_a_pulled_card_that_is_released_and_comes_back_at_once_is_offered(host_world: HostWorld) -> None:
    use_up(host_world)
    host_world.sim.functions.pull(GPU)
    tree = host_world.synced()
    host_world.faults.add(refuse, method="DELETE")  # it cannot go, and so is looked at once more
    ask_release(host_world.db, host_world.onlooker, host_world.row().uuid, OPERATOR)
    tree.sync()
    assert host_world.row().device.release_pending
    host_world.sim.functions.plug(FUNCTIONS[0])
    tree.sync()
    assert host_world.offered() == 1
    assert not host_world.row().burned


def test_what_is_kept_is_told_once_each_time_that_it_comes_to_that(
    host_world: HostWorld, caplog: pytest.LogCaptureFixture
) -> None:
    use_up(host_world)
    tree = host_world.synced()
    told = f"{GPU} is not there, or not configured, any more"
    for times in (1, 2):
        host_world.sim.functions.pull(GPU)
        tree.sync()
        tree.sync()
        assert caplog.text.count(told) == times
        host_world.sim.functions.plug(FUNCTIONS[0])
        tree.sync()


def test_one_provider_that_cannot_be_written_does_not_keep_the_others(host_world: HostWorld) -> None:
    tree = host_world.tree()
    tree.sync(starting=True)
    for address in (GPU, NIC):
        host_world.onlooker.delete_provider(host_world.provider(address).uuid)
    host_world.faults.add(refuse, method="POST", path="/resource_providers$", times=1)
    with pytest.raises(PlacementError):
        tree.sync()
    assert (host_world.offered(GPU), host_world.offered(NIC)) == (0, 1)
    tree.sync()
    assert host_world.offered(GPU) == 1


def test_what_the_operator_set_at_the_root_stays(host_world: HostWorld) -> None:
    tree = host_world.synced()
    root = host_world.onlooker.find_provider(HOST)
    assert root is not None
    present = host_world.onlooker.get_inventories(root.uuid)
    generous = Inventory(32, 5, 1, 32, 1, 16.0)
    host_world.onlooker.put_inventories(root.uuid, present.generation, {**present.records, "VCPU": generous})
    tree.sync()
    assert host_world.onlooker.get_inventories(root.uuid).records["VCPU"] == Inventory(32, 0, 1, 32, 1, 16.0)


def test_a_root_that_is_deleted_at_the_moment_it_is_asked_after_is_made_again_later(host_world: HostWorld) -> None:
    world = host_world

    def delete_root() -> None:
        root = world.onlooker.find_provider(HOST)
        assert root is not None
        world.onlooker.delete_provider(root.uuid)

    world.faults.add(before(delete_root), "GET", "in_tree", times=1)
    tree = world.tree()
    with pytest.raises(PlacementNotFound, match="was deleted"):
        tree.sync(starting=True)
    tree.sync(starting=True)
    assert world.offered() == 1


def test_what_the_host_keeps_for_itself_altogether_is_offered_no_more(host_world: HostWorld) -> None:
    def disk_with(reserved_host_disk_gb: int) -> Inventory:
        conf = host_world.configuration()
        conf.set_override("reserved_host_disk_gb", reserved_host_disk_gb, "compute")
        host_world.tree(driver=load_compute_driver(conf)).sync(starting=True)
        root = host_world.onlooker.find_provider(HOST)
        assert root is not None
        return host_world.onlooker.get_inventories(root.uuid).records["DISK_GB"]

    assert disk_with(0) == Inventory(1000, 0, 1, 1000, 1, 1.0)
    assert disk_with(1000) == Inventory(1000, 1000, 1, 1000, 1, 1.0)
    assert disk_with(1) == Inventory(999, 0, 1, 999, 1, 1.0)


# Provider config

ROOT_CONFIG = """
meta: {schema_version: '1.0'}
providers:
- identification: {uuid: $COMPUTE_NODE}
  inventories: {additional: {CUSTOM_LICENCE: {total: 8}}}
  traits: {additional: [CUSTOM_GOLD]}
"""
GPU_CONFIG = f"""
meta: {{schema_version: '1.0'}}
providers:
- identification: {{name: '{HOST}_{GPU}'}}
  inventories: {{additional: {{CUSTOM_LICENCE: {{total: 8}}}}}}
  traits: {{additional: [CUSTOM_GOLD]}}
"""


@pytest.mark.parametrize(("config", "name"), [(ROOT_CONFIG, HOST), (GPU_CONFIG, f"{HOST}_{GPU}")], ids=["root", "gpu"])
def test_what_is_added_is_there_at_every_sync_and_goes_with_its_entry(
    host_world: HostWorld, config: str, name: str
) -> None:
    host_world.configure(config)
    tree = host_world.synced()
    provider = host_world.onlooker.find_provider(name)
    assert provider is not None
    for _ in range(2):
        assert host_world.onlooker.get_inventories(provider.uuid).records["CUSTOM_LICENCE"].total == 8
        assert "CUSTOM_GOLD" in host_world.onlooker.get_traits(provider.uuid).names
        tree.sync()
    traits = host_world.onlooker.get_traits(provider.uuid)
    host_world.onlooker.put_traits(provider.uuid, traits.generation, traits.names - {"CUSTOM_GOLD"})
    inventories = host_world.onlooker.get_inventories(provider.uuid)
    kept = {name: record for name, record in inventories.records.items() if name != "CUSTOM_LICENCE"}
    host_world.onlooker.put_inventories(provider.uuid, inventories.generation, kept)
    tree.sync()
    assert "CUSTOM_LICENCE" in host_world.onlooker.get_inventories(provider.uuid).records
    assert "CUSTOM_GOLD" in host_world.onlooker.get_traits(provider.uuid).names
    host_world.configure("meta: {schema_version: '1.0'}\n")
    host_world.synced()
    assert "CUSTOM_LICENCE" not in host_world.onlooker.get_inventories(provider.uuid).records
    assert "CUSTOM_GOLD" not in host_world.onlooker.get_traits(provider.uuid).names
    with host_world.db.read() as tx:
        assert pci.of_host(tx, HOST) == frozenset()


def test_an_addition_that_instances_use_stays_until_they_are_gone_and_delays_no_other(
    host_world: HostWorld, caplog: pytest.LogCaptureFixture
) -> None:
    onlooker = host_world.onlooker
    host_world.configure(ROOT_CONFIG.replace("{CUSTOM_LICENCE: ", "{CUSTOM_SEAT: {total: 2}, CUSTOM_LICENCE: "))
    host_world.synced()
    root = onlooker.find_provider(HOST)
    assert root is not None

    def custom() -> set[str]:
        return {name for name in onlooker.get_inventories(root.uuid).records if name.startswith("CUSTOM_")}

    assert custom() == {"CUSTOM_LICENCE", "CUSTOM_SEAT"}
    used = {root.uuid: {"CUSTOM_LICENCE": 1}}
    onlooker.put_allocations(ConsumerAllocations(ONE, used, None, "project", "user"))
    host_world.configure(ROOT_CONFIG.replace("CUSTOM_LICENCE", "CUSTOM_NEW").replace("CUSTOM_GOLD", "CUSTOM_SILVER"))
    tree = host_world.tree()
    caplog.clear()
    for _ in range(3):
        tree.sync()
    assert custom() == {"CUSTOM_LICENCE", "CUSTOM_NEW"}
    assert onlooker.get_inventories(root.uuid).records["CUSTOM_LICENCE"].reserved == 8
    with pytest.raises(PlacementConflict):
        onlooker.put_allocations(ConsumerAllocations(TWO, used, None, "project", "user"))
    [told] = [each.getMessage() for each in caplog.records if "is not all done yet" in each.getMessage()]
    assert "CUSTOM_LICENCE" in told
    # A trait that was taken away is forgotten at once: whoever sets it now shall keep it.
    known = onlooker.get_traits(root.uuid)
    assert "CUSTOM_GOLD" not in known.names
    onlooker.put_traits(root.uuid, known.generation, known.names | {"CUSTOM_GOLD"})
    onlooker.delete_allocations(ONE)
    tree.sync()
    assert custom() == {"CUSTOM_NEW"}
    tree.sync()
    assert caplog.text.count("is not all done yet") == 1
    assert {"CUSTOM_GOLD", "CUSTOM_SILVER"} <= onlooker.get_traits(root.uuid).names


def test_a_class_that_comes_back_while_it_drains_is_offered_again(host_world: HostWorld) -> None:
    onlooker = host_world.onlooker
    host_world.configure(GPU_CONFIG)
    host_world.synced()
    used = {host_world.provider().uuid: {"CUSTOM_LICENCE": 1}}
    onlooker.put_allocations(ConsumerAllocations(ONE, used, None, "project", "user"))
    host_world.configure("meta: {schema_version: '1.0'}\n")
    host_world.synced()
    assert host_world.records()["CUSTOM_LICENCE"].reserved == 8
    host_world.configure(GPU_CONFIG)
    host_world.synced()
    assert host_world.records()["CUSTOM_LICENCE"].reserved == 0


def test_a_ratio_that_placements_database_has_shortened_is_not_written_again(host_world: HostWorld) -> None:
    host_world.configure(GPU_CONFIG.replace("total: 8", "total: 8, allocation_ratio: 1.3333333"))
    host_world.synced()
    provider = host_world.provider()
    records = dict(host_world.records())
    records["CUSTOM_LICENCE"] = replace(records["CUSTOM_LICENCE"], allocation_ratio=1.33333)
    host_world.onlooker.put_inventories(provider.uuid, provider.generation, records)
    generation = host_world.provider().generation
    host_world.synced()
    assert host_world.provider().generation == generation


def test_an_addition_leaves_a_burned_device_burned(host_world: HostWorld) -> None:
    use_up(host_world)
    host_world.configure(GPU_CONFIG)
    host_world.synced()
    records = host_world.records()
    assert (records[GPU_CLASS].reserved, records["CUSTOM_LICENCE"].reserved) == (1, 0)


def test_a_conflict_stops_the_start_and_is_later_only_told(
    host_world: HostWorld, caplog: pytest.LogCaptureFixture
) -> None:
    host_world.configure(GPU_CONFIG.replace("CUSTOM_LICENCE", GPU_CLASS))
    host_world.specs = ()
    tree = host_world.tree()
    tree.sync(starting=True)  # there is no such provider yet
    host_world.specs = (GPU_SPEC,)
    tree = host_world.tree()
    tree.sync()
    tree.sync()
    assert caplog.text.count("the entry is not followed in that") == 1
    with pytest.raises(InvalidConfiguration, match="provider_config_location"):
        host_world.tree().sync(starting=True)


def test_a_contradiction_in_device_spec_withdraws_its_card_alone(
    host_world: HostWorld, caplog: pytest.LogCaptureFixture
) -> None:
    host_world.synced()
    host_world.specs = (GPU_SPEC, {**VF_SPEC, "address": VFS[0], "resource_class": "CUSTOM_A"}, VF_SPEC)
    tree = host_world.synced()
    tree.sync()
    assert caplog.text.count(f"{CARD} is not offered: [pci] device_spec, entry 3, key 'resource_class': {VFS[1]}") == 1
    assert (host_world.offered(GPU), host_world.offered(CARD)) == (1, 0)


@pytest.mark.parametrize("entries", [({"address": CARD},), (VF_SPEC, {"product_id": "1572"})], ids=["one", "two"])
def test_entries_that_mean_a_card_and_its_virtual_functions_offer_these(
    host_world: HostWorld, entries: tuple[dict[str, str], ...], caplog: pytest.LogCaptureFixture
) -> None:
    host_world.specs = entries
    host_world.synced()
    assert host_world.records(CARD) == {VF_CLASS: Inventory(2, 0, 1, 2, 1, 1.0)}
    assert f"{CARD} is not offered" in caplog.text


def test_a_card_that_gets_virtual_functions_is_offered_no_longer_though_its_entry_means_them_too(
    host_world: HostWorld,
) -> None:
    for address in VFS:
        host_world.sim.functions.pull(address)
    host_world.specs = ({"address": CARD},)
    tree = host_world.synced()
    assert set(host_world.records(CARD)) == {"CUSTOM_PCI_8086_1572"}
    for address in VFS:
        host_world.sim.functions.plug(FunctionSpec(address, "8086", "154c", class_code="020000", physfn=CARD))
    tree.sync()
    assert set(host_world.records(CARD)) == {VF_CLASS}
    assert host_world.offered(CARD) == 2


# The accelerator half's devices


def test_a_function_that_a_device_driver_has_is_not_for_instances(
    host_world: HostWorld, caplog: pytest.LogCaptureFixture
) -> None:
    with host_world.db.write() as tx:
        make_slot(tx, hostname=HOST, pci_address=GPU)
    host_world.tree().sync(starting=True)
    assert f"{GPU} is for instances by flavor, but the driver nvme_driver has it" in caplog.text
    assert host_world.find_row() is None
    assert host_world.offered(NIC) == 1


def test_provider_config_adds_traits_to_an_accelerator_and_no_inventory(
    host_world: HostWorld, caplog: pytest.LogCaptureFixture
) -> None:
    host_world.synced()
    with host_world.db.write() as tx:
        slot = make_slot(tx, hostname=HOST, pci_address="0000:41:00.0")
    root = host_world.onlooker.find_provider(HOST)
    assert root is not None
    accelerator = slot.deployable.rp_uuid
    host_world.onlooker.create_provider(accelerator, slot.deployable.name, root.uuid)
    host_world.configure(GPU_CONFIG.replace(f"{HOST}_{GPU}", slot.deployable.name))
    host_world.tree().sync()
    assert host_world.onlooker.get_traits(accelerator).names == {"CUSTOM_GOLD"}
    assert host_world.onlooker.get_inventories(accelerator).records == {}
    assert "an accelerator, whose inventory is not shared" in caplog.text
    with pytest.raises(InvalidConfiguration, match="an accelerator"):
        host_world.tree().sync(starting=True)
