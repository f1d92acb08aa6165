"""OpenStack's own clients, unmodified, against the service over HTTP: every method, and every command."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openstack
import pytest
from api_world import REMOVE_OPS, World, new_uuid
from openstack import exceptions
from openstack_command import PATHS, OpenStack

from autoclave.db.tables import DeviceStatus
from autoclave.testing.placement import faults as effects

pytestmark = pytest.mark.thorough

GROUPS = [{"resources:CUSTOM_NVME_144D_A808": "1", "trait:HW_NVME_CES": "required"}]


def accelerator_of(endpoint: str) -> Any:
    cloud = openstack.connection.Connection(auth_type="none", endpoint=endpoint, accelerator_endpoint_override=endpoint)
    return cloud.accelerator


@pytest.mark.parametrize("mount", ["", "/accelerator"])
@pytest.mark.parametrize("version", ["/v2", ""])
def test_openstacksdk_drives_a_drives_trip(world: World, url: str, mount: str, version: str) -> None:
    device = world.add_device()
    accelerator = accelerator_of(f"{url}{mount}{version}")
    [found] = accelerator.devices()
    assert (found.uuid, found.hostname, found.type) == (device.uuid, device.hostname, "NVME")
    assert accelerator.get_device(device.uuid).model == "a808"
    [deployable] = accelerator.deployables()
    assert accelerator.get_deployable(deployable.id).name == deployable.name

    profile = accelerator.create_device_profile(name="scratch", groups=GROUPS)
    assert accelerator.get_device_profile(profile.uuid).groups == GROUPS
    assert [one.name for one in accelerator.device_profiles()] == ["scratch"]

    arq = accelerator.create_accelerator_request(device_profile_name="scratch")
    assert arq.state == "Initial"
    accelerator.update_accelerator_request(arq.uuid, world.add_ops(device, new_uuid()))
    bound = accelerator.get_accelerator_request(arq.uuid)
    assert (bound.state, bound.attach_handle_type) == ("Bound", "PCI")
    with pytest.raises(exceptions.ConflictException):
        accelerator.delete_device_profile(profile.uuid, ignore_missing=False)
    accelerator.delete_accelerator_request(arq.uuid, ignore_missing=False)
    assert list(accelerator.accelerator_requests()) == []
    accelerator.delete_device_profile(profile.uuid, ignore_missing=False)
    with pytest.raises(exceptions.NotFoundException):
        accelerator.get_device_profile(profile.uuid)
    assert [asked.uuid for asked in world.agent.asked] == [device.uuid]


def test_openstacksdk_sees_whether_libvirt_manages(world: World, url: str) -> None:
    """The SDK shows a handle's ``managed`` from microversion 2.4 on, and no such key below."""
    world.add_profile()
    for version, managed, bus in (("2.4", True, "01"), ("2.3", None, "02")):
        device = world.add_device(f"0000:{bus}:00.0")
        cloud = openstack.connection.Connection(
            auth_type="none",
            endpoint=url,
            accelerator_endpoint_override=f"{url}/v2",
            accelerator_default_microversion=version,
        )
        arq = cloud.accelerator.create_accelerator_request(device_profile_name="one-drive")
        cloud.accelerator.patch_accelerator_request(arq.uuid, world.add_ops(device, new_uuid()))
        info = cloud.accelerator.get_accelerator_request(arq.uuid).attach_handle_info
        assert info.get("managed") is managed
        assert info["bus"] == bus


def test_openstacksdk_disables_and_enables_a_device(world: World, url: str) -> None:
    device = world.add_device()
    accelerator = accelerator_of(f"{url}/accelerator/v2")
    assert accelerator.disable_device(device.uuid).id == device.uuid
    assert (world.device(device.uuid).status, world.reserved(device)) == (DeviceStatus.MAINTAINING, 1)
    accelerator.enable_device(accelerator.get_device(device.uuid))
    assert (world.device(device.uuid).status, world.reserved(device)) == (DeviceStatus.ENABLED, 0)


def test_openstacksdk_reads_adds_and_deletes_attributes(world: World, url: str) -> None:
    deployable = world.provider(world.add_device())
    accelerator = accelerator_of(f"{url}/v2")
    assert [one.key for one in accelerator.attributes()] == ["rc", "trait0"]
    made = accelerator.create_attribute(deployable_id=deployable.id, key="rack", value="A7")
    assert (made.deployable_id, made.key, made.value) == (deployable.id, "rack", "A7")
    assert accelerator.get_attribute(made.uuid).value == "A7"
    accelerator.delete_attribute(made.uuid, ignore_missing=False)
    with pytest.raises(exceptions.NotFoundException):
        accelerator.get_attribute(made.uuid)


def test_openstacksdk_pages_through_lists(world: World, url: str) -> None:
    uuids = [world.add_device(f"0000:0{slot}:00.0").uuid for slot in (1, 2, 3)]
    accelerator = accelerator_of(f"{url}/v2")
    assert [one.uuid for one in accelerator.devices(limit=2)] == uuids
    assert [one.uuid for one in accelerator.devices(limit=2, paginated=False)] == uuids[:2]
    assert [one.uuid for one in accelerator.devices(limit=2, marker=uuids[1])] == uuids[2:]
    assert [one.uuid for one in accelerator.devices(type="GPU")] == []


def test_openstacksdk_unbinds_what_it_bound(world: World, url: str) -> None:
    device = world.add_device()
    world.add_profile()
    accelerator = accelerator_of(f"{url}/v2")
    arq = accelerator.create_accelerator_request(device_profile_name="one-drive")
    accelerator.patch_accelerator_request(arq.uuid, world.add_ops(device, new_uuid()))
    assert accelerator.get_accelerator_request(arq.uuid).state == "Bound"
    accelerator.patch_accelerator_request(arq.uuid, REMOVE_OPS)
    assert accelerator.get_accelerator_request(arq.uuid).state == "Unbound"


