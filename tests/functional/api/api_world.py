"""A whole service for the API's tests: real database, conductor and RPC; Placement's double.

What agents are asked ends at RPC, at a double that notes it.
"""

import json
import threading
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import falcon.testing
from cheroot import wsgi
from documented import Documented
from instance_agent import InstanceAgent

from autoclave.api.app import create_app
from autoclave.conductor.compute import Compute
from autoclave.conductor.manager import ConductorManager
from autoclave.conf import new_config
from autoclave.db import agents, hosts
from autoclave.db import devices as device_rows
from autoclave.db import instances as instance_rows
from autoclave.db.agents import AgentRecord
from autoclave.db.columns import utcnow
from autoclave.db.devices import DeployableRecord, DeviceRecord
from autoclave.db.hosts import ComputeHostRecord
from autoclave.db.instances import InstanceRecord
from autoclave.db.tables import devices
from autoclave.drivers.base import AttachHandle, DiscoveredDevice
from autoclave.exceptions import RPCUnavailable
from autoclave.lifecycle.ports import Ports, RPCCleaners
from autoclave.lifecycle.register import register
from autoclave.lifecycle.reserve import settle
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.records import Inventory
from autoclave.rpc import conductor_api
from autoclave.rpc.inprocess import Cast, Deliver, InProcessTransport
from autoclave.rpc.port import AGENT_TOPIC, CONDUCTOR_TOPIC
from autoclave.rules.device_lifecycle import Actor, DeviceState
from autoclave.rules.resource_names import OWNER_CYBORG
from autoclave.testing.placement import FakePlacement
from autoclave.testing.placement.faults import Faults
from dbfixtures import sqlite_database

HOST = "compute-1"
PATIENCE = timedelta(minutes=10)
LEASE = 240.0


@dataclass
class AtOnce:
    """Delivers a cast while it is sent.

    :attr room: how many more it takes; None: all.
    """

    room: int | None = None

    def put(self, cast: Cast, deliver: Deliver) -> None:
        if self.room == 0:
            raise RPCUnavailable("too much work is waiting")
        if self.room is not None:
            self.room -= 1
        deliver(cast)

    def close(self) -> None:
        pass


class _Client(falcon.testing.TestClient):
    """Falcon's, on this machine."""

    def simulate_request(self, *args: Any, **kwargs: Any) -> falcon.testing.Result:
        kwargs.setdefault("host", "localhost")
        kwargs.setdefault("extras", {})["wsgi.input_terminated"] = True
        return super().simulate_request(*args, **kwargs)


