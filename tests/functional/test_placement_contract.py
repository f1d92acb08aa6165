"""What the client promises, and what the double must share with the real Placement.

Every test runs against the real one, embedded, and against the double in memory.
"""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from autoclave.exceptions import PlacementConflict, PlacementNotFound, PlacementRefused
from autoclave.placement.client import PlacementClient
from autoclave.placement.records import Candidates, ConsumerAllocations, Inventory, Provider
from autoclave.testing.placement import FakePlacement
from realplacement import running_placement

pytestmark = pytest.mark.thorough

RC = "CUSTOM_PCI_8086_0953"
ONE = Inventory(total=1, reserved=0, min_unit=1, max_unit=1, step_size=1, allocation_ratio=1.0)
RESERVED = Inventory(total=1, reserved=1, min_unit=1, max_unit=1, step_size=1, allocation_ratio=1.0)
STALE = "placement.concurrent_update"


@pytest.fixture(params=["embedded", "fake"])
def service(request: pytest.FixtureRequest, tmp_path: Any) -> Iterator[Any]:
    if request.param == "fake":
        yield FakePlacement()
        return
    with running_placement(tmp_path) as embedded:
        yield embedded


@pytest.fixture
def client(service: Any) -> PlacementClient:
    client = service.client()
    client.ensure_resource_class(RC)
    return client


def new_uuid() -> str:
    return str(uuid.uuid4())


def device(client: PlacementClient, root: Provider, name: str, *traits: str, record: Inventory = ONE) -> Provider:
    made = client.create_provider(new_uuid(), name, root.uuid)
    client.ensure_traits(traits)
    generation = client.put_traits(made.uuid, made.generation, traits)
    client.put_inventories(made.uuid, generation, {RC: record})
    return client.get_provider(made.uuid)


def host(client: PlacementClient, name: str = "compute-1") -> Provider:
    return client.create_provider(new_uuid(), name)


def claim(provider: Provider, consumer: str | None = None, generation: int | None = None) -> ConsumerAllocations:
    return ConsumerAllocations(consumer or new_uuid(), {provider.uuid: {RC: 1}}, generation, "project", "user")


def reserve(client: PlacementClient, provider: Provider, record: Inventory = RESERVED) -> int:
    return client.put_inventories(provider.uuid, client.get_inventories(provider.uuid).generation, {RC: record})


def candidates(client: PlacementClient, *query: tuple[str, str]) -> Candidates:
    return client.allocation_candidates([*query, ("limit", "50")])


def choices(found: Candidates) -> set[frozenset[str]]:
    return {frozenset(candidate.allocations) for candidate in found.candidates}


# Providers


def test_a_provider_is_what_it_was_made_as(client: PlacementClient) -> None:
    root = host(client)
    child = client.create_provider(new_uuid(), "compute-1_0000:0A:00.0", root.uuid)
    assert root == Provider(root.uuid, "compute-1", 0, None, root.uuid)
    assert child == Provider(child.uuid, "compute-1_0000:0A:00.0", 0, root.uuid, root.uuid)
    assert client.get_provider(child.uuid) == child


def test_a_provider_that_does_not_exist_is_not_found(client: PlacementClient) -> None:
    missing = new_uuid()
    for ask in (
        client.get_provider,
        client.get_inventories,
        client.get_traits,
        client.get_usages,
        client.get_allocations_for_provider,
        client.delete_provider,
    ):
        with pytest.raises(PlacementNotFound, match=missing):
            ask(missing)
    with pytest.raises(PlacementNotFound):
        client.put_inventories(missing, 0, {RC: ONE})
    with pytest.raises(PlacementNotFound):
        client.put_traits(missing, 0, [])


@pytest.mark.parametrize("written", ["h_0000:0a:00.0", "h_0000:0A:00.0"])
@pytest.mark.parametrize("asked", ["h_0000:0a:00.0", "h_0000:0A:00.0"])
@pytest.mark.parametrize("rack", ["", "Rack_"], ids=["plain host", "host with an underscore"])
def test_a_name_is_found_however_its_address_is_spelt(
    client: PlacementClient, rack: str, written: str, asked: str
) -> None:
    written, asked = rack + written, rack + asked
    made = host(client, written)
    assert client.find_provider(asked) == made
    assert made.is_named(asked)


