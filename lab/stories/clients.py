"""Autoclave as an operator runs it, and the real OpenStack clients that talk to it."""

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from functools import cached_property
from pathlib import Path
from typing import Any

from stories.facts import wait_for

BIN = Path(sys.prefix, "bin")
DATA_DIR = Path("/srv/host-disk/autoclave")
ENDPOINT = "127.0.0.1:6666"


class Service:
    """``autoclave up`` in the background.

    :param config: its configuration file.
    :param log: the file that gets what it says.
    :param user: the account that it runs as.
    """

    def __init__(self, config: Path, log: Path, user: str = "root") -> None:
        command = [BIN / "autoclave", "up", "--data-dir", DATA_DIR, "--config-file", config, "--bind", ENDPOINT]
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, user=user, group=user, extra_groups=[]
            )

    @property
    def uid(self) -> int:
        """The user that it really runs as."""
        return Path(f"/proc/{self._process.pid}").stat().st_uid

    @property
    def ended(self) -> bool:
        return self._process.poll() is not None

    def healthy(self) -> bool:
        """Whether it answers /healthcheck with 200, and knows its host."""
        try:
            with urllib.request.urlopen(f"http://{ENDPOINT}/healthcheck", timeout=10) as answer:
                return answer.status == 200 and not json.load(answer).get("hosts_not_yet_known")
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    def stop(self, seconds: float) -> int:
        """Ask it to end, as systemd does, and return its exit code.

        :raises subprocess.TimeoutExpired: it does not.
        """
        self._process.terminate()
        return self._process.wait(seconds)

    def kill(self) -> None:
        """End it by force."""
        self._process.kill()
        self._process.wait()


