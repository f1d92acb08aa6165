"""Hosts that run instances, as conductors see them: rows and providers; agents that note what they are asked."""

import json
import uuid
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from autoclave.conductor.compute import Compute
from autoclave.conductor.manager import ConductorManager
from autoclave.db import agents, hosts, instances, profiles
from autoclave.db import arqs as arq_rows
from autoclave.db.agents import AgentRecord
from autoclave.db.columns import utcnow
from autoclave.db.instances import InstanceRecord
from autoclave.db.tables import agents as agent_table
from autoclave.db.tables import compute_hosts as host_table
from autoclave.exceptions import RPCUnavailable
from autoclave.lifecycle.ports import Ports, RPCCleaners
from autoclave.lifecycle.reserve import settle
from autoclave.objects.base import Device, RequestContext
from autoclave.placement.records import Inventory
from autoclave.rpc.inprocess import Cast, Deliver, InProcessTransport
from autoclave.rpc.port import AGENT_TOPIC
from autoclave.rules.pci_alias import PCIAlias
from autoclave.rules.resource_names import FLAVOR_TRAITS, OWNER_CYBORG
from autoclave.testing.placement.faults import Faults
from autoclave.testing.ports import HeldCasts
from computerows import make_instance
from dbfixtures import Slot, make_slot, sqlite_database

DRIVE_CLASS = "CUSTOM_NVME"
GPU_CLASS = "CUSTOM_GPU"
ALIASES = {
    "gpu": PCIAlias("gpu", GPU_CLASS),
    "big gpu": PCIAlias("big gpu", GPU_CLASS, frozenset({"CUSTOM_BIG"})),
    "drive": PCIAlias("drive", DRIVE_CLASS),
}
LEASE = 240.0
PATIENCE = timedelta(minutes=3)
FLAVOR = {"flavorid": "1", "name": "small", "vcpus": 1, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0}


@dataclass
class NotingAgent:
    """An agent's RPC endpoint that notes what it is asked."""

    built: list[tuple[str, Mapping[str, list[str]]]] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    rebuilt: list[str] = field(default_factory=list)

    def build_instance(self, context: RequestContext, instance_uuid: str, groups: dict[str, list[str]]) -> None:
        self.built.append((instance_uuid, groups))

    def delete_instance(self, context: RequestContext, instance_uuid: str) -> None:
        self.deleted.append(instance_uuid)

    def rebuild_instance(self, context: RequestContext, instance_uuid: str) -> None:
        self.rebuilt.append(instance_uuid)

    def cleanup_device(self, context: RequestContext, device: Device) -> None:
        """Erasing is another test's story."""


class Casts(HeldCasts):
    """:attr full: nothing more is taken."""

    full = False

    def put(self, cast: Cast, deliver: Deliver) -> None:
        if self.full:
            raise RPCUnavailable("too much waits already, as arranged")
        super().put(cast, deliver)