class World:
    """:attr app: the WSGI application; :attr http: a client of it."""

    def __init__(
        self,
        directory: Path,
        overrides: dict[tuple[str | None, str], Any] | None = None,
        config_files: tuple[str, ...] = (),
        mounts: Mapping[str, Any] | None = None,
        placement: Any = None,
    ) -> None:
        self.directory = directory
        self.db = sqlite_database(directory, "autoclave.sqlite")
        self.placement = Faults(placement or FakePlacement())
        self.casts = AtOnce()
        self.transport = InProcessTransport(casts=self.casts)
        self.ports = Ports(self.db, self.placement.client(), RPCCleaners(self.transport))
        compute = Compute(self.ports, self.transport, "conductor-1", {}, PATIENCE, LEASE)
        manager = ConductorManager(self.ports, "conductor-1", LEASE, compute=compute)
        self.conductor = self.transport.serve(CONDUCTOR_TOPIC, "conductor-1", manager, conductor_api.VERSION)
        self.conductor.start()
        self.agent = InstanceAgent(self.ports)
        self.agent_server = self.transport.serve(AGENT_TOPIC, HOST, self.agent, "1.3")
        self.agent_server.start()
        everything: dict[tuple[str | None, str], Any] = {
            ("api", "auth_strategy"): "noauth",
            ("compute", "enabled"): True,
            ("agent", "data_dir"): str(directory),
        }
        self.conf = new_config(config_files, {**everything, **(overrides or {})})
        self.app = Documented(create_app(self.conf, self.ports, self.transport, mounts), self.conf, mounts or ())
        # Falcon's client wants to inspect a plain function.
        self.http = _Client(lambda environ, start: self.app(environ, start))
        self._root = str(uuid.uuid4())
        self.ports.placement.create_provider(self._root, HOST)

    @contextmanager
    def served(self) -> Iterator[str]:
        """The service on a real socket; its URL."""
        server = wsgi.Server(("127.0.0.1", 0), self.app, numthreads=2)
        server.prepare()
        thread = threading.Thread(target=server.serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.bind_addr[1]}"
        finally:
            server.stop()
            thread.join()

    def close(self) -> None:
        self.transport.close()
        self.db.dispose()
        assert self.app.faults == []

    def add_device(
        self, address: str = "0000:01:00.0", *, kind: str = "NVME", host: str = HOST, **changes: Any
    ) -> DeviceRecord:
        """A device as discovery leaves it, settled in Placement; then *changes* of its row."""
        resource_class = "CUSTOM_NVME_144D_A808" if kind == "NVME" else f"CUSTOM_{kind}"
        domain, bus, rest = address.split(":")
        slot, function = rest.split(".")
        info = {"domain": domain, "bus": bus, "device": slot, "function": function}
        found = DiscoveredDevice(
            pci_address=address,
            device_type=kind,
            vendor="144d",
            product="a808",
            resource_class=resource_class,
            traits=["HW_NVME_CES"] if kind == "NVME" else [],
            attach_handles=[AttachHandle("PCI", {**info, **changes.pop("attach_info", {})}, address)],
            std_board_info={"product_id": "a808", "pci_address": address},
            serial=changes.pop("serial", f"S-{address}") if kind == "NVME" else None,
            drive_model="Model" if kind == "NVME" else None,
            cleanup_action="sanitize_crypto" if kind == "NVME" else None,
        )
        with self.db.write() as tx:
            cause = Cause(Actor.AGENT, host)
            made = register(tx, host, "nvme_driver", found, None, cause, clean_on_discovery=False, run_id="run-1")
            [deployable] = device_rows.deployables_of(tx, [made.id])
        provider = self.ports.placement.create_provider(deployable.rp_uuid, deployable.name, self._root)
        traits = {OWNER_CYBORG, *found.traits}
        self.ports.placement.ensure_traits(traits)
        self.ports.placement.put_traits(provider.uuid, provider.generation, traits)
        self.ports.placement.ensure_resource_class(resource_class)
        settle(self.db, self.ports.placement, made.uuid)
        if changes:
            self.change(made.uuid, **changes)
        return self.device(made.uuid)

    def change(self, device_uuid: str, **values: Any) -> None:
        """Write columns of a device row behind everybody's back."""
        with self.db.write() as tx:
            tx.execute(devices.update().where(devices.c.uuid == device_uuid).values(**values))

    def device(self, device_uuid: str) -> DeviceRecord:
        with self.db.read() as tx:
            found = device_rows.get(tx, device_uuid)
        assert found is not None
        return found

    def provider(self, device: DeviceRecord) -> DeployableRecord:
        with self.db.read() as tx:
            return device_rows.deployables_of(tx, [device.id])[0]

    def reserved(self, device: DeviceRecord) -> int:
        provider = self.provider(device)
        return self.ports.placement.get_inventories(provider.rp_uuid).records[provider.resource_class].reserved

    def see_agent(self, host: str = HOST) -> None:
        with self.db.write() as tx:
            agents.register(tx, AgentRecord(host, "run-1", "1.1", utcnow(), utcnow()))

    # Servers

    def add_host(self, host: str = HOST, **values: Any) -> ComputeHostRecord:
        """A host that runs servers, whose agent was seen just now. Agents of others than HOST hear nothing."""
        root = self._root if host == HOST else self._made_provider(host)
        inventories = self.ports.placement.get_inventories(root)
        if not inventories.records:
            much = Inventory(1_000_000, 0, 1, 1_000_000, 1, 1.0)
            records = dict.fromkeys(("VCPU", "MEMORY_MB", "DISK_GB"), much)
            generation = self.ports.placement.put_inventories(root, inventories.generation, records)
            self.ports.placement.put_traits(root, generation, ["COMPUTE_NODE"])
        report = {"hypervisor_type": "null", "hypervisor_version": 1, "vcpus": 4, "memory_mb": 8192, "local_gb": 100}
        with self.db.write() as tx:
            agents.register(tx, AgentRecord(host, "run-1", "1.2", utcnow(), utcnow()))
            made = hosts.report(tx, host, {"rp_uuid": root, **report})
            hosts.update(tx, made, values)
            found = hosts.find(tx, host)
        assert found is not None
        return found

    def _made_provider(self, name: str) -> str:
        found = self.ports.placement.find_provider(name)
        return (found or self.ports.placement.create_provider(str(uuid.uuid4()), name)).uuid

    def compute(self, method: str, path: str, body: Any = None, *, token: str | None = None) -> falcon.testing.Result:
        """One request of a client of Nova."""
        headers = {"OpenStack-API-Version": "compute 2.96", "X-OpenStack-Nova-API-Version": "2.96"}
        if token is not None:
            headers["X-Auth-Token"] = token
        return self.http.simulate_request(method, f"/compute/v2.1{path}", json=body, headers=headers)

    def add_flavor(self, name: str = "small", **values: Any) -> str:
        wanted = {"id": None, "name": name, "ram": 512, "vcpus": 1, "disk": 1, **values}
        made = self.compute("POST", "/flavors", {"flavor": wanted})
        assert made.status_code == 200, made.text
        return str(made.json["flavor"]["id"])

    def add_image(self, name: str = "cirros", data: bytes | None = b"a disk", **values: Any) -> str:
        """An image that everybody may use."""
        wanted = {"name": name, "disk_format": "raw", "container_format": "bare", "visibility": "public", **values}
        made = self.http.simulate_post("/image/v2/images", json=wanted)
        assert made.status_code == 201, made.text
        if data is not None:
            assert self.send_data(str(made.json["id"]), data).status_code == 204
        return str(made.json["id"])

    def send_data(self, image: str, data: bytes, *, token: str | None = None) -> falcon.testing.Result:
        headers = {"Content-Type": "application/octet-stream", **({"X-Auth-Token": token} if token else {})}
        return self.http.simulate_put(f"/image/v2/images/{image}/file", body=data, headers=headers)

    def new_server(self, name: str = "vm1", **values: Any) -> dict[str, Any]:
        """The body of a request for a server, as openstackclient sends it."""
        image = values.pop("imageRef", None) or self.add_image()
        boot = {"boot_index": 0, "source_type": "image", "destination_type": "local", "delete_on_termination": True}
        server = {
            "name": name,
            "imageRef": image,
            "flavorRef": values.pop("flavorRef", None) or self.add_flavor(f"flavor-of-{name}"),
            "min_count": 1,
            "max_count": 1,
            "networks": "none",
            "block_device_mapping_v2": [{"uuid": image, **boot}],
            **values,
        }
        return {"server": server}

    def add_server(self, name: str = "vm1", *, token: str | None = None, **values: Any) -> str:
        made = self.compute("POST", "/servers", self.new_server(name, **values), token=token)
        assert made.status_code == 202, made.text
        return str(made.json["server"]["id"])

    def server(self, uuid: str) -> InstanceRecord | None:
        with self.db.read() as tx:
            return instance_rows.get(tx, uuid)

    # HTTP

    def call(
        self, method: str, path: str, body: Any = None, *, version: str | None = "2.5", token: str | None = None
    ) -> falcon.testing.Result:
        """One request; *body* is sent as JSON."""
        headers = {}
        if version is not None:
            headers["OpenStack-API-Version"] = f"accelerator {version}"
        if token is not None:
            headers["X-Auth-Token"] = token
        return self.http.simulate_request(method, path, json=body, headers=headers)

    def add_profile(self, name: str = "one-drive", groups: list[dict[str, Any]] | None = None) -> str:
        asked = groups or [{"resources:CUSTOM_NVME_144D_A808": "1", "trait:HW_NVME_CES": "required"}]
        made = self.call("POST", "/v2/device_profiles", [{"name": name, "groups": asked}])
        assert made.status_code == 201, made.text
        return str(made.json["uuid"])

    def add_arq(self, profile: str = "one-drive", *, token: str | None = None) -> str:
        made = self.call("POST", "/v2/accelerator_requests", {"device_profile_name": profile}, token=token)
        assert made.status_code == 201, made.text
        return str(made.json["arqs"][0]["uuid"])

    def bind(self, arq: str, device: DeviceRecord, instance: str, *, token: str | None = None) -> falcon.testing.Result:
        return self.call("PATCH", "/v2/accelerator_requests", {arq: self.add_ops(device, instance)}, token=token)

    def add_ops(self, device: DeviceRecord, instance: str) -> list[dict[str, str]]:
        values = {
            "/hostname": device.hostname,
            "/device_rp_uuid": self.provider(device).rp_uuid,
            "/instance_uuid": instance,
        }
        return [{"path": path, "op": "add", "value": value} for path, value in values.items()]


REMOVE_OPS = [{"path": path, "op": "remove"} for path in ("/hostname", "/device_rp_uuid", "/instance_uuid")]
ERROR = DeviceState.ERROR


def new_uuid() -> str:
    return str(uuid.uuid4())


def said(result: falcon.testing.Result) -> str:
    """The text of an error of whichever API, as its clients find it."""
    if "error_message" in result.json:
        return fault(result)
    if "title" in result.json:
        assert result.json["code"] == result.status_code
        return str(result.json["message"])
    [inner] = result.json.values()
    assert inner["code"] == result.status_code
    return str(inner["message"])


def fault(result: falcon.testing.Result) -> str:
    """The text of an error of the accelerator API, decoded twice as clients do."""
    inner = json.loads(result.json["error_message"])
    assert set(inner) == {"faultcode", "faultstring", "debuginfo"}
    assert inner["faultcode"] == ("Client" if result.status_code < 500 else "Server")
    return str(inner["faultstring"])