def test_no_provider_of_a_name_is_none_and_not_an_error(client: PlacementClient) -> None:
    host(client, "h_0000:0A:00.0")
    assert client.find_provider("h_0000:0A:00.1") is None
    assert client.find_provider("h") is None


def test_placement_itself_takes_two_spellings_of_one_name(client: PlacementClient) -> None:
    host(client, "h_0000:0a:00.0")
    host(client, "h_0000:0A:00.0")


def test_a_uuid_or_a_name_is_given_once(client: PlacementClient) -> None:
    taken = host(client)
    with pytest.raises(PlacementConflict) as same_name:
        client.create_provider(new_uuid(), "compute-1")
    with pytest.raises(PlacementConflict) as same_uuid:
        client.create_provider(taken.uuid, "compute-2")
    assert same_name.value.code == same_uuid.value.code == "placement.duplicate_name"


def test_a_renamed_provider_keeps_all_but_its_name(client: PlacementClient) -> None:
    root = host(client)
    child = device(client, root, "compute-1_0000:0A:00.0", "CUSTOM_A")
    client.put_allocations(claim(child))
    before = client.get_provider(child.uuid)
    for _ in range(2):
        client.rename_provider(child.uuid, "rack-7_0000:0A:00.0")
    assert client.get_provider(child.uuid) == replace(before, name="rack-7_0000:0A:00.0")
    assert client.get_inventories(child.uuid).records == {RC: ONE}
    assert client.get_usages(child.uuid) == {RC: 1}
    with pytest.raises(PlacementConflict, match="compute-1"):
        client.rename_provider(child.uuid, root.name)
    with pytest.raises(PlacementNotFound):
        client.rename_provider(new_uuid(), "rack-8")


def test_a_provider_cannot_hang_from_nothing(client: PlacementClient) -> None:
    with pytest.raises(PlacementRefused) as refused:
        client.create_provider(new_uuid(), "orphan", new_uuid())
    assert refused.value.status == 400


def test_a_uuid_must_be_one(client: PlacementClient) -> None:
    with pytest.raises(PlacementRefused):
        client.create_provider("not-a-uuid", "compute-1")


def test_a_tree_is_all_of_it_whichever_member_is_named(client: PlacementClient) -> None:
    root, other = host(client), host(client, "compute-2")
    child = device(client, root, "compute-1_0000:0A:00.0")
    device(client, other, "compute-2_0000:0A:00.0")
    assert {each.uuid for each in client.providers_in_tree(root.uuid)} == {root.uuid, child.uuid}
    assert {each.uuid for each in client.providers_in_tree(child.uuid)} == {root.uuid, child.uuid}


def test_providers_are_found_by_a_trait_of_theirs_in_whatever_tree(client: PlacementClient) -> None:
    one, other = host(client), host(client, "compute-2")
    ours = device(client, one, "a", "OWNER_CYBORG")
    theirs = device(client, other, "b", "OWNER_CYBORG", "CUSTOM_B")
    device(client, other, "c", "OWNER_NOVA")
    assert {each.uuid for each in client.providers_with_trait("OWNER_CYBORG")} == {ours.uuid, theirs.uuid}
    assert client.providers_with_trait("CUSTOM_B") == [client.get_provider(theirs.uuid)]


def test_providers_are_found_by_what_they_would_give(client: PlacementClient) -> None:
    root = host(client)
    free, used = device(client, root, "free"), device(client, root, "used")
    device(client, root, "reserved", record=RESERVED)
    client.put_allocations(claim(used))
    assert client.providers_offering(RC) == [client.get_provider(free.uuid)]
    with pytest.raises(PlacementRefused, match="CUSTOM_UNKNOWN"):
        client.providers_offering("CUSTOM_UNKNOWN")