class Cloud:
    """The clients, told by the clouds.yaml that ``autoclave up`` wrote."""

    def __init__(self) -> None:
        os.environ["OS_CLIENT_CONFIG_FILE"] = str(DATA_DIR / "clouds.yaml")
        os.environ["OS_CLOUD"] = "autoclave"

    def openstack(self, *arguments: str) -> Any:
        """Run the ``openstack`` command, show it, and return its answer.

        :raises SystemExit: it failed.
        """
        return json.loads(self._openstack(*arguments, "-f", "json"))

    def tell(self, *arguments: str) -> None:
        """Likewise, with a command that answers nothing."""
        self._openstack(*arguments)

    def devices(self) -> dict[str, dict[str, Any]]:
        """All that the operator can see of the devices, by PCI address.

        An `openstack` command takes long in the lab: what is asked often goes through openstacksdk.
        """
        return {row["pci_address"]: row for row in self.operator("devices")["devices"]}

    def device(self, uuid: str) -> dict[str, Any]:
        """All that the operator can see of one device."""
        return self.operator(f"devices/{uuid}")

    def history(self, uuid: str) -> list[dict[str, Any]]:
        """What has happened to one device, oldest first."""
        return self.operator(f"devices/{uuid}/history")["events"]

    def operator(self, path: str) -> dict[str, Any]:
        """What the operator's API says, such as ``devices/<uuid>/history``."""
        return self._do("get", f"http://{ENDPOINT}/autoclave/v1/{path}").json()

    def clean(self, uuid: str) -> None:
        """Ask for a device to be cleaned, as `openstack accelerator device clean` does."""
        print(f"$ POST devices/{uuid}/clean", flush=True)
        self._do("post", f"/devices/{uuid}/clean", microversion="2.5")

    def refusal_to_clean(self, uuid: str) -> str:
        """Ask for a device to be cleaned, and return why that is refused; ``""`` if it is not."""
        print(f"$ POST devices/{uuid}/clean", flush=True)
        answer = self._sdk.accelerator.post(f"/devices/{uuid}/clean", microversion="2.5")
        return answer.text if answer.status_code == 409 else ""

    def make_profile(self, name: str, resource_class: str, trait: str | None = None) -> None:
        """Make a device profile that asks for one of *resource_class*, with *trait*."""
        group = {f"resources:{resource_class}": "1", **({f"trait:{trait}": "required"} if trait else {})}
        self._do("post", "/device_profiles", json=[{"name": name, "groups": [group]}])

    def claim(self, instance: str, provider: str, resource_class: str) -> None:
        """Claim one unit of a provider for an instance, as Nova's scheduler does."""
        allocations = {provider: {"resources": {resource_class: 1}}}
        body = {"allocations": allocations, "project_id": "lab", "user_id": "lab", "consumer_generation": None,
                "consumer_type": "INSTANCE"}  # fmt: skip
        answer = self._sdk.placement.put(f"/allocations/{instance}", json=body, microversion="1.38")
        if answer.status_code != 204:
            sys.exit(f"FAIL Placement does not give {provider} to {instance}: {answer.status_code} {answer.text}")

    def drop_claim(self, instance: str) -> None:
        """The instance is gone: so is what it claimed."""
        self._sdk.placement.delete(f"/allocations/{instance}").raise_for_status()

    def make_request(self, profile: str) -> str:
        """Make an accelerator request, and return its uuid."""
        answer = self._do("post", "/accelerator_requests", json={"device_profile_name": profile})
        return answer.json()["arqs"][0]["uuid"]

    def bind(self, request: str, **values: str) -> None:
        """Bind an accelerator request, as Nova does. `openstack accelerator arq bind` would ask Compute for the
        server first, and there is none in the lab."""
        patch = [{"op": "add", "path": f"/{field}", "value": value} for field, value in values.items()]
        print(f"$ PATCH accelerator_requests/{request} {patch}", flush=True)
        self._do("patch", "/accelerator_requests", json={request: patch})

    def request(self, uuid: str) -> dict[str, Any]:
        """One accelerator request, with ``managed``."""
        return self._do("get", f"/accelerator_requests/{uuid}", microversion="2.4").json()

    def delete_requests(self, instance: str) -> None:
        """Delete an instance's accelerator requests, as Nova does when the instance goes."""
        print(f"$ DELETE accelerator_requests?instance={instance}", flush=True)
        self._do("delete", f"/accelerator_requests?instance={instance}")

    def make_flavor(self, name: str, *, ram: int = 64, **extra_specs: str) -> None:
        """Make a flavor for the tenant's small guest.

        :param ram: MiB.
        """
        body = {"name": name, "ram": ram, "vcpus": 1, "disk": 0}
        flavor = self._compute("POST", "/flavors", json={"flavor": body})["flavor"]["id"]
        if extra_specs:
            self._compute("POST", f"/flavors/{flavor}/os-extra_specs", json={"extra_specs": extra_specs})

    def create_server(self, flavor: str, image: str, name: str) -> dict[str, Any]:
        """Ask for a server, and wait until it is built or is not to be: all that an administrator can see of it."""
        made = self.openstack("server", "create", "--flavor", flavor, "--image", image, "--nic", "none", name)
        return wait_for(lambda: self.server(made["id"]), lambda seen: seen["status"] != "BUILD", seconds=300, pause=0.5)

    def delete_server(self, uuid: str, seconds: float) -> None:
        """Delete a server, and wait until it is gone.

        :raises SystemExit: it is not.
        """
        print(f"$ DELETE servers/{uuid}", flush=True)
        self._compute("DELETE", f"/servers/{uuid}")
        path = f"/servers/{uuid}"
        status = wait_for(
            lambda: self._sdk.compute.get(path).status_code, lambda code: code == 404, seconds=seconds, pause=0.5
        )
        if status != 404:
            sys.exit(f"FAIL server {uuid} is not gone after {seconds} s: {status}")

    def server(self, uuid: str) -> dict[str, Any]:
        """All that an administrator can see of a server."""
        return self._compute("GET", f"/servers/{uuid}")["server"]

    def provider(self, name: str) -> str:
        """The uuid of a resource provider."""
        (found,) = self._placement("/resource_providers", name=name)["resource_providers"]
        return found["uuid"]

    def offers(self, resource_class: str) -> list[str]:
        """The providers of which Placement would give one of *resource_class* now."""
        answer = self._placement("/allocation_candidates", resources=f"{resource_class}:1")
        return [*{provider for each in answer["allocation_requests"] for provider in each["allocations"]}]

    def inventory_url(self, provider: str) -> str:
        """Where Placement tells the inventories of a resource provider."""
        return f"http://{ENDPOINT}/placement/resource_providers/{provider}/inventories"

    def inventory(self, provider: str) -> dict[str, Any]:
        """The one inventory of a resource provider, from Placement."""
        (record,) = self._placement(f"/resource_providers/{provider}/inventories")["inventories"].values()
        return record

    def _compute(self, method: str, path: str, **options: Any) -> Any:
        answer = self._sdk.compute.request(path, method, microversion="2.96", **options)
        if answer.status_code >= 400:
            sys.exit(f"FAIL {method} {path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.content else None

    def _placement(self, path: str, **query: str) -> Any:
        answer = self._sdk.placement.get(path, params=query, microversion="1.38")
        answer.raise_for_status()
        return answer.json()

    def _openstack(self, *arguments: str) -> str:
        print("$ openstack", *arguments, flush=True)
        done = subprocess.run([BIN / "openstack", *arguments], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"FAIL openstack {' '.join(arguments)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def _do(self, method: str, url: str, **options: Any) -> Any:
        answer = self._sdk.accelerator.request(url, method.upper(), **options)
        if answer.status_code >= 400:
            sys.exit(f"FAIL {method.upper()} {url}: {answer.status_code} {answer.text}")
        return answer

    @cached_property
    def _sdk(self) -> Any:
        import openstack  # seconds in the lab, which pass while the service starts

        return openstack.connect()
