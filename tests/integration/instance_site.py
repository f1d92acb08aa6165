"""A site that runs instances, each of its services in a process of its own: two hosts, two conductors, and the API."""

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openstack
import requests
from http_gate import HTTPGate
from listener import Listener
from processes import COMMAND, PATIENCE, Cloud, Process, wait_until, written

from autoclave.rpc.port import AGENT_TOPIC
from autoclave.simulator.drive_spec import default_drives
from autoclave.simulator.functions import FunctionSpec
from autoclave.simulator.guests import Guests
from autoclave.simulator.host import SimulatedHost
from freeport import free_port

DRIVE = "0000:41:00.0"
GPUS = ("0000:81:00.0", "0000:82:00.0")
GPU = {"vendor_id": "10de", "product_id": "25b6"}
GPU_CLASS, DRIVE_CLASS = "CUSTOM_PCI_10DE_25B6", "CUSTOM_NVME_144D_A808"
LEASE = 20
"""Seconds: what a killed conductor has begun is taken over soon, and no build of a busy machine for dead."""
CONDUCTORS = ("conductor-1", "conductor-2")
AGENTS = ("agent-1", "agent-2")


class Site:
    """Two hosts with a drive and two graphics cards of one time use each.

    :param database: URL of a new database.
    :param broker: URL of RabbitMQ.
    :attr gate: before Placement.
    :attr listener: hears what instances meet with.
    """

    def __init__(self, directory: Path, database: str, broker: str) -> None:
        self._directory = directory
        self._running: dict[str, Process] = {}
        self._ports = {"api": free_port(), "placement": free_port()}
        self.url = f"http://127.0.0.1:{self._ports['api']}"
        self.gate = HTTPGate(self._ports["placement"])
        self.cloud = Cloud(self.url, self.gate.url)
        topic = f"autoclave-test-{uuid.uuid4().hex[:12]}"
        self.listener = Listener(broker, topic)
        self._files = {"common": directory / "autoclave.conf"}
        self._files["common"].write_text(written(self._options(database, broker, topic)))
        self.hosts = dict(self._host(name, number) for number, name in enumerate(AGENTS, start=1))
        self.images: dict[str, str] = {}
        self.flavors: dict[str, str] = {}

    def _options(self, database: str, broker: str, topic: str) -> dict[tuple[str | None, str], object]:
        return {
            (None, "transport_url"): broker,
            ("database", "connection"): database,
            ("placement", "endpoint"): self.gate.url,
            ("placement", "auth_type"): "token",
            ("api", "auth_strategy"): "noauth",
            ("api", "port"): self._ports["api"],
            ("agent", "periodic_interval"): 2,
            ("compute", "enabled"): "true",
            ("conductor", "bind_lease"): LEASE,
            ("conductor", "sweep_interval"): 1,
            ("notifications", "versioned_notifications_topics"): topic,
            ("pci", "device_spec"): json.dumps({**GPU, "one_time_use": True}),
            ("pci", "alias"): json.dumps({"name": "gpu", **GPU}),
            ("nvme", "device_spec"): json.dumps({"address": DRIVE}),
            ("nvme", "poll_interval"): 0.2,
        }

    def _host(self, agent: str, number: int) -> tuple[str, SimulatedHost]:
        functions = [FunctionSpec(address, GPU["vendor_id"], GPU["product_id"]) for address in GPUS]
        name = f"{agent}-{uuid.uuid4().hex[:8]}"
        host = SimulatedHost.create(self._directory / name, name, default_drives(number)[1:2], functions)
        self._files[agent] = self._directory / f"{agent}.conf"
        # Each on a machine of its own, so that none has the other's data directory.
        own = {("agent", "data_dir"): self._directory / f"data-{agent}"}
        self._files[agent].write_text(written({**host.conf_overrides(), **own}))
        return agent, host

    @property
    def queues(self) -> list[str]:
        """The queues of these hosts, which the broker would keep for ever."""
        return [f"{AGENT_TOPIC}.{host.name}" for host in self.hosts.values()]

    @property
    def log(self) -> str:
        return "\n".join(f"--- {file.name}\n{file.read_text()[-20000:]}" for file in self._directory.glob("*.log"))

    # Processes

    def open(self) -> None:
        """Start everything, and make what users need."""
        script = Path(__file__).with_name("placement_process.py")
        port = self._ports["placement"]
        argv = [sys.executable, str(script), str(self._directory / "placement.db"), str(port)]
        self._running["placement"] = Process(argv, self._directory / "placement.log")
        self._running["placement"].wait_for_http(f"http://127.0.0.1:{port}")
        subprocess.run([COMMAND, "db", "sync", "--config-file", str(self._files["common"])], check=True, timeout=60)
        self.start("api", *CONDUCTORS, *AGENTS)
        self._running["api"].wait_for_http(f"{self.url}/healthcheck")
        self.wait_until("two hosts", lambda: self.states() == ["up", "up"])
        self.wait_until("all cards are offered", lambda: self.offered(GPU_CLASS) == 4)
        self.wait_until("all drives are offered", lambda: self.offered(DRIVE_CLASS) == 2)
        for name in ("first", "second"):
            self.images[name] = self._image(name)
        self.cloud.ask(
            "POST", "/v2/device_profiles", [{"name": "one-drive", "groups": [{f"resources:{DRIVE_CLASS}": "1"}]}]
        )
        self.flavors["gpu"] = self._flavor("gpu", {"pci_passthrough:alias": "gpu:1"})
        both = {"pci_passthrough:alias": "gpu:1", "accel:device_profile": "one-drive"}
        self.flavors["both"] = self._flavor("both", both)

    def start(self, *names: str) -> None:
        """Start services."""
        for name in names:
            files = [self._files["common"], *([self._files[name]] if name in AGENTS else [])]
            argv = [COMMAND, name.partition("-")[0]]
            for file in files:
                argv += ["--config-file", str(file)]
            self._running[name] = Process(argv, self._directory / f"{name}.log")

    def kill(self, *names: str) -> None:
        """SIGKILL."""
        for name in names:
            self._running.pop(name).kill()

    def stop(self) -> dict[str, int]:
        """Tell all that runs to stop; how each of them did."""
        with ThreadPoolExecutor(len(self._running) or 1) as pool:
            codes = dict(zip(self._running, pool.map(Process.terminate, self._running.values()), strict=True))
        self.listener.stop()
        self.gate.close()
        return codes

    def wait_until(self, what: str, happened: Any) -> Any:
        return wait_until(what, happened, lambda: self.log)

    # Users

    def openstack(self) -> Any:
        """A connection of openstacksdk's; one for each thread."""
        return openstack.connection.Connection(
            auth_type="none",
            endpoint=self.url,
            compute_endpoint_override=f"{self.url}/compute/v2.1",
            image_endpoint_override=f"{self.url}/image/v2",
            identity_endpoint_override=f"{self.url}/identity/v3",
        )

    def compute(self, method: str, path: str, body: Any = None) -> Any:
        headers = {"OpenStack-API-Version": "compute 2.96", "X-OpenStack-Nova-API-Version": "2.96"}
        url = f"{self.url}/compute/v2.1{path}"
        answer = requests.request(method, url, json=body, headers=headers, timeout=PATIENCE)
        assert answer.ok, f"{method} {path}: {answer.status_code} {answer.text}\n{self.log}"
        return answer.json() if answer.content else None

    def create(self, name: str, flavor: str) -> str:
        """Ask for a server; its uuid."""
        wanted = {
            "name": name,
            "flavorRef": self.flavors[flavor],
            "imageRef": self.images["first"],
            "networks": "none",
        }
        return str(self.compute("POST", "/servers", {"server": wanted})["server"]["id"])

    def server(self, uuid_: str) -> Any:
        return self.compute("GET", f"/servers/{uuid_}")["server"]

    def servers(self) -> list[Any]:
        return list(self.compute("GET", "/servers/detail?all_tenants=1")["servers"])

    def wait_until_decided(self, uuid_: str) -> Any:
        """The server once it is no longer built."""
        return self.wait_until(
            f"an end of the build of {uuid_}", lambda: (one := self.server(uuid_))["status"] != "BUILD" and one
        )

    def delete(self, *uuids: str) -> None:
        for each in uuids:
            self.compute("DELETE", f"/servers/{each}")
        self.wait_until("they are gone", lambda: not {one["id"] for one in self.servers()} & set(uuids))

    def _flavor(self, name: str, specs: dict[str, str]) -> str:
        made = self.compute("POST", "/flavors", {"flavor": {"name": name, "ram": 512, "vcpus": 1, "disk": 1}})
        self.compute("POST", f"/flavors/{made['flavor']['id']}/os-extra_specs", {"extra_specs": specs})
        return str(made["flavor"]["id"])

    def _image(self, name: str) -> str:
        wanted = {"name": name, "disk_format": "raw", "container_format": "bare", "visibility": "public"}
        made = requests.post(f"{self.url}/image/v2/images", json=wanted, timeout=PATIENCE)
        assert made.ok, made.text
        binary = {"Content-Type": "application/octet-stream"}
        file = f"{self.url}/image/v2/images/{made.json()['id']}/file"
        assert requests.put(file, data=b"a disk", headers=binary, timeout=PATIENCE).ok
        return str(made.json()["id"])

    # What can be seen

    def states(self) -> list[str]:
        """Whether the agents are up."""
        return [one["state"] for one in self.compute("GET", "/os-services")["services"]]

    def providers(self) -> list[Any]:
        """All of them, with what of them is reserved and allocated."""
        found = self._placement("/resource_providers")["resource_providers"]
        for each in found:
            at = f"/resource_providers/{each['uuid']}"
            each["inventories"] = self._placement(f"{at}/inventories")["inventories"]
            each["allocations"] = self._placement(f"{at}/allocations")["allocations"]
            each["usages"] = self._placement(f"{at}/usages")["usages"]
        return found

    def offered(self, resource_class: str) -> int:
        """How much of a class Placement would give away."""
        return sum(
            max(0, record["total"] - record["reserved"] - each["usages"][name])
            for each in self.providers()
            for name, record in each["inventories"].items()
            if name == resource_class
        )

    def inventories_of(self, resource_class: str) -> str:
        """A regular expression of the paths of all inventories of that class."""
        uuids = [each["uuid"] for each in self.providers() if resource_class in each["inventories"]]
        return f"/resource_providers/({'|'.join(uuids)})/inventories"

    def holders(self) -> set[str]:
        """The consumers of all allocations."""
        return {consumer for each in self.providers() for consumer in each["allocations"]}

    def burned(self) -> list[Any]:
        """What is burned, as the operator sees it."""
        return list(self.cloud.ask("GET", "/autoclave/v1/burned")["burned"])

    def guests(self) -> set[str]:
        """The guests that run on both hosts."""
        return {uuid_ for host in self.hosts.values() for uuid_, one in Guests(host).all().items() if one.running}

    def release(self) -> None:
        """Release all that is burned and idle."""
        for each in self.burned():
            self.cloud.ask("POST", f"/autoclave/v1/burned/{each['rp_uuid']}/release")

    def nothing_is_left(self) -> None:
        """Delete all servers and release what they have burned; nothing of them is left, and all is offered again."""
        self.delete(*(one["id"] for one in self.servers()))
        assert self.guests() == set()
        assert self.holders() == set(), self.log
        assert self.cloud.ask("GET", "/v2/accelerator_requests")["arqs"] == []
        self.release()
        self.wait_until("all cards are offered again", lambda: self.offered(GPU_CLASS) == 4)
        self.wait_until("all drives are offered again", lambda: self.offered(DRIVE_CLASS) == 2)

    def _placement(self, path: str) -> Any:
        headers = {"X-Auth-Token": "admin", "OpenStack-API-Version": "placement 1.39"}
        answer = requests.get(self.gate.url + path, headers=headers, timeout=PATIENCE)
        assert answer.ok, answer.text
        return answer.json()


@contextmanager
def site_of(directory: Path, database: str, broker: str) -> Iterator[Site]:
    """A site that works, until the end."""
    import kombu

    made = Site(directory, database, broker)
    try:
        made.open()
        yield made
    finally:
        codes = made.stop()
        with kombu.Connection(broker.partition("?")[0].replace("rabbit", "amqp", 1)) as connection:
            for queue in made.queues:
                connection.default_channel.queue_delete(queue)
    assert set(codes.values()) == {0}, made.log
