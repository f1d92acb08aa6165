"""Instances with a drive of a device profile, or with what provider config adds, over HTTP and the services of
``autoclave up``, on a simulated host.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from test_up import running
from test_up_instances import Cloud

SAMPLE = Path(__file__).parents[2] / "docs" / "source" / "examples" / "provider-config.yaml"
ABSENT = "COMPUTE_SECURITY_UEFI_SECURE_BOOT"
"""A trait that Placement knows and no simulated host has."""


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    config = tmp_path / "autoclave.conf"
    config.write_text("[compute]\nprovider_config_location =\n")
    with running(tmp_path / "data", 1, config) as everything:
        yield Cloud(everything.url)


def image(cloud: Cloud, name: str, **properties: str) -> str:
    """An image with data; a key of *properties* is written with ``__`` for the colon."""
    body = {"name": name, "disk_format": "raw", "container_format": "bare"}
    made = cloud.ask(
        "POST", "/image/v2/images", {**body, **{key.replace("__", ":"): each for key, each in properties.items()}}
    )
    headers = {"X-Auth-Token": "admin", "Content-Type": "application/octet-stream"}
    put = requests.put(f"{cloud.url}/image/v2/images/{made['id']}/file", data=b"\0" * 512, headers=headers, timeout=30)
    assert put.ok, put.text
    return str(made["id"])


def flavor(cloud: Cloud, name: str, **extra_specs: str) -> str:
    made = cloud.ask("POST", "/compute/v2.1/flavors", {"flavor": {"name": name, "vcpus": 1, "ram": 256, "disk": 1}})
    specs = {key.replace("__", ":"): each for key, each in extra_specs.items()}
    if specs:
        cloud.ask("POST", f"/compute/v2.1/flavors/{made['flavor']['id']}/os-extra_specs", {"extra_specs": specs})
    return str(made["flavor"]["id"])


def server(cloud: Cloud, uuid: str) -> Any:
    return cloud.ask("GET", f"/compute/v2.1/servers/{uuid}")["server"]


def refused(cloud: Cloud, flavor_id: str, image_id: str) -> str:
    """What a user is told whose server is not even begun."""
    body = {"server": {"name": "vm", "flavorRef": flavor_id, "imageRef": image_id, "networks": "none"}}
    headers = {"X-Auth-Token": "admin", "OpenStack-API-Version": "compute 2.37"}
    answer = requests.post(f"{cloud.url}/compute/v2.1/servers", json=body, headers=headers, timeout=30)
    assert answer.status_code == 400, answer.text
    return str(answer.json()["badRequest"]["message"])


def drives(cloud: Cloud) -> list[dict[str, Any]]:
    return list(cloud.ask("GET", "/autoclave/v1/devices")["devices"])


def test_a_drive_of_a_profile_goes_to_an_instance_stays_through_a_rebuild_and_is_cleaned(cloud: Cloud) -> None:
    cloud.wait(lambda: any(each["device_state"] == "available" for each in drives(cloud)), "drives are offered")
    [drive, *_] = [each for each in drives(cloud) if each["device_state"] == "available"]
    group = {f"resources:{drive['resource_class']}": "1"}
    cloud.ask("POST", "/accelerator/v2/device_profiles", [{"name": "fast", "groups": [group]}])
    flavor_id, linux = flavor(cloud, "fast", accel__device_profile="fast"), image(cloud, "linux")

    vm = cloud.create(flavor_id, linux)
    cloud.wait(lambda: cloud.status(vm) in ("ACTIVE", "ERROR"), "the instance is built")
    assert cloud.status(vm) == "ACTIVE", server(cloud, vm)
    [arq] = cloud.ask("GET", f"/accelerator/v2/accelerator_requests?instance={vm}")["arqs"]
    assert arq["state"] == "Bound"

    strict = image(cloud, "strict", **{f"trait__{ABSENT}": "required"})
    cloud.ask("POST", f"/compute/v2.1/servers/{vm}/action", {"rebuild": {"imageRef": strict}})
    cloud.wait(lambda: "fault" in server(cloud, vm), "the rebuild is refused")
    found = server(cloud, vm)
    assert ABSENT in found["fault"]["message"]
    assert (found["status"], found["image"]["id"]) == ("ACTIVE", linux)

    other = image(cloud, "other")
    cloud.ask("POST", f"/compute/v2.1/servers/{vm}/action", {"rebuild": {"imageRef": other}})
    cloud.wait(lambda: server(cloud, vm)["image"]["id"] == other, "it is rebuilt")
    cloud.wait(lambda: cloud.status(vm) == "ACTIVE", "it runs again")
    assert "fault" not in server(cloud, vm)
    assert cloud.ask("GET", f"/accelerator/v2/accelerator_requests?instance={vm}")["arqs"] == [arq]

    cloud.ask("DELETE", f"/compute/v2.1/servers/{vm}")
    cloud.wait(lambda: cloud.status(vm) is None, "it is gone")
    assert cloud.ask("GET", "/accelerator/v2/accelerator_requests")["arqs"] == []
    cloud.wait(lambda: {each["device_state"] for each in drives(cloud)} == {"available"}, "the drive is clean")


def test_what_cannot_be_had_is_told_as_such_when_it_is_asked_for(cloud: Cloud) -> None:
    plain, linux = flavor(cloud, "plain"), image(cloud, "linux")
    forbidding = flavor(cloud, "forbidding", **{f"trait__{ABSENT}": "forbidden"})
    strict = image(cloud, "strict", **{f"trait__{ABSENT}": "required"})
    assert "CUSTOM_NEVER_MADE" in refused(cloud, plain, image(cloud, "odd", trait__CUSTOM_NEVER_MADE="required"))
    assert "forbids what the image requires" in refused(cloud, forbidding, strict)
    assert "no PCI alias 'tpu'" in refused(cloud, flavor(cloud, "tpu", pci_passthrough__alias="tpu"), linux)
    assert "device profile 'x' does not exist" in refused(cloud, flavor(cloud, "x", accel__device_profile="x"), linux)

    vm = cloud.create(plain, strict)
    cloud.wait(lambda: cloud.status(vm) == "ERROR", "there is no host")
    assert server(cloud, vm)["fault"]["message"].startswith("No valid host was found.")
    told = cloud.ask("GET", "/autoclave/v1/explain?flavor=plain&image=strict")
    [host] = told["hosts"]
    assert ABSENT in host["why_not"][0]
    cloud.ask("DELETE", f"/compute/v2.1/servers/{vm}")
    cloud.wait(lambda: cloud.status(vm) is None, "it is gone")


def test_what_the_sample_of_provider_config_adds_is_scheduled_until_it_is_used_up(tmp_path: Path) -> None:
    directory = tmp_path / "provider_config"
    directory.mkdir(mode=0o755)
    (directory / SAMPLE.name).write_bytes(SAMPLE.read_bytes())
    (directory / SAMPLE.name).chmod(0o644)
    config = tmp_path / "autoclave.conf"
    config.write_text(f"[compute]\nprovider_config_location = {directory}\n")
    with running(tmp_path / "data", 1, config) as everything:
        cloud = Cloud(everything.url)
        offered = "/placement/allocation_candidates?resources=CUSTOM_LLC:11&required=CUSTOM_P_STATE_ENABLED"
        known = "/placement/resource_classes"
        cloud.wait(lambda: "CUSTOM_LLC" in str(cloud.ask("GET", known)), "the class is known")
        cloud.wait(lambda: bool(cloud.ask("GET", offered)["allocation_requests"]), "it is offered")
        cached = flavor(cloud, "cached", resources__CUSTOM_LLC="11")
        tuned = image(cloud, "tuned", trait__CUSTOM_P_STATE_ENABLED="required")
        first = cloud.create(cached, tuned)
        cloud.wait(lambda: cloud.status(first) in ("ACTIVE", "ERROR"), "the instance is built")
        assert cloud.status(first) == "ACTIVE", server(cloud, first)
        second = cloud.create(cached, tuned)  # 22 there are, of which 2 are reserved
        cloud.wait(lambda: cloud.status(second) in ("ACTIVE", "ERROR"), "the other one is not")
        assert server(cloud, second)["fault"]["message"].startswith("No valid host was found.")
