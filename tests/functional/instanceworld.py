"""An agent that runs instances on a simulated host; the API and the conductor are played by the test."""

import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from agentprocesses import AgentProcesses
from hostworld import GPU, HOST, HostWorld

from autoclave.agent.compute.functions import FunctionUsers
from autoclave.agent.compute.host import ComputeParts
from autoclave.agent.manager import AgentManager
from autoclave.conductor.manager import ConductorManager
from autoclave.db import instances as instance_rows
from autoclave.db.instances import InstanceRecord
from autoclave.lifecycle.ports import Ports
from autoclave.objects.base import RequestContext
from autoclave.placement.records import ConsumerAllocations
from autoclave.rpc.agent_api import AgentAPI
from autoclave.rpc.conductor_api import ConductorAPI
from autoclave.rpc.port import AGENT_TOPIC, CONDUCTOR_TOPIC
from autoclave.rules.instance_states import PowerState, TaskState, VMState
from autoclave.services.hosts import host_paths
from autoclave.simulator.guests import Guests, SimulatedGuest
from autoclave.testing.ports import KeptNotifications
from autoclave.virt.driver import ComputeDriver, load_compute_driver

FLAVOR = {
    "flavorid": "1", "name": "m1", "vcpus": 2, "ram": 512, "disk": 1, "ephemeral": 0, "swap": 0, "extra_specs": {},
}  # fmt: skip
IMAGE = {"name": "linux", "properties": {}}
OTHER = {"image_uuid": str(uuid.UUID(int=8)), "image": {"name": "other", "properties": {}}, "checked": True}
"""A rebuild from another image, as a conductor hands it over."""


class InstanceWorld(AgentProcesses, HostWorld):
    """The world around one agent, which may be ended and begun again in it."""

    def __init__(self, tmp_path: Path, **how: Any) -> None:
        super().__init__(tmp_path, **how)
        self.context = RequestContext.admin()
        self.notifications = KeptNotifications()
        self.ended = threading.Event()
        """An agent has ended its process."""
        self.start_conductor()
        self.agents = AgentAPI(self.transport)

    def start(self, ports: Ports | None = None, driver: ComputeDriver | None = None) -> AgentManager:
        """An agent that has started as its service starts it. With *ports* or *driver*, it sees the world by those."""
        conf = self.configuration()
        parts = ComputeParts(
            driver or load_compute_driver(conf),
            host_paths(conf),
            ConductorAPI(self.transport),
            self.notifications,
        )
        users = FunctionUsers(parts.paths)
        agent = AgentManager(conf, ports or self.ports, HOST, {}, end=self.ended.set, users=users, compute=parts)
        self._agents.append(agent)
        return self.run(agent)

    def start_conductor(self) -> None:
        conductor = ConductorManager(self.ports, "conductor-1", 60.0)
        self._conductor = self.transport.serve(CONDUCTOR_TOPIC, "any", conductor, "1.1")
        self._conductor.start()

    def stop_conductor(self) -> None:
        self._conductor.stop()

    def close(self) -> None:
        self.end_all()
        self._conductor.stop()
        super().close()

    # What the API and the conductor do

    def ask(self, *addresses: str, host: str | None = HOST) -> str:
        """An instance that is handed over to the host, with what it was allocated of the slots at *addresses*."""
        instance_uuid = str(uuid.uuid4())
        root = self.onlooker.find_provider(HOST)
        assert root is not None
        rows = [self.row(address) for address in addresses]
        held: dict[str, dict[str, int]] = {root.uuid: {"VCPU": 2, "MEMORY_MB": 512}}
        for row in rows:
            amounts = held.setdefault(row.uuid, {})
            amounts[row.resource_class] = amounts.get(row.resource_class, 0) + 1
        self.onlooker.put_allocations(ConsumerAllocations(instance_uuid, held, None, "project", "user"))
        self.insert(instance_uuid, host=host)
        return instance_uuid

    def insert(self, instance_uuid: str, **values: Any) -> None:
        with self.db.write() as tx:
            instance_rows.insert(
                tx,
                {
                    "uuid": instance_uuid,
                    "name": "vm",
                    "project_id": "project",
                    "user_id": "user",
                    "flavor": FLAVOR,
                    "image_uuid": str(uuid.UUID(int=7)),
                    "image": IMAGE,
                    "metadata": {},
                    "tags": [],
                    "vm_state": VMState.BUILDING,
                    "task_state": TaskState.SCHEDULING,
                    "power_state": PowerState.NOSTATE.value,
                    **values,
                },
            )

    def build(self, instance_uuid: str, *addresses: str) -> None:
        """The conductor's message, delivered."""
        groups = {str(number): [self.row(address).uuid] for number, address in enumerate(addresses)}
        self.agents.build_instance(self.context, HOST, instance_uuid, groups)
        self.casts.deliver()

    def create(self, *addresses: str) -> str:
        """A whole create."""
        instance_uuid = self.ask(*addresses)
        self.build(instance_uuid, *addresses)
        return instance_uuid

    def mark(self, instance_uuid: str, task: TaskState, **values: Any) -> None:
        """What the API writes before it sends a message."""
        with self.db.write() as tx:
            found = instance_rows.get(tx, instance_uuid)
            assert found is not None
            assert instance_rows.swap(tx, found, expect_task=found.task_state, task_state=task, **values)

    def delete(self, instance_uuid: str) -> None:
        self.mark(instance_uuid, TaskState.DELETING)
        self.agents.delete_instance(self.context, HOST, instance_uuid)
        self.casts.deliver()

    def power(self, method: str, task: TaskState, instance_uuid: str) -> None:
        self.mark(instance_uuid, task)
        client = self.transport.client(AGENT_TOPIC, server=HOST, version="1.2")
        client.cast(self.context, method, instance_uuid=instance_uuid)
        self.casts.deliver()

    def hand_over_rebuild(self, instance_uuid: str) -> None:
        """The conductor's message, delivered."""
        self.agents.rebuild_instance(self.context, HOST, instance_uuid)
        self.casts.deliver()

    def rebuild(self, instance_uuid: str, wanted: Mapping[str, Any] = OTHER) -> None:
        """A whole rebuild."""
        self.mark(instance_uuid, TaskState.REBUILDING, rebuild=dict(wanted), agent_run_id=None)
        self.hand_over_rebuild(instance_uuid)

    # What can be seen

    def find(self, instance_uuid: str) -> InstanceRecord | None:
        with self.db.read() as tx:
            return instance_rows.get(tx, instance_uuid)

    def instance(self, instance_uuid: str) -> InstanceRecord:
        found = self.find(instance_uuid)
        assert found is not None
        return found

    def guest(self, instance_uuid: str) -> SimulatedGuest | None:
        return Guests(self.sim).all().get(instance_uuid)

    def told(self) -> Sequence[str]:
        """What listeners have heard."""
        return [each.event_type for each in self.notifications.kept]

    def assert_promise(self, address: str = GPU) -> None:
        """What is burned is not offered, unless a release is pending."""
        row = self.find_row(address)
        if row is not None and row.burned and not row.device.release_pending:
            assert self.offered(address) == 0, "a burned device is offered"


@pytest.fixture
def instance_world(tmp_path: Path) -> Iterator[InstanceWorld]:
    made = InstanceWorld(tmp_path)
    yield made
    made.close()