def test_a_tree_tells_the_generations_that_a_sync_compares(client: PlacementClient) -> None:
    root = host(client)
    child = device(client, root, "compute-1_0000:0A:00.0")
    before = {each.uuid: each.generation for each in client.providers_in_tree(root.uuid)}
    reserve(client, child)
    after = {each.uuid: each.generation for each in client.providers_in_tree(root.uuid)}
    assert after == {root.uuid: before[root.uuid], child.uuid: before[child.uuid] + 1}


def test_the_tree_of_an_unknown_root_is_empty(client: PlacementClient) -> None:
    assert client.providers_in_tree(new_uuid()) == []


def test_a_deleted_provider_takes_its_inventory_and_traits_along(client: PlacementClient) -> None:
    root = host(client)
    gone = device(client, root, "compute-1_0000:0A:00.0", "CUSTOM_GONE")
    client.delete_provider(gone.uuid)
    assert [each.uuid for each in client.providers_in_tree(root.uuid)] == [root.uuid]
    again = client.create_provider(gone.uuid, gone.name, root.uuid)
    assert (again.generation, client.get_inventories(again.uuid).records) == (0, {})
    assert client.get_traits(again.uuid).names == frozenset()


def test_a_provider_in_use_is_not_deleted(client: PlacementClient) -> None:
    root = host(client)
    used = device(client, root, "compute-1_0000:0A:00.0")
    client.put_allocations(claim(used))
    with pytest.raises(PlacementConflict) as conflict:
        client.delete_provider(used.uuid)
    assert conflict.value.code == "placement.resource_provider.inuse"


def test_a_parent_is_not_deleted(client: PlacementClient) -> None:
    root = host(client)
    device(client, root, "compute-1_0000:0A:00.0")
    with pytest.raises(PlacementConflict) as conflict:
        client.delete_provider(root.uuid)
    assert conflict.value.code == "placement.resource_provider.cannot_delete_parent"


# Inventories


def test_an_inventory_is_kept_whole(client: PlacementClient) -> None:
    root = host(client)
    odd = Inventory(total=8, reserved=3, min_unit=2, max_unit=6, step_size=2, allocation_ratio=1.5)
    generation = client.put_inventories(root.uuid, 0, {RC: odd, "VCPU": ONE})
    assert client.get_inventories(root.uuid) == (generation, {RC: odd, "VCPU": ONE})
    generation = client.put_inventories(root.uuid, generation, {RC: RESERVED})
    assert client.get_inventories(root.uuid) == (generation, {RC: RESERVED})


def test_a_device_can_be_reserved_whole(client: PlacementClient) -> None:
    reserved = device(client, host(client), "compute-1_0000:0A:00.0", record=RESERVED)
    assert client.get_inventories(reserved.uuid).records[RC].reserved == 1


def test_more_than_all_cannot_be_reserved(client: PlacementClient) -> None:
    root = host(client)
    with pytest.raises(PlacementRefused) as refused:
        client.put_inventories(root.uuid, 0, {RC: Inventory(1, 2, 1, 1, 1, 1.0)})
    assert refused.value.status == 400
    assert client.get_inventories(root.uuid) == (0, {})


def test_an_inventory_of_nothing_is_refused(client: PlacementClient) -> None:
    root = host(client)
    with pytest.raises(PlacementRefused):
        client.put_inventories(root.uuid, 0, {RC: Inventory(0, 0, 1, 1, 1, 1.0)})


def test_a_write_with_an_old_generation_is_refused_and_changes_nothing(client: PlacementClient) -> None:
    root = host(client)
    generation = client.put_inventories(root.uuid, 0, {RC: ONE})
    for write in (
        lambda: client.put_inventories(root.uuid, 0, {RC: RESERVED}),
        lambda: client.put_traits(root.uuid, 0, []),
    ):
        with pytest.raises(PlacementConflict) as conflict:
            write()
        assert conflict.value.code == STALE
    assert client.get_inventories(root.uuid) == (generation, {RC: ONE})


def test_the_same_inventory_again_moves_the_generation_and_so_defeats_an_older_writer(client: PlacementClient) -> None:
    root = host(client)
    first = client.put_inventories(root.uuid, 0, {RC: RESERVED})
    second = client.put_inventories(root.uuid, first, {RC: RESERVED})
    third = client.put_inventories(root.uuid, second, {RC: RESERVED})
    assert (second, third) == (first + 1, first + 2)
    with pytest.raises(PlacementConflict):
        client.put_inventories(root.uuid, first, {RC: ONE})