class ComputeWorld:
    """:attr service: the Placement, embedded or the double; :attr faults: what happens to requests to it."""

    def __init__(self, tmp_path: Path, service: Any) -> None:
        self.db = sqlite_database(tmp_path)
        self.faults = Faults(getattr(service, "app", service))
        self.onlooker = service.client()
        self.casts = Casts()
        self.transport = InProcessTransport(casts=self.casts)
        self.ports = Ports(self.db, self.faults.client(), RPCCleaners(self.transport))
        self.context = RequestContext.admin()
        self.server: Any = None
        """The conductor that takes messages, where a test has one."""
        self.agents: dict[str, NotingAgent] = {}
        self.roots: dict[str, str] = {}
        self.drives: dict[str, list[Slot]] = {}

    def close(self) -> None:
        self.transport.close()
        self.db.dispose()

    # What there is

    def add_host(
        self,
        name: str = "host-1",
        *,
        memory_mb: int = 8192,
        vcpus: int = 64,
        traits: Collection[str] = (),
        drives: int = 0,
        gpus: int = 0,
        rpc: str = "1.2",
        agent: NotingAgent | None = None,
    ) -> str:
        """A host, alive, with drives of the accelerator half and GPUs of the compute half; its root provider."""
        self.roots[name] = root = self.add_provider(
            name,
            {"VCPU": vcpus, "MEMORY_MB": memory_mb, "DISK_GB": 1000},
            {"COMPUTE_NODE", *traits},
        )
        with self.db.write() as tx:
            hosts.report(
                tx,
                name,
                {
                    "rp_uuid": root,
                    "hypervisor_type": "null",
                    "hypervisor_version": 1,
                    "vcpus": vcpus,
                    "memory_mb": memory_mb,
                    "local_gb": 1000,
                },
            )
            agents.register(tx, AgentRecord(name, f"run of {name}", rpc, utcnow(), utcnow()))
        self.agents[name] = agent or NotingAgent()
        self.transport.serve(AGENT_TOPIC, name, self.agents[name], rpc).start()
        for number in range(gpus):
            self.add_provider(f"{name}_0000:81:{number:02X}.0", {GPU_CLASS: 1}, FLAVOR_TRAITS, parent=root)
        self.drives[name] = [self._add_drive(name, root) for _ in range(drives)]
        return root

    def add_provider(
        self, name: str, inventory: Mapping[str, int], traits: Iterable[str], parent: str | None = None
    ) -> str:
        made = self.onlooker.create_provider(str(uuid.uuid4()), name, parent)
        for resource_class in inventory:
            self.onlooker.ensure_resource_class(resource_class)
        records = {each: Inventory(total, 0, 1, total, 1, 1.0) for each, total in inventory.items()}
        generation = self.onlooker.put_inventories(made.uuid, made.generation, records)
        self.onlooker.ensure_traits(traits)
        self.onlooker.put_traits(made.uuid, generation, traits)
        return made.uuid

    def _add_drive(self, host: str, root: str) -> Slot:
        with self.db.write() as tx:
            slot = make_slot(tx, hostname=host)
        made = self.onlooker.create_provider(slot.deployable.rp_uuid, slot.deployable.name, root)
        self.onlooker.put_traits(made.uuid, made.generation, [OWNER_CYBORG])
        self.onlooker.ensure_resource_class(DRIVE_CLASS)
        settle(self.db, self.onlooker, slot.device.uuid)
        return slot

    def add_profile(self, name: str = "two-drives", count: int = 2) -> None:
        """A device profile of *count* drives, each in a group of its own."""
        groups = [{f"resources:{DRIVE_CLASS}": "1"}] * count
        with self.db.write() as tx:
            values = {"uuid": str(uuid.uuid4()), "name": name, "profile_json": json.dumps({"groups": groups})}
            profiles.insert(tx, values)

    def change_host(self, name: str, **values: Any) -> None:
        with self.db.write() as tx:
            tx.execute(host_table.update().where(host_table.c.hostname == name).values(**values))

    def silence(self, name: str) -> None:
        """Its agent was last seen long ago."""
        with self.db.write() as tx:
            then = utcnow() - timedelta(hours=1)
            tx.execute(agent_table.update().where(agent_table.c.hostname == name).values(last_seen=then))

    # What is asked

    def ask(self, *, image: Mapping[str, str] | None = None, **values: Any) -> InstanceRecord:
        """An instance that the API has just taken; keyword ``specs`` are extra specs."""
        flavor = {**FLAVOR, "extra_specs": values.pop("specs", {})}
        with self.db.write() as tx:
            return make_instance(tx, flavor=flavor, image={"name": "image", "properties": dict(image or {})}, **values)

    def conductor(self, ports: Ports | None = None) -> ConductorManager:
        """A conductor; with *ports*, it sees the world through those."""
        ports = ports or self.ports
        compute = Compute(ports, self.transport, "conductor-1", ALIASES, PATIENCE, LEASE)
        return ConductorManager(ports, "conductor-1", LEASE, compute=compute)

    def build(self, instance: InstanceRecord, ports: Ports | None = None) -> InstanceRecord:
        """Build it, and deliver what was said to the agents; the instance afterwards."""
        self.conductor(ports).build_instance(self.context, instance.uuid)
        self.deliver()
        return self.instance(instance)

    def mark_deleted(self, instance: InstanceRecord) -> None:
        """As the API does it."""
        with self.db.write() as tx:
            found = instances.get(tx, instance.uuid)
            assert found is not None
            assert instances.swap(tx, found, expect_task=found.task_state, task_state="deleting") is not None

    def deliver(self) -> None:
        while self.casts.pending:
            self.casts.deliver()

    def sweep(self, hours: float = 1) -> None:
        """A conductor sweeps, so much later."""
        later = replace(self.ports, clock=lambda: utcnow() + timedelta(hours=hours))
        self.conductor(later).sweep()
        self.deliver()

    # What can be seen

    def find(self, instance: InstanceRecord) -> InstanceRecord | None:
        with self.db.read() as tx:
            return instances.get(tx, instance.uuid)

    def instance(self, instance: InstanceRecord) -> InstanceRecord:
        found = self.find(instance)
        assert found is not None
        return found

    def held(self, instance: InstanceRecord) -> Mapping[str, Mapping[str, int]]:
        """What Placement has allocated to it."""
        return self.onlooker.get_allocations(instance.uuid).allocations

    def arqs(self) -> list[arq_rows.ARQRecord]:
        """All there are."""
        with self.db.read() as tx:
            uuids = [row[0] for row in tx.execute(sa.text("SELECT uuid FROM extended_accelerator_requests"))]
            return arq_rows.get_many(tx, uuids)

    def builder_of(self, instance: InstanceRecord) -> str | None:
        """The host whose agent was told to build it."""
        hosts = [name for name, agent in self.agents.items() if instance.uuid in [uuid for uuid, _ in agent.built]]
        assert len(hosts) <= 1, "two hosts build it"
        return hosts[0] if hosts else None
