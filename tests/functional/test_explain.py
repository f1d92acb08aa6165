"""An administrator is told what is asked of Placement, and of each host why it gets the instance or does not."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from computeworld import ComputeWorld

from autoclave.db import attributes
from autoclave.db.tables import devices
from autoclave.exceptions import BadRequest, NotFound
from autoclave.placement.embedded import EmbeddedPlacement
from autoclave.placement.records import ConsumerAllocations
from computerows import make_flavor, make_image
from dbfixtures import make_slot

pytestmark = pytest.mark.thorough


@pytest.fixture
def world(tmp_path: Path, real_placement: EmbeddedPlacement) -> Iterator[ComputeWorld]:
    """No hosts yet; the real Placement."""
    made = ComputeWorld(tmp_path, real_placement)
    yield made
    made.close()


def explain(
    world: ComputeWorld, specs: Mapping[str, str] | None = None, image: Mapping[str, str] | None = None, **flavor: Any
) -> dict[str, Any]:
    with world.db.write() as tx:
        one = make_flavor(tx, extra_specs=dict(specs or {}), **flavor)
        other = make_image(tx, properties=dict(image or {}))
    found: dict[str, Any] = world.conductor().explain(world.context, one.name, other.uuid)
    return found


def why_not(found: dict[str, Any], host: str = "host-1") -> list[str]:
    [told] = [each for each in found["hosts"] if each["name"] == host]
    return list(told["why_not"])


def test_the_query_the_groups_and_the_candidates_are_told(world: ComputeWorld) -> None:
    root = world.add_host(traits=["CUSTOM_TRUSTED"], gpus=1)
    found = explain(world, {"pci_passthrough:alias": "gpu"}, {"trait:CUSTOM_TRUSTED": "required"})
    assert "resources=DISK_GB:1,MEMORY_MB:512,VCPU:1&required=CUSTOM_TRUSTED&" in found["query"]
    assert [(group["suffix"], group["asked_by"]) for group in found["groups"]] == [
        ("", "flavor"),
        ("pci0", "PCI alias gpu"),
    ]
    [candidate] = found["candidates"]
    assert candidate["host"] == "host-1"
    assert candidate["groups"][""] == [root]
    assert found["hosts"] == [{"name": "host-1", "candidates": 1, "why_not": []}]


def test_of_one_host_the_query_that_is_told_is_the_one_that_was_asked(world: ComputeWorld) -> None:
    world.add_host("host-1")
    root = world.add_host("host-2")
    with world.db.write() as tx:
        flavor, image = make_flavor(tx), make_image(tx)
    found = world.conductor().explain(world.context, flavor.name, image.uuid, "host-2")
    assert f"&in_tree={root}&" in found["query"]
    assert [each["host"] for each in found["candidates"]] == [each["name"] for each in found["hosts"]] == ["host-2"]
    with pytest.raises(NotFound, match="no host 'host-3'"):
        world.conductor().explain(world.context, flavor.name, image.uuid, "host-3")


def test_properties_of_the_image_that_are_no_demand_are_told_with_the_reason(world: ComputeWorld) -> None:
    world.add_host()
    ignored = explain(world, image={"trait:CUSTOM_X": "Required"})["ignored_properties"]
    assert list(ignored) == ["trait:CUSTOM_X"]
    assert "'Required'" in ignored["trait:CUSTOM_X"]


def test_extra_specs_that_nothing_follows_from_are_told_and_are_no_error(world: ComputeWorld) -> None:
    world.add_host()
    found = explain(world, {"hw:cpu_policy": "dedicated", "resources:VCPU": "2"}, {"hw_disk_bus": "sata"})
    assert why_not(found) == []
    assert list(found["ignored_extra_specs"]) == ["hw:cpu_policy"]
    assert list(found["ignored_properties"]) == ["hw_disk_bus"]


def test_an_image_that_no_server_of_the_flavor_can_have_is_refused_as_the_server_would_be(world: ComputeWorld) -> None:
    world.add_host("host-1")
    with world.db.write() as tx:
        flavor, image = make_flavor(tx), make_image(tx, disk_format="iso")
    with pytest.raises(BadRequest, match="disk_format is iso; guests have raw and qcow2 disks"):
        world.conductor().explain(world.context, flavor.name, image.uuid)
    with pytest.raises(BadRequest, match="hw_firmware_type"):
        explain(world, image={"hw_firmware_type": "coreboot"})
    with world.db.write() as tx:
        flavor, image = make_flavor(tx, ram=512), make_image(tx, min_ram=513)
    with pytest.raises(BadRequest, match=f"has 512 MiB of memory, and image {image.uuid} needs 513"):
        world.conductor().explain(world.context, flavor.name, image.uuid)


def test_of_each_host_the_missing_trait_is_named(world: ComputeWorld) -> None:
    world.add_host("host-1", traits=["CUSTOM_A"])
    world.add_host("host-2", traits=["CUSTOM_A", "CUSTOM_B", "CUSTOM_BAD"])
    specs = {"trait:CUSTOM_B": "required", "trait:CUSTOM_BAD": "forbidden"}
    found = explain(world, specs, {"trait:CUSTOM_A": "required"})
    assert why_not(found) == [
        "The host itself: no provider with free DISK_GB and MEMORY_MB and VCPU has the trait CUSTOM_B."
    ]
    assert why_not(found, "host-2") == [
        "The host itself: every provider with free DISK_GB and MEMORY_MB and VCPU has the forbidden trait CUSTOM_BAD."
    ]


def test_what_a_host_has_too_little_of_is_named(world: ComputeWorld) -> None:
    world.add_host(memory_mb=1024)
    assert why_not(explain(world, ram=4096)) == ["The host itself: less than 4096 of MEMORY_MB is free."]


def test_a_device_that_is_taken_is_named_by_its_group(world: ComputeWorld) -> None:
    world.add_host(gpus=1)
    gpu = next(each.uuid for each in world.onlooker.providers_in_tree(world.roots["host-1"]) if each.parent is not None)
    world.onlooker.put_allocations(
        ConsumerAllocations("00000000-0000-4000-8000-000000000001", {gpu: {"CUSTOM_GPU": 1}}, None, "p", "u")
    )
    assert why_not(explain(world, {"pci_passthrough:alias": "gpu"})) == [
        "Group pci0 (PCI alias gpu): no CUSTOM_GPU is free: the host has none, or all are in use or reserved."
    ]


def test_held_drive_is_named_as_what_is_not_free(world: ComputeWorld) -> None:
    """The host has two drives: one is held, and an instance has the other, which alone has the trait."""
    root = world.add_host()
    with world.db.write() as tx:
        held, taken = make_slot(tx), make_slot(tx)
        attributes.insert(tx, taken.deployable.id, "trait0", "HW_NVME_CES")
        for slot, values in (
            (held, {"held": True, "hold_reason": "noisy fan"}),
            (taken, {"device_state": "allocated"}),
        ):
            values |= {"hostname": "host-1", "pci_address": f"0000:4{slot.device.id}:00.0"}
            tx.execute(devices.update().where(devices.c.id == slot.device.id).values(**values))
    drive = taken.deployable.resource_class
    where = [f"0000:4{slot.device.id}:00.0" for slot in (held, taken)]
    world.onlooker.ensure_resource_class(drive)
    assert why_not(explain(world, {"resources_ssd:" + drive: "1"})) == [
        f"Group _ssd (flavor): no {drive} is free: {where[0]} is held (noisy fan); {where[1]} is allocated."
    ]

    world.add_provider("free", {drive: 1}, [], parent=root)
    world.onlooker.ensure_traits(["HW_NVME_CES"])
    specs = {"resources_ssd:" + drive: "1", "trait_ssd:HW_NVME_CES": "required"}
    assert why_not(explain(world, specs)) == [
        f"Group _ssd (flavor): no provider with free {drive} has the trait HW_NVME_CES: {where[1]} is allocated."
    ]


def test_a_device_that_lacks_a_trait_is_named_by_its_group(world: ComputeWorld) -> None:
    world.add_host(gpus=1)
    world.onlooker.ensure_traits(["CUSTOM_BIG"])
    specs = {"resources_gpu:CUSTOM_GPU": "1", "trait_gpu:CUSTOM_BIG": "required"}
    assert why_not(explain(world, specs)) == [
        "Group _gpu (flavor): no provider with free CUSTOM_GPU has the trait CUSTOM_BIG."
    ]


def test_traits_that_no_single_device_has_together_are_told_as_that(world: ComputeWorld) -> None:
    root = world.add_host()
    for number, trait in enumerate(["CUSTOM_A", "CUSTOM_B"]):
        world.add_provider(f"card-{number}", {"CUSTOM_CARD": 1}, [trait], parent=root)
    specs = {"resources1:CUSTOM_CARD": "1", "trait1:CUSTOM_A": "required", "trait1:CUSTOM_B": "required"}
    assert why_not(explain(world, specs)) == [
        "Group 1 (flavor): no provider with free CUSTOM_CARD meets all of: CUSTOM_A, CUSTOM_B."
    ]


def test_groups_that_fit_alone_but_not_together_are_told_as_that(world: ComputeWorld) -> None:
    world.add_host(gpus=2)
    assert why_not(explain(world, {"pci_passthrough:alias": "gpu:3"})) == [
        "It satisfies each group alone, but not all groups together."
    ]


def test_a_host_that_could_but_may_not_is_told_with_its_candidates(world: ComputeWorld) -> None:
    world.add_host("host-1")
    world.add_host("host-2")
    world.change_host("host-1", disabled=True, disabled_reason="a fan is broken")
    world.silence("host-2")
    found = explain(world)
    assert found["hosts"][0] == {"name": "host-1", "candidates": 1, "why_not": ["It is disabled: a fan is broken."]}
    assert why_not(found, "host-2")[0].startswith("It has an agent that was last seen 3600 s ago")


def test_a_host_that_placement_does_not_know_is_told_as_that(world: ComputeWorld) -> None:
    world.add_host()
    world.change_host("host-1", rp_uuid="00000000-0000-4000-8000-000000000009")
    assert why_not(explain(world)) == ["It has no resource provider in Placement."]


def test_a_host_whose_provider_is_not_a_compute_nodes_is_told_as_that(world: ComputeWorld) -> None:
    root = world.add_host()
    world.onlooker.put_traits(root, world.onlooker.get_traits(root).generation, [])
    assert why_not(explain(world)) == ["Its resource provider lacks the trait COMPUTE_NODE, which its agent sets."]


def test_hosts_of_which_placement_told_no_candidate_among_many_are_asked_themselves(world: ComputeWorld) -> None:
    root = world.add_host("host-1")
    for number in range(6):
        world.add_provider(f"card-{number}", {"CUSTOM_CARD": 1}, [], parent=root)
    world.add_host("host-2")
    found = explain(world, {f"resources{number}:CUSTOM_CARD": "1" for number in range(3)})
    assert len(found["candidates"]) == 100
    assert [host["candidates"] for host in found["hosts"]] == [100, 0]
    assert len(why_not(found, "host-2")) == 3


def test_what_can_be_had_nowhere_is_refused_by_name(world: ComputeWorld) -> None:
    world.add_host()
    with pytest.raises(BadRequest, match="CUSTOM_NEVER_MADE"):
        explain(world, image={"trait:CUSTOM_NEVER_MADE": "required"})


def test_flavor_and_image_are_found_by_name_or_id(world: ComputeWorld) -> None:
    world.add_host()
    with world.db.write() as tx:
        flavor, image = make_flavor(tx, name="m1", flavorid="77"), make_image(tx, name="cirros")
        make_image(tx, name="twice")
        make_image(tx, name="twice")
    ask = world.conductor().explain
    assert ask(world.context, "77", "cirros")["flavor"] == "m1"
    assert ask(world.context, "m1", image.uuid)["image"] == "cirros"
    with pytest.raises(NotFound, match="flavor 'm2'"):
        ask(world.context, "m2", "cirros")
    with pytest.raises(NotFound, match="image 'debian'"):
        ask(world.context, flavor.name, "debian")
    with pytest.raises(BadRequest, match="2 images have the name 'twice'"):
        ask(world.context, "m1", "twice")