def test_an_inventory_in_use_is_not_removed(client: PlacementClient) -> None:
    used = device(client, host(client), "compute-1_0000:0A:00.0")
    client.put_allocations(claim(used))
    generation = client.get_inventories(used.uuid).generation
    with pytest.raises(PlacementConflict) as conflict:
        client.put_inventories(used.uuid, generation, {})
    assert conflict.value.code == "placement.inventory.inuse"


def test_a_class_that_does_not_exist_has_no_inventory(client: PlacementClient) -> None:
    root = host(client)
    with pytest.raises(PlacementRefused):
        client.put_inventories(root.uuid, 0, {"CUSTOM_NEVER_MADE": ONE})


def test_what_placement_resets_when_it_is_left_out(service: Any, client: PlacementClient) -> None:
    """Why the client writes whole records: on a device that is reserved this is silent and succeeds."""
    burned = device(client, host(client), "compute-1_0000:0A:00.0", record=RESERVED)
    body = {"resource_provider_generation": burned.generation, "inventories": {RC: {"total": 1}}}
    response = service.client_session().request(f"/resource_providers/{burned.uuid}/inventories", "PUT", json=body)
    assert response.status_code == 200
    assert client.get_inventories(burned.uuid).records[RC] == Inventory(1, 0, 1, 2147483647, 1, 1.0)


def test_a_resource_class_is_made_once_and_may_be_asked_for_again(client: PlacementClient) -> None:
    client.ensure_resource_class("CUSTOM_NEW")
    client.ensure_resource_class("CUSTOM_NEW")
    client.ensure_resource_class("VCPU")
    client.put_inventories(host(client).uuid, 0, {"CUSTOM_NEW": ONE})


def test_a_standard_class_that_placement_lacks_is_named(client: PlacementClient) -> None:
    with pytest.raises(PlacementRefused, match=r"WARP_DRIVE.*os-resource-classes") as refused:
        client.ensure_resource_class("WARP_DRIVE")
    assert refused.value.status == 400


def test_the_classes_that_placement_lacks_are_told(client: PlacementClient) -> None:
    assert client.unknown_resource_classes(["VCPU", RC, "CUSTOM_NEVER_MADE", "WARP_DRIVE"]) == [
        "CUSTOM_NEVER_MADE",
        "WARP_DRIVE",
    ]


# Traits


def test_the_traits_that_placement_lacks_are_told(client: PlacementClient) -> None:
    client.ensure_traits(["CUSTOM_A"])
    assert client.unknown_traits(["CUSTOM_A", "CUSTOM_B", "COMPUTE_NODE", "HW_WARP"]) == ["CUSTOM_B", "HW_WARP"]
    assert client.unknown_traits([]) == []


def test_traits_are_replaced_as_a_whole(client: PlacementClient) -> None:
    root = host(client)
    client.ensure_traits(["CUSTOM_A", "CUSTOM_B", "HW_CPU_X86_AVX"])
    generation = client.put_traits(root.uuid, 0, ["CUSTOM_A", "HW_CPU_X86_AVX"])
    assert client.get_traits(root.uuid) == (generation, frozenset({"CUSTOM_A", "HW_CPU_X86_AVX"}))
    generation = client.put_traits(root.uuid, generation, ["CUSTOM_B"])
    assert client.get_traits(root.uuid) == (generation, frozenset({"CUSTOM_B"}))


def test_unchanged_traits_do_not_move_the_generation(client: PlacementClient) -> None:
    root = host(client)
    client.ensure_traits(["CUSTOM_A"])
    generation = client.put_traits(root.uuid, 0, ["CUSTOM_A"])
    assert client.put_traits(root.uuid, generation, ["CUSTOM_A"]) == generation == 1


