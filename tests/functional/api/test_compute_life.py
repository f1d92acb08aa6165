"""A server's life with the unmodified ``openstack`` command: real conductor, real agent, a simulated host."""

import time
from collections.abc import Iterator
from typing import Any

import openstack
import pytest
import requests
from openstack_command import OpenStack

from autoclave.services.up import AllInOne

pytestmark = pytest.mark.thorough

HOST = "sim-1"


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AllInOne]:
    made = AllInOne([], tmp_path_factory.mktemp("up"), ("127.0.0.1", 0), 1)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def run(everything: AllInOne, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenStack]:
    made = OpenStack(everything.url, tmp_path_factory.mktemp("home"), "openstackclient", words=())
    yield made
    made.close()


def until(answer: Any, what: str, seconds: float = 60) -> Any:
    """What *answer* gives as soon as it is anything."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := answer():
            return found
        time.sleep(0.1)
    raise AssertionError(f"waited {seconds} s in vain: {what}")


@pytest.fixture(scope="module")
def ready(everything: AllInOne, run: OpenStack, tmp_path_factory: pytest.TempPathFactory) -> OpenStack:
    """With a flavor, two images, and a host that is up."""
    file = tmp_path_factory.mktemp("images") / "disk.raw"
    file.write_bytes(b"a disk" * 1000)
    for image in ("cirros", "newer"):
        run("image", "create", image, "--file", str(file), "--disk-format", "raw")
    run("flavor", "create", "small", "--ram", "64", "--vcpus", "1", "--disk", "1")
    until(lambda: [one for one in run.read("compute", "service", "list") if one["State"] == "up"], "the host is up")
    return run


def status(run: OpenStack, server: str) -> str:
    return str(run.read("server", "show", server)["status"])


def test_the_openstack_command_drives_a_servers_whole_life(ready: OpenStack) -> None:
    run = ready
    made = run.read("server", "create", "vm1", "--flavor", "small", "--image", "cirros", "--nic", "none", "--wait")
    assert (made["status"], made["OS-EXT-SRV-ATTR:host"]) == ("ACTIVE", HOST)
    assert [one["Name"] for one in run.read("server", "list", "--host", HOST, "--all-projects")] == ["vm1"]
    run("server", "stop", "vm1")
    until(lambda: status(run, "vm1") == "SHUTOFF", "it stops")
    run("server", "start", "vm1")
    until(lambda: status(run, "vm1") == "ACTIVE", "it starts")
    run("server", "reboot", "vm1", "--wait")
    for image in ("newer", "cirros"):
        run("server", "rebuild", "vm1", "--image", image, "--wait")
        until(lambda: status(run, "vm1") == "ACTIVE", "it is rebuilt")
        assert image in run.read("server", "show", "vm1")["image"]
    run("server", "delete", "vm1", "--wait")
    assert run.read("server", "list") == []


def test_a_server_that_no_host_can_have_says_why(ready: OpenStack) -> None:
    run = ready
    run("flavor", "create", "huge", "--ram", "64", "--vcpus", "100000", "--disk", "1")
    run("server", "create", "vm2", "--flavor", "huge", "--image", "cirros", "--nic", "none")
    until(lambda: status(run, "vm2") == "ERROR", "it fails")
    assert "No valid host was found" in run.read("server", "show", "vm2")["fault"]["message"]
    run("server", "delete", "vm2", "--wait")


def test_what_excludes_each_other_or_does_not_exist_is_told_at_once(ready: OpenStack) -> None:
    run = ready
    create = ("server", "create", "vm3", "--image", "cirros", "--nic", "none", "--flavor")
    run(
        "flavor", "create", "typo", "--ram", "64", "--vcpus", "1", "--disk", "1", "--property", "trait:HW_TYPO=required"
    )
    run(
        "flavor",
        "create",
        "nobody",
        "--ram",
        "64",
        "--vcpus",
        "1",
        "--disk",
        "1",
        "--property",
        "accel:device_profile=no",
    )
    for flavor, named in (("typo", "HW_TYPO"), ("nobody", "'no'")):
        code, _, errors = run.try_(*create, flavor)
        assert code != 0
        assert named in errors
    assert run.read("server", "list") == []


def test_a_drive_goes_to_a_server_and_an_administrator_sees_which(everything: AllInOne, ready: OpenStack) -> None:
    run, url = ready, everything.url
    accelerator = openstack.connection.Connection(
        auth_type="none", endpoint=url, accelerator_endpoint_override=f"{url}/accelerator/v2"
    ).accelerator
    drive = until(lambda: list(accelerator.devices()), "a drive is found")[0]
    attributes = {one.key: one.value for one in accelerator.attributes()}
    accelerator.create_device_profile(name="scratch", groups=[{f"resources:{attributes['rc']}": "1"}])
    run("flavor", "create", "with-drive", "--ram", "64", "--vcpus", "1", "--disk", "1")
    run("flavor", "set", "with-drive", "--property", "accel:device_profile=scratch")
    made = run.read("server", "create", "vm4", "--flavor", "with-drive", "--image", "cirros", "--nic", "none", "--wait")
    assert made["status"] == "ACTIVE", made.get("fault")
    shown = requests.get(f"{url}/compute/v2.1/servers/{made['id']}", timeout=30).json()["server"]
    [hostdev] = shown["autoclave:hostdevs"]
    assert hostdev["resource_class"] == attributes["rc"]
    [arq] = accelerator.accelerator_requests()
    assert (arq.state, arq.instance_uuid, hostdev["arq_uuid"]) == ("Bound", made["id"], arq.uuid)
    run("server", "delete", "vm4", "--wait")
    assert list(accelerator.accelerator_requests()) == []
    assert accelerator.get_device(drive.uuid) is not None
