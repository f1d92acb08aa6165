"""OpenStack's own clients, unmodified, against the service over HTTP."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import openstack
import pytest
from api_world import World, new_uuid
from openstack import exceptions

from autoclave.db.tables import DeviceStatus
from autoclave.placement import faults as effects

GROUPS = [{"resources:CUSTOM_NVME_144D_A808": "1", "trait:HW_NVME_CES": "required"}]


@pytest.mark.parametrize("mount", ["", "/accelerator"])
@pytest.mark.parametrize("version", ["/v2", ""])
def test_openstacksdk_drives_a_drives_trip(world: World, url: str, mount: str, version: str) -> None:
    device = world.add_device()
    cloud = openstack.connection.Connection(
        auth_type="none", endpoint=url, accelerator_endpoint_override=f"{url}{mount}{version}"
    )
    accelerator = cloud.accelerator
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


def test_openstacksdk_disables_and_enables_a_device(world: World, url: str) -> None:
    device = world.add_device()
    accelerator = openstack.connection.Connection(
        auth_type="none", endpoint=url, accelerator_endpoint_override=f"{url}/accelerator/v2"
    ).accelerator
    assert accelerator.disable_device(device.uuid).id == device.uuid
    assert (world.device(device.uuid).status, world.reserved(device)) == (DeviceStatus.MAINTAINING, 1)
    accelerator.enable_device(accelerator.get_device(device.uuid))
    assert (world.device(device.uuid).status, world.reserved(device)) == (DeviceStatus.ENABLED, 0)


class OpenStack:
    """``openstack accelerator …`` as an operator's shell runs it."""

    def __init__(self, url: str, directory: Path) -> None:
        override = {
            f"{service}_endpoint_override": f"{url}/{path}"
            for service, path in {"accelerator": "accelerator/v2", "identity": "identity/v3"}.items()
        }
        cloud = {
            "auth_type": "admin_token",
            "auth": {"endpoint": f"{url}/placement", "token": "secret"},
            "accelerator_default_microversion": "2.5",
            **override,
        }
        file = directory / "clouds.yaml"
        file.write_text(json.dumps({"clouds": {"autoclave": cloud}}))
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(directory),
            "OS_CLIENT_CONFIG_FILE": str(file),
            "OS_CLOUD": "autoclave",
        }

    def __call__(self, *words: str) -> str:
        command = [str(Path(sys.executable).parent / "openstack"), "accelerator", *words]
        done = subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def read(self, *words: str) -> Any:
        return json.loads(self(*words, "-f", "json"))


def test_openstackclient_lists_makes_shows_and_deletes(world: World, url: str, tmp_path: Path) -> None:
    device = world.add_device()
    run = OpenStack(url, tmp_path)
    [listed] = run.read("device", "list")
    assert (listed["uuid"], listed["hostname"]) == (device.uuid, device.hostname)

    profile = run.read("device", "profile", "create", "scratch", json.dumps(GROUPS))
    assert [one["name"] for one in run.read("device", "profile", "list")] == ["scratch"]
    assert run.read("device", "profile", "show", profile["uuid"])["name"] == "scratch"

    arq = run.read("arq", "create", "scratch")
    assert arq["state"] == "Initial"
    assert [one["uuid"] for one in run.read("arq", "list")] == [arq["uuid"]]
    world.bind(arq["uuid"], device, new_uuid())  # the command also asks Nova and Placement for names
    assert run.read("arq", "show", arq["uuid"])["attach_handle_type"] == "PCI"
    run("arq", "delete", arq["uuid"])
    assert run.read("arq", "list") == []
    run("device", "profile", "delete", "scratch")
    assert run.read("device", "profile", "list") == []


def test_openstackclient_disables_and_enables_a_device(world: World, url: str, tmp_path: Path) -> None:
    device = world.add_device()
    run = OpenStack(url, tmp_path)
    run("device", "disable", device.uuid)
    assert run.read("device", "show", device.uuid)["status"] == "maintaining"
    assert world.reserved(device) == 1
    run("device", "enable", device.uuid)
    assert run.read("device", "show", device.uuid)["status"] == "enabled"
    assert world.reserved(device) == 0


def test_a_placement_that_is_away_is_no_failure_to_openstackclient(world: World, url: str, tmp_path: Path) -> None:
    device = world.add_device()
    world.placement.add(effects.refuse)
    OpenStack(url, tmp_path)("device", "disable", device.uuid)
    assert world.device(device.uuid).status is DeviceStatus.MAINTAINING