def test_a_trait_that_does_not_exist_is_refused_by_name(client: PlacementClient) -> None:
    root = host(client)
    with pytest.raises(PlacementRefused, match="CUSTOM_NEVER_MADE"):
        client.put_traits(root.uuid, 0, ["CUSTOM_NEVER_MADE"])


def test_a_standard_trait_that_placement_lacks_is_named_with_the_version_to_have(client: PlacementClient) -> None:
    with pytest.raises(PlacementRefused, match=r"HW_NVME_TELEPORT.*os-traits.*3\.9\.0") as refused:
        client.ensure_traits(["CUSTOM_A", "HW_NVME_TELEPORT", "HW_CPU_X86_AVX"])
    assert refused.value.status == 400


def test_no_traits_need_no_making(client: PlacementClient) -> None:
    client.ensure_traits([])


# Allocations


def test_what_is_allocated_is_seen_from_both_sides(client: PlacementClient) -> None:
    used, free = (device(client, host(client, name), f"{name}_0000:0A:00.0") for name in ("h1", "h2"))
    wanted = claim(used)
    client.put_allocations(wanted)
    held = client.get_allocations(wanted.consumer)
    assert held.allocations == {used.uuid: {RC: 1}}
    assert (held.generation, held.project_id, held.user_id, held.consumer_type) == (1, "project", "user", "INSTANCE")
    assert client.get_allocations_for_provider(used.uuid) == {wanted.consumer: {RC: 1}}
    assert client.get_allocations_for_provider(free.uuid) == {}
    assert client.get_usages(used.uuid) == {RC: 1}
    assert client.get_usages(free.uuid) == {RC: 0}


def test_a_consumer_that_holds_nothing_is_empty_and_not_an_error(client: PlacementClient) -> None:
    nobody = new_uuid()
    assert client.get_allocations(nobody) == ConsumerAllocations(nobody, {})


def test_a_device_is_not_given_twice(client: PlacementClient) -> None:
    used = device(client, host(client), "compute-1_0000:0A:00.0")
    first, second = claim(used), claim(used)
    client.put_allocations(first)
    with pytest.raises(PlacementConflict, match=RC) as conflict:
        client.put_allocations(second)
    assert conflict.value.code == "placement.undefined_code"
    assert client.get_allocations(second.consumer).generation is None
    client.delete_allocations(first.consumer)
    client.put_allocations(second)


def test_a_reserved_device_is_not_given(client: PlacementClient) -> None:
    burned = device(client, host(client), "compute-1_0000:0A:00.0", record=RESERVED)
    with pytest.raises(PlacementConflict):
        client.put_allocations(claim(burned))


def test_the_owner_of_a_reserved_device_may_say_so_again(client: PlacementClient) -> None:
    burned = device(client, host(client), "compute-1_0000:0A:00.0")
    owner = claim(burned)
    client.put_allocations(owner)
    reserve(client, burned)
    client.put_allocations(claim(burned, owner.consumer, generation=1))
    assert client.get_usages(burned.uuid) == {RC: 1}


def test_a_reserved_device_passes_from_one_consumer_to_another_in_one_request(client: PlacementClient) -> None:
    burned = device(client, host(client), "compute-1_0000:0A:00.0")
    owner, heir, third = claim(burned), claim(burned), claim(burned)
    client.put_allocations(owner)
    reserve(client, burned)
    nothing = ConsumerAllocations(owner.consumer, {}, 1, "project", "user")
    with pytest.raises(PlacementConflict):
        client.post_allocations([nothing, heir, third])
    assert client.get_allocations_for_provider(burned.uuid) == {owner.consumer: {RC: 1}}
    client.post_allocations([nothing, heir])
    assert client.get_allocations_for_provider(burned.uuid) == {heir.consumer: {RC: 1}}


def test_a_reserved_device_once_released_is_gone(client: PlacementClient) -> None:
    burned = device(client, host(client), "compute-1_0000:0A:00.0")
    owner = claim(burned)
    client.put_allocations(owner)
    reserve(client, burned)
    client.delete_allocations(owner.consumer)
    with pytest.raises(PlacementConflict):
        client.put_allocations(owner)


