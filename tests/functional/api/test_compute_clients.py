"""OpenStack's own clients, unmodified, against the compute and image APIs over HTTP."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openstack
import pytest
from api_world import HOST, World
from openstack import exceptions
from openstack_command import OpenStack

pytestmark = pytest.mark.thorough

DATA = b"a small disk" * 1000


@pytest.fixture
def cloud(url: str) -> Any:
    return openstack.connection.Connection(
        auth_type="none",
        endpoint=url,
        compute_endpoint_override=f"{url}/compute/v2.1",
        image_endpoint_override=f"{url}/image/v2",
        identity_endpoint_override=f"{url}/identity/v3",
    )


def test_openstacksdk_makes_finds_changes_and_deletes_flavors(cloud: Any) -> None:
    compute = cloud.compute
    made = compute.create_flavor(name="gpu", ram=1024, vcpus=2, disk=0, description="one GPU")
    compute.create_flavor_extra_specs(made, {"resources:CUSTOM_GPU": "1", "trait:HW_PCI_ONE_TIME_USE": "required"})
    compute.create_flavor(name="hidden", ram=1, vcpus=1, disk=0, is_public=False)
    found = compute.find_flavor("gpu", ignore_missing=False, get_extra_specs=True)
    assert (found.id, found.ram, found.vcpus, found.description) == (made.id, 1024, 2, "one GPU")
    assert found.extra_specs == {"resources:CUSTOM_GPU": "1", "trait:HW_PCI_ONE_TIME_USE": "required"}
    assert {one.name for one in compute.flavors(is_public=None)} == {"gpu", "hidden"}
    assert [one.name for one in compute.flavors(details=False, is_public=True)] == ["gpu"]
    compute.update_flavor_extra_specs_property(made, "resources:CUSTOM_GPU", "2")
    assert compute.get_flavor_extra_specs_property(made, "resources:CUSTOM_GPU") == "2"
    compute.delete_flavor_extra_specs_property(made, "resources:CUSTOM_GPU")
    assert compute.fetch_flavor_extra_specs(made).extra_specs == {"trait:HW_PCI_ONE_TIME_USE": "required"}
    assert compute.update_flavor(made.id, description="none").description == "none"
    with pytest.raises(exceptions.ConflictException, match="A flavor with the name gpu"):
        compute.create_flavor(name="gpu", ram=1, vcpus=1, disk=0)
    compute.delete_flavor(made, ignore_missing=False)
    with pytest.raises(exceptions.NotFoundException, match=f"Flavor {made.id} could not be found"):
        compute.get_flavor(made.id)


def test_openstacksdk_fills_fetches_changes_and_deletes_images(world: World, cloud: Any, tmp_path: Path) -> None:
    file = tmp_path / "disk.raw"
    file.write_bytes(DATA)
    image = cloud.image.create_image(
        name="disk", filename=str(file), disk_format="raw", container_format="bare", **{"trait:HW_X": "required"}
    )
    found = cloud.image.find_image("disk", ignore_missing=False)
    assert (found.id, found.status, found.size) == (image.id, "active", len(DATA))
    assert (found.checksum, found.hash_value) == (hashlib.md5(DATA).hexdigest(), hashlib.sha512(DATA).hexdigest())
    assert found.properties["trait:HW_X"] == "required"
    assert cloud.image.download_image(found).content == DATA
    assert (world.directory / "images" / image.id).read_bytes() == DATA
    cloud.image.update_image_properties(found, **{"trait:HW_Y": "required", "name": "renamed"})
    changed = cloud.image.get_image(image.id)
    assert (changed.name, changed.properties["trait:HW_X"]) == ("renamed", "required")
    assert changed.properties["trait:HW_Y"] == "required"
    assert [one.name for one in cloud.image.images()] == ["renamed"]
    cloud.image.delete_image(found, ignore_missing=False)
    with pytest.raises(exceptions.NotFoundException, match="No image found with ID"):
        cloud.image.get_image(found.id)
    assert list((world.directory / "images").iterdir()) == []


def test_openstacksdk_drives_a_servers_life(world: World, cloud: Any) -> None:
    world.add_host()
    flavor, image, other = world.add_flavor(), world.add_image(), world.add_image("other")
    server = cloud.compute.create_server(name="vm1", flavor_id=flavor, image_id=image, networks="none")
    server = cloud.compute.wait_for_server(server, wait=30)
    assert (server.status, server.compute_host, server.flavor["original_name"]) == ("ACTIVE", HOST, "small")
    assert server.image["id"] == image
    assert cloud.compute.find_server("vm1", ignore_missing=False).id == server.id
    assert [one.id for one in cloud.compute.servers(all_projects=True, compute_host=HOST)] == [server.id]
    assert [one.id for one in cloud.compute.servers(details=False, name="vm1")] == [server.id]
    for act, state in [
        (cloud.compute.stop_server, "SHUTOFF"),
        (cloud.compute.start_server, "ACTIVE"),
        (lambda one: cloud.compute.reboot_server(one, "HARD"), "ACTIVE"),
        (lambda one: cloud.compute.rebuild_server(one, image=other), "ACTIVE"),
    ]:
        act(server)
        assert cloud.compute.get_server(server.id).status == state
    assert cloud.compute.get_server(server.id).image["id"] == other
    cloud.compute.set_server_metadata(server, use="test")
    assert cloud.compute.get_server_metadata(server).metadata == {"use": "test"}
    cloud.compute.delete_server_metadata(server, ["use"])
    assert cloud.compute.update_server(server, name="vm2").name == "vm2"
    with pytest.raises(exceptions.ConflictException, match="Cannot start instance"):
        cloud.compute.start_server(server)
    with pytest.raises(exceptions.BadRequestException, match="not implement"):
        cloud.compute.pause_server(server)
    cloud.compute.delete_server(server, ignore_missing=False)
    cloud.compute.wait_for_delete(server, wait=30)
    assert list(cloud.compute.servers()) == []


def test_openstacksdk_pages_through_servers_images_and_flavors(world: World, cloud: Any) -> None:
    flavor, image = world.add_flavor(), world.add_image()
    servers = [world.add_server(f"vm{number}", flavorRef=flavor, imageRef=image) for number in range(3)]
    images = [image, world.add_image("b"), world.add_image("c")]
    flavors = sorted([flavor, world.add_flavor("b"), world.add_flavor("c")])
    assert [one.id for one in cloud.compute.servers(limit=2)] == servers[::-1]
    assert [one.id for one in cloud.image.images(limit=2)] == images[::-1]
    with pytest.raises(exceptions.BadRequestException, match='Unknown argument: "sort"'):
        list(cloud.image.images(sort="name:asc"))
    assert [one.id for one in cloud.compute.flavors(limit=2)] == flavors


def test_openstacksdk_sees_hosts_and_disables_them(world: World, cloud: Any) -> None:
    made = world.add_host()
    [service] = cloud.compute.services()
    assert (service.id, service.host, service.state, service.status) == (made.uuid, HOST, "up", "enabled")
    assert cloud.compute.disable_service(service, disabled_reason="repair").status == "disabled"
    [hypervisor] = cloud.compute.hypervisors(details=True)
    assert (hypervisor.name, hypervisor.status, hypervisor.state) == (HOST, "disabled", "up")
    assert cloud.compute.update_service_forced_down(service, forced=True).is_forced_down
    assert cloud.compute.find_hypervisor(HOST, ignore_missing=False).state == "down"
    assert cloud.compute.enable_service(service).disabled_reason is None
    assert [zone.name for zone in cloud.compute.availability_zones(details=True)] == ["nova"]


@pytest.fixture
def run(url: str, tmp_path: Path) -> Iterator[OpenStack]:
    made = OpenStack(url, tmp_path, "openstackclient", words=())
    yield made
    made.close()


def test_the_commands_for_flavors(run: OpenStack) -> None:
    made = run.read("flavor", "create", "gpu", "--ram", "512", "--vcpus", "1", "--disk", "1", "--property", "a:b=c")
    [listed] = run.read("flavor", "list", "--long")
    assert (listed["ID"], listed["Name"], listed["Properties"]) == (made["id"], "gpu", {"a:b": "c"})
    run("flavor", "set", "gpu", "--property", "trait:CUSTOM_X=required", "--description", "new")
    shown = run.read("flavor", "show", "gpu")
    assert (shown["properties"], shown["description"]) == ({"a:b": "c", "trait:CUSTOM_X": "required"}, "new")
    run("flavor", "unset", "gpu", "--property", "a:b")
    assert run.read("flavor", "show", made["id"])["properties"] == {"trait:CUSTOM_X": "required"}
    run("flavor", "delete", "gpu")
    assert run.read("flavor", "list") == []
    code, _, errors = run.try_("flavor", "show", "gpu")
    assert code != 0
    assert "No flavor with a name or ID of 'gpu' exists" in errors or "No Flavor found for gpu" in errors


def test_the_commands_for_images(run: OpenStack, tmp_path: Path) -> None:
    file = tmp_path / "disk.raw"
    file.write_bytes(DATA)
    made = run.read(
        "image", "create", "disk", "--file", str(file), "--disk-format", "raw", "--property", "trait:HW_X=required"
    )
    [listed] = run.read("image", "list")
    assert (listed["ID"], listed["Name"], listed["Status"]) == (made["id"], "disk", "active")
    run("image", "set", "disk", "--property", "trait:HW_Y=required", "--name", "renamed")
    shown = run.read("image", "show", "renamed")
    assert shown["properties"]["trait:HW_Y"] == "required"
    assert (shown["size"], shown["checksum"]) == (len(DATA), hashlib.md5(DATA).hexdigest())
    run("image", "unset", "renamed", "--property", "trait:HW_X")
    assert "trait:HW_X" not in run.read("image", "show", made["id"])["properties"]
    assert [one["Name"] for one in run.read("image", "list", "--sort", "name:desc")] == ["renamed"]
    for words, reason in [
        (("set", "renamed", "--tag", "a"), "images have no tags"),
        (("unset", "renamed", "--tag", "a"), "Failed to unset 1 of 1 tags"),
        (("list", "--tag", "a"), 'Unknown argument: "tag"'),
    ]:
        code, _, errors = run.try_("image", *words)
        assert code != 0
        assert reason in errors
    run("image", "save", "renamed", "--file", str(tmp_path / "saved"))
    assert (tmp_path / "saved").read_bytes() == DATA
    run("image", "delete", "renamed")
    assert run.read("image", "list") == []


def test_the_commands_for_servers(world: World, run: OpenStack) -> None:
    world.add_host()
    world.add_flavor("small")
    world.add_image("cirros")
    other = world.add_image("other")
    create = ("server", "create", "vm1", "--flavor", "small", "--image", "cirros", "--nic", "none", "--tag", "blue")
    made = run.read(*create, "--wait", "--host", HOST)
    assert (made["name"], made["status"], made["OS-EXT-SRV-ATTR:host"]) == ("vm1", "ACTIVE", HOST)
    assert made["tags"] == ["blue"]
    for arguments in ([], ["--long"], ["--all-projects"], ["--host", HOST], ["--name", "vm1"], ["-n"]):
        [listed] = run.read("server", "list", *arguments)
        assert (listed["ID"], listed["Name"], listed["Status"]) == (made["id"], "vm1", "ACTIVE")
    assert run.read("server", "list", "--name", "vm2") == []
    for arguments in (["--status", "ERROR"], ["--deleted"]):
        assert run.read("server", "list", *arguments) == []
    run("server", "stop", "vm1")
    assert run.read("server", "show", "vm1")["status"] == "SHUTOFF"
    run("server", "start", "vm1")
    run("server", "reboot", "--hard", "vm1")
    run("server", "rebuild", "vm1", "--image", "other", "--wait")
    assert other in run.read("server", "show", made["id"])["image"]
    run("server", "set", "vm1", "--property", "use=test")
    assert run.read("server", "show", "vm1")["properties"] == {"use": "test"}
    run("server", "unset", "vm1", "--property", "use")
    for words, reason in [
        (("set", "vm1", "--tag", "blue"), "404"),
        (("list", "--tags", "blue"), 'Unknown argument: "tags". Possible: all_tenants, deleted, host,'),
    ]:
        code, _, errors = run.try_("server", *words)
        assert code != 0
        assert reason in errors
    assert run.read("server", "migration", "list") == []
    assert run.read("server", "event", "list", "vm1") == []
    code, _, errors = run.try_("server", "resize", "vm1", "--flavor", "small")
    assert code != 0
    assert "does not implement" in errors
    run("server", "delete", "vm1", "--wait")
    assert run.read("server", "list") == []


def test_a_server_that_finds_no_host_shows_its_fault(world: World, run: OpenStack) -> None:
    world.add_flavor("small")
    world.add_image("cirros")
    made = run.read("server", "create", "vm1", "--flavor", "small", "--image", "cirros", "--nic", "none")
    assert made["status"] == "ERROR"
    assert made["fault"]["message"].startswith("No valid host was found.")
    run("server", "delete", "vm1", "--force")
    assert run.read("server", "list") == []


def test_a_request_that_nothing_can_satisfy_is_told_at_once(world: World, run: OpenStack) -> None:
    world.add_flavor("small")
    world.add_image("cirros", **{"trait:CUSTOM_TYPO": "required"})
    code, _, errors = run.try_("server", "create", "vm1", "--flavor", "small", "--image", "cirros", "--nic", "none")
    assert code != 0
    assert "CUSTOM_TYPO" in errors


def test_several_servers_of_one_request_are_all_made(world: World, run: OpenStack) -> None:
    world.add_host()
    world.add_flavor("small")
    world.add_image("cirros")
    run("server", "create", "vm", "--flavor", "small", "--image", "cirros", "--nic", "none", "--max", "3")
    listed = run.read("server", "list")
    assert {one["Name"] for one in listed} == {"vm-1", "vm-2", "vm-3"}
    assert {one["Status"] for one in listed} == {"ACTIVE"}


def test_the_commands_for_hosts(world: World, run: OpenStack) -> None:
    world.add_host()
    [listed] = run.read("compute", "service", "list")
    assert (listed["Binary"], listed["Host"], listed["State"]) == ("nova-compute", HOST, "up")
    run("compute", "service", "set", "--disable", "--disable-reason", "repair", HOST, "nova-compute")
    [listed] = run.read("compute", "service", "list", "--long")
    assert (listed["Status"], listed["Disabled Reason"]) == ("disabled", "repair")
    run("compute", "service", "set", "--enable", HOST, "nova-compute")
    run("compute", "service", "set", "--down", HOST, "nova-compute")
    [listed] = run.read("hypervisor", "list")
    assert (listed["Hypervisor Hostname"], listed["State"]) == (HOST, "down")
    assert run.read("hypervisor", "list", "--long")[0]["Hypervisor Hostname"] == HOST
    assert run.read("hypervisor", "show", HOST)["hypervisor_hostname"] == HOST
    [zone] = run.read("availability", "zone", "list", "--compute")
    assert zone["Zone Name"] == "nova"


def test_an_administrator_sees_what_a_server_has_of_its_host(world: World) -> None:
    device = world.add_device()
    world.add_host()
    server = world.add_server()
    world.add_profile()
    assert world.bind(world.add_arq(), device, server).status_code == 202
    [seen] = world.compute("GET", f"/servers/{server}").json["server"]["autoclave:hostdevs"]
    assert (seen["address"], seen["rp_uuid"], seen["managed"]) == (
        device.pci_address,
        world.provider(device).rp_uuid,
        True,
    )
    project = "someone:admin:member"
    assert "autoclave:hostdevs" not in world.compute("GET", f"/servers/{server}", token=project).json["server"]
