"""An instance with a device of one time use, over HTTP and the services of ``autoclave up``, on a simulated host."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from test_up import running

GPU = "0000:81:00.0"
PATIENCE = 60.0


class Cloud:
    """A client."""

    def __init__(self, url: str) -> None:
        self.url = url

    def ask(self, method: str, path: str, body: Any = None) -> Any:
        service = path.split("/")[1]
        version = {"placement": "placement 1.39", "compute": "compute 2.37"}.get(service)
        sent = {"X-Auth-Token": "admin", **({"OpenStack-API-Version": version} if version else {})}
        answer = requests.request(method, self.url + path, json=body, headers=sent, timeout=30)
        assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json() if answer.content else None

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"waited in vain until {what}"
            time.sleep(0.05)

    def inventory(self) -> dict[str, int]:
        """Of the graphics card's provider."""
        found = self.ask("GET", "/placement/resource_providers")["resource_providers"]
        [uuid] = [each["uuid"] for each in found if each["name"].endswith(f"_{GPU}")]
        path = f"/placement/resource_providers/{uuid}"
        [record] = self.ask("GET", f"{path}/inventories")["inventories"].values()
        [used] = self.ask("GET", f"{path}/usages")["usages"].values()
        return {"total": record["total"], "reserved": record["reserved"], "used": used}

    def create(self, flavor: str, image: str) -> str:
        server = {"name": "vm", "flavorRef": flavor, "imageRef": image, "networks": "none"}
        return str(self.ask("POST", "/compute/v2.1/servers", {"server": server})["server"]["id"])

    def status(self, server: str) -> str | None:
        found = self.ask("GET", "/compute/v2.1/servers/detail")["servers"]
        return next((each["status"] for each in found if each["id"] == server), None)


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Cloud]:
    config = tmp_path / "autoclave.conf"
    config.write_text(
        '[pci]\ndevice_spec = {"vendor_id": "10de", "product_id": "25b6", "one_time_use": true}\n'
        'alias = {"name": "gpu", "vendor_id": "10de", "product_id": "25b6"}\n'
        "[compute]\nprovider_config_location =\n"
    )
    with running(tmp_path / "data", 1, config) as everything:
        yield Cloud(everything.url)


def test_a_device_serves_one_instance_until_the_operator_has_released_it(cloud: Cloud) -> None:
    flavor = {"name": "gpu", "vcpus": 2, "ram": 512, "disk": 1}
    flavor_id = cloud.ask("POST", "/compute/v2.1/flavors", {"flavor": flavor})["flavor"]["id"]
    cloud.ask(
        "POST",
        f"/compute/v2.1/flavors/{flavor_id}/os-extra_specs",
        {"extra_specs": {"pci_passthrough:alias": "gpu:1"}},
    )
    image = {"name": "linux", "disk_format": "raw", "container_format": "bare"}
    image_id = cloud.ask("POST", "/image/v2/images", image)["id"]
    headers = {"X-Auth-Token": "admin", "Content-Type": "application/octet-stream"}
    put = requests.put(f"{cloud.url}/image/v2/images/{image_id}/file", data=b"\0" * 512, headers=headers, timeout=30)
    assert put.ok, put.text

    first = cloud.create(flavor_id, image_id)
    cloud.wait(lambda: cloud.status(first) == "ACTIVE", "the instance runs")
    assert cloud.inventory() == {"total": 1, "reserved": 1, "used": 1}
    cloud.ask("DELETE", f"/compute/v2.1/servers/{first}")
    cloud.wait(lambda: cloud.status(first) is None, "the instance is gone")
    assert cloud.inventory() == {"total": 1, "reserved": 1, "used": 0}

    second = cloud.create(flavor_id, image_id)
    cloud.wait(lambda: cloud.status(second) == "ERROR", "there is no host for another")
    [burned] = cloud.ask("GET", "/autoclave/v1/burned")["burned"]
    cloud.ask("POST", f"/autoclave/v1/burned/{burned['rp_uuid']}/release", {})
    third = cloud.create(flavor_id, image_id)
    cloud.wait(lambda: cloud.status(third) == "ACTIVE", "it serves again")