def test_an_allocation_with_an_old_consumer_generation_is_refused(client: PlacementClient) -> None:
    used = device(client, host(client), "compute-1_0000:0A:00.0")
    owner = claim(used)
    client.put_allocations(owner)
    for generation in (None, 0, 7):
        with pytest.raises(PlacementConflict) as conflict:
            client.put_allocations(claim(used, owner.consumer, generation))
        assert conflict.value.code == STALE
    with pytest.raises(PlacementConflict):
        client.put_allocations(claim(used, new_uuid(), generation=0))


def test_an_allocation_moves_the_generation_of_the_providers_it_names(client: PlacementClient) -> None:
    root = host(client)
    first = device(client, root, "compute-1_0000:0A:00.0")
    second = device(client, root, "compute-1_0000:0B:00.0")

    def moved() -> tuple[int, int]:
        now = [client.get_provider(each.uuid).generation - each.generation for each in (first, second)]
        return now[0], now[1]

    owner = claim(first)
    client.put_allocations(owner)
    assert moved() == (1, 0)
    client.put_allocations(claim(second, owner.consumer, generation=1))
    assert moved() == (1, 1), "the provider that is left is not named, and keeps its generation"
    client.put_allocations(ConsumerAllocations(owner.consumer, {}, 2, "project", "user"))
    assert moved() == (1, 2)
    client.put_allocations(owner)
    client.delete_allocations(owner.consumer)
    assert moved() == (2, 2), "a DELETE moves nothing"


def test_giving_everything_back_forgets_the_consumer(client: PlacementClient) -> None:
    used = device(client, host(client), "compute-1_0000:0A:00.0")
    owner = claim(used)
    client.put_allocations(owner)
    client.put_allocations(ConsumerAllocations(owner.consumer, {}, 1, "project", "user"))
    client.put_allocations(owner)
    client.delete_allocations(owner.consumer)
    client.put_allocations(owner)
    assert client.get_allocations(owner.consumer).generation == 1


def test_giving_back_nothing_leaves_a_consumer_that_no_read_shows(client: PlacementClient) -> None:
    """A trap of Placement's that callers must keep clear of; the double has it too, so that tests find them."""
    used = device(client, host(client), "compute-1_0000:0A:00.0")
    ghost = claim(used)
    client.put_allocations(ConsumerAllocations(ghost.consumer, {}, None, "project", "user"))
    assert client.get_allocations(ghost.consumer).generation is None
    with pytest.raises(PlacementConflict):
        client.put_allocations(ghost)
    client.put_allocations(claim(used, ghost.consumer, generation=0))
    assert client.get_allocations(ghost.consumer).generation == 1


def test_deleting_allocations_that_are_not_there_is_not_found(client: PlacementClient) -> None:
    with pytest.raises(PlacementNotFound):
        client.delete_allocations(new_uuid())


@pytest.mark.parametrize("amount", [1, 3, 8])
def test_an_allocation_keeps_to_the_units_of_the_inventory(client: PlacementClient, amount: int) -> None:
    root = host(client)
    client.put_inventories(root.uuid, 0, {RC: Inventory(20, 0, 2, 6, 2, 1.0)})
    client.put_allocations(ConsumerAllocations(new_uuid(), {root.uuid: {RC: 4}}, None, "project", "user"))
    with pytest.raises(PlacementConflict):
        client.put_allocations(ConsumerAllocations(new_uuid(), {root.uuid: {RC: amount}}, None, "project", "user"))


def test_an_allocation_from_an_unknown_provider_or_class_is_refused(client: PlacementClient) -> None:
    root = host(client)
    client.put_inventories(root.uuid, 0, {RC: ONE})
    for allocations in ({new_uuid(): {RC: 1}}, {root.uuid: {"CUSTOM_NEVER_MADE": 1}}):
        with pytest.raises(PlacementRefused) as refused:
            client.put_allocations(ConsumerAllocations(new_uuid(), allocations, None, "project", "user"))
        assert refused.value.status == 400
    with pytest.raises(PlacementConflict):
        client.put_allocations(ConsumerAllocations(new_uuid(), {root.uuid: {"VCPU": 1}}, None, "project", "user"))