def test_openstacksdk_reads_what_is_wrong_out_of_the_body(world: World, url: str) -> None:
    with pytest.raises(exceptions.NotFoundException, match="Device not found with uuid=nobody"):
        accelerator_of(f"{url}/v2").get_device("nobody")


def neighbours(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """Nova and Glance, which have every server and every image."""
    name = environ["PATH_INFO"].rpartition("/")[2]
    root = f"http://{environ['HTTP_HOST']}{environ['SCRIPT_NAME']}"
    version = {"id": "v2.1", "status": "CURRENT", "version": "2.90", "min_version": "2.1"}
    document = {
        "version": {**version, "links": [{"rel": "self", "href": root}]},
        "server": {"id": name, "name": name},
        "id": name,
    }
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps(document).encode()]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, mounts={"/compute": neighbours, "/image": neighbours})
    yield made
    made.close()


@pytest.fixture(params=["cyborgclient", "openstackclient"])
def run(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Iterator[OpenStack]:
    made = OpenStack(url, tmp_path, request.param, paths={**PATHS, "compute": "compute", "image": "image"})
    yield made
    made.close()


def test_the_commands_for_devices_and_deployables(world: World, run: OpenStack) -> None:
    device = world.add_device()
    provider = world.provider(device)
    [listed] = run.read("device", "list")
    assert (listed["uuid"], listed["hostname"]) == (device.uuid, device.hostname)
    [listed] = run.read("device", "list", "--long")
    assert (listed["model"], listed["status"]) == ("a808", "enabled")
    assert run.read("device", "show", device.uuid)["type"] == "NVME"
    [listed] = run.read("deployable", "list", "--long")
    assert (listed["uuid"], listed["name"], listed["device_id"]) == (provider.uuid, provider.name, device.id)
    assert run.read("deployable", "show", provider.uuid)["name"] == provider.name
    code, _, errors = run.try_("device", "show", new_uuid())
    assert code != 0
    assert "not found" in errors


def test_the_commands_for_attributes(world: World, run: OpenStack) -> None:
    provider = world.provider(world.add_device())
    # By uuid: none of the clients shows the id that Cyborg demands.
    made = run.read("device", "attribute", "create", provider.uuid, "rack", "A7")
    assert (made["deployable_id"], made["key"], made["value"]) == (provider.id, "rack", "A7")
    assert [one["key"] for one in run.read("device", "attribute", "list")] == ["rc", "trait0", "rack"]
    assert "created_at" in run.read("device", "attribute", "list", "--long")[0]
    assert run.read("device", "attribute", "show", made["uuid"]) == made
    run("device", "attribute", "delete", made["uuid"])
    code, _, errors = run.try_("device", "attribute", "delete", made["uuid"])
    assert code != 0
    assert made["uuid"] in errors
    code, _, errors = run.try_("device", "attribute", "create", provider.uuid, "trait9", "CUSTOM_FAST")
    assert code != 0
    assert "discovery" in errors


def test_the_commands_for_profiles_and_requests(world: World, run: OpenStack) -> None:
    device, instance = world.add_device(), new_uuid()
    profile = run.read("device", "profile", "create", "scratch", json.dumps(GROUPS), "--description", "one drive")
    assert [one["name"] for one in run.read("device", "profile", "list")] == ["scratch"]
    assert run.read("device", "profile", "list", "--long")[0]["description"] == "one drive"
    for name in (profile["uuid"], "scratch"):
        assert run.read("device", "profile", "show", name)["uuid"] == profile["uuid"]

    arq = run.read("arq", "create", "scratch")
    assert arq["state"] == "Initial"
    assert [one["uuid"] for one in run.read("arq", "list")] == [arq["uuid"]]
    words = [arq["uuid"], device.hostname, instance, world.provider(device).rp_uuid]
    if run.package == "cyborgclient":
        words.append("blue")  # a project, which it demands and does not send
    bound = run.read("arq", "bind", *words)
    assert (bound["state"], bound["instance_uuid"], bound["attach_handle_type"]) == ("Bound", instance, "PCI")
    assert run.read("arq", "list", "--long")[0]["hostname"] == device.hostname
    assert run.read("arq", "unbind", arq["uuid"])["state"] == "Unbound"
    assert run.read("arq", "show", arq["uuid"])["instance_uuid"] is None
    run("arq", "delete", arq["uuid"])
    assert run.read("arq", "list") == []
    run("device", "profile", "delete", "scratch")
    assert run.read("device", "profile", "list") == []


def test_the_commands_that_disable_and_enable_a_device(world: World, run: OpenStack) -> None:
    device = world.add_device()
    run("device", "disable", device.uuid)
    assert run.read("device", "show", device.uuid)["status"] == "maintaining"
    assert world.reserved(device) == 1
    run("device", "enable", device.uuid)
    assert run.read("device", "show", device.uuid)["status"] == "enabled"
    assert world.reserved(device) == 0


def test_a_placement_that_is_away_is_no_failure_to_the_commands(world: World, run: OpenStack) -> None:
    device = world.add_device()
    world.placement.add(effects.refuse)
    run("device", "disable", device.uuid)
    assert world.device(device.uuid).status is DeviceStatus.MAINTAINING


def test_the_command_that_programs_fails_before_it_is_understood(world: World, run: OpenStack) -> None:
    """As the documentation says: openstacksdk asks at a path that there is not, or calls itself without end."""
    provider = world.provider(world.add_device())
    code, _, errors = run.try_("deployable", "program", provider.uuid, new_uuid())
    assert code != 0
    assert {"openstackclient": "does not exist", "cyborgclient": "recursion"}[run.package] in errors