# Candidates


def test_only_what_is_free_and_not_reserved_is_a_candidate(client: PlacementClient) -> None:
    root = host(client)
    free = device(client, root, "compute-1_0000:0A:00.0")
    burned = device(client, root, "compute-1_0000:0B:00.0", record=RESERVED)
    used = device(client, root, "compute-1_0000:0C:00.0")
    client.put_allocations(claim(used))
    found = candidates(client, ("resources", f"{RC}:1"))
    assert choices(found) == {frozenset({free.uuid})}
    assert found.candidates[0].mappings == {"": (free.uuid,)}
    assert found.candidates[0].allocations == {free.uuid: {RC: 1}}
    assert set(found.summaries) == {root.uuid, free.uuid, burned.uuid, used.uuid}
    assert [found.summaries[each.uuid].capacity for each in (root, free, burned)] == [{}, {RC: 1}, {RC: 0}]
    assert found.summaries[used.uuid].used == {RC: 1}
    assert (found.summaries[used.uuid].parent, found.summaries[used.uuid].root) == (root.uuid, root.uuid)


def test_no_candidates_is_an_answer(client: PlacementClient) -> None:
    assert candidates(client, ("resources", f"{RC}:1")) == Candidates()


def test_candidates_have_the_traits_that_are_required_and_none_that_is_forbidden(client: PlacementClient) -> None:
    root = host(client)
    plain = device(client, root, "compute-1_0000:0A:00.0")
    fast = device(client, root, "compute-1_0000:0B:00.0", "CUSTOM_FAST")
    both = device(client, root, "compute-1_0000:0C:00.0", "CUSTOM_FAST", "CUSTOM_BIG")

    def with_traits(*required: str) -> set[frozenset[str]]:
        return choices(candidates(client, ("resources1", f"{RC}:1"), *(("required1", each) for each in required)))

    assert with_traits("CUSTOM_FAST") == {frozenset({fast.uuid}), frozenset({both.uuid})}
    assert with_traits("CUSTOM_FAST,!CUSTOM_BIG") == {frozenset({fast.uuid})}
    assert with_traits("!CUSTOM_FAST") == {frozenset({plain.uuid})}
    assert with_traits("in:CUSTOM_FAST,CUSTOM_BIG") == {frozenset({fast.uuid}), frozenset({both.uuid})}
    assert with_traits("CUSTOM_FAST", "CUSTOM_BIG") == {frozenset({both.uuid})}


def test_the_unnumbered_group_spreads_over_a_tree_and_a_numbered_one_does_not(client: PlacementClient) -> None:
    root = host(client)
    client.ensure_traits(["CUSTOM_ROOT"])
    generation = client.put_traits(root.uuid, 0, ["CUSTOM_ROOT"])
    client.put_inventories(root.uuid, generation, {"VCPU": Inventory(4, 0, 1, 4, 1, 1.0)})
    child = device(client, root, "compute-1_0000:0A:00.0")
    client.put_inventories(host(client, "compute-2").uuid, 0, {"VCPU": Inventory(4, 0, 1, 4, 1, 1.0)})
    spread = candidates(client, ("resources", f"VCPU:1,{RC}:1"), ("required", "CUSTOM_ROOT"))
    assert choices(spread) == {frozenset({root.uuid, child.uuid})}
    assert set(spread.candidates[0].mappings[""]) == {root.uuid, child.uuid}
    assert choices(candidates(client, ("resources1", f"VCPU:1,{RC}:1"))) == set()
    split = candidates(client, ("resources", "VCPU:1"), ("resources_pci", f"{RC}:1"))
    assert choices(split) == {frozenset({root.uuid, child.uuid})}
    assert split.candidates[0].mappings == {"": (root.uuid,), "_pci": (child.uuid,)}


def test_groups_that_are_isolated_take_different_providers(client: PlacementClient) -> None:
    root = host(client)
    first, second = (device(client, root, f"compute-1_0000:0{each}:00.0") for each in "AB")
    client.put_inventories(host(client, "compute-2").uuid, 0, {RC: Inventory(2, 0, 1, 2, 1, 1.0)})
    groups = (("resources1", f"{RC}:1"), ("resources2", f"{RC}:1"))
    isolated = candidates(client, *groups, ("group_policy", "isolate"))
    assert choices(isolated) == {frozenset({first.uuid, second.uuid})}
    assert {candidate.mappings["1"] for candidate in isolated.candidates} == {(first.uuid,), (second.uuid,)}
    together = candidates(client, *groups, ("group_policy", "none"))
    assert {2} == {sum(held[RC] for held in each.allocations.values()) for each in together.candidates}
    assert {len(each) for each in choices(together)} == {1, 2}


def test_candidates_can_be_asked_of_one_host_and_of_hosts_with_a_trait(client: PlacementClient) -> None:
    one, two = host(client), host(client, "compute-2")
    first = device(client, one, "compute-1_0000:0A:00.0")
    device(client, two, "compute-2_0000:0A:00.0")
    client.ensure_traits(["CUSTOM_RACK_9"])
    client.put_traits(one.uuid, one.generation, ["CUSTOM_RACK_9"])
    assert choices(candidates(client, ("resources", f"{RC}:1"), ("in_tree", one.uuid))) == {frozenset({first.uuid})}
    by_root = candidates(client, ("resources", f"{RC}:1"), ("root_required", "CUSTOM_RACK_9"))
    assert choices(by_root) == {frozenset({first.uuid})}
    without = candidates(client, ("resources", f"{RC}:1"), ("root_required", "!CUSTOM_RACK_9"))
    assert frozenset({first.uuid}) not in choices(without)
    assert len(without.candidates) == 1


def test_more_than_a_hundred_candidates_are_dealt_out_over_the_hosts(client: PlacementClient) -> None:
    roots = [host(client, name) for name in ("h1", "h2")]
    for root in roots:
        for each in range(6):
            device(client, root, f"{root.name}_0000:0{each}:00.0")
    groups = [(f"resources{number}", f"{RC}:1") for number in range(3)]
    found = client.allocation_candidates([*groups, ("group_policy", "isolate")])
    assert len(found.candidates) == 100
    hosts = [found.summaries[next(iter(candidate.allocations))].root for candidate in found.candidates]
    assert {hosts.count(root.uuid) for root in roots} == {50}


def test_a_limit_keeps_some_of_the_candidates_and_the_summaries_of_their_trees(client: PlacementClient) -> None:
    roots = [host(client, name) for name in ("h1", "h2")]
    for root in roots:
        for each in "AB":
            device(client, root, f"{root.name}_0000:0{each}:00.0")
    found = client.allocation_candidates([("resources", f"{RC}:1"), ("limit", "1")])
    (candidate,) = found.candidates
    (given,) = candidate.allocations
    tree = {each.uuid for each in client.providers_in_tree(given)}
    assert set(found.summaries) == tree


@pytest.mark.parametrize(
    "query",
    [
        [("resources", "CUSTOM_NEVER_MADE:1")],
        [("resources", f"{RC}:1"), ("required", "CUSTOM_NEVER_MADE")],
        [("resources", f"{RC}:1"), ("required", "HW_CPU_X86_AVX,!HW_CPU_X86_AVX")],
        [("resources1", f"{RC}:1"), ("resources2", f"{RC}:1")],
        [("resources", f"{RC}:0")],
        [("resources", RC)],
        [("resources", f"{RC}:1"), ("limit", "0")],
        [("required", "HW_CPU_X86_AVX")],
        [("resources", f"{RC}:1"), ("wishes", "3")],
        [],
    ],
)
def test_a_query_that_makes_no_sense_is_refused(client: PlacementClient, query: list[tuple[str, str]]) -> None:
    with pytest.raises(PlacementRefused) as refused:
        client.allocation_candidates(query)
    assert refused.value.status == 400


def test_a_request_at_another_microversion_than_the_pinned_one_does_not_come_from_the_client(service: Any) -> None:
    adapter = service.client_session()
    assert adapter.default_microversion == "1.39"
    assert adapter.request("/resource_providers", "GET", microversion="9.99").status_code == 406
