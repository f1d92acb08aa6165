"""One simulated host with an agent on it, a database and a Placement: the whole trip but for the conductor."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from agentprocesses import AgentProcesses

from autoclave.agent.compute.functions import FunctionUsers
from autoclave.agent.manager import AgentManager
from autoclave.conf import new_config
from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db.devices import DeviceRecord
from autoclave.drivers.base import Driver
from autoclave.drivers.loader import load_drivers
from autoclave.hardware.sysfs import read_hints
from autoclave.lifecycle.ports import Ports, RPCCleaners
from autoclave.lifecycle.reserve import settle
from autoclave.lifecycle.transitions import Cause, swap
from autoclave.objects.base import RequestContext
from autoclave.placement.records import Inventory, Provider
from autoclave.rpc.inprocess import InProcessTransport
from autoclave.rules.device_lifecycle import Actor, ARQState, DeviceState, Event
from autoclave.services.hosts import host_paths
from autoclave.simulator.drive_spec import MIB, DriveSpec
from autoclave.simulator.functions import FunctionSpec
from autoclave.simulator.host import SimulatedHost
from autoclave.testing.placement import FakePlacement
from autoclave.testing.placement.faults import Faults
from autoclave.testing.ports import HeldCasts
from autoclave.virt.domains import Domains, SimulatedDomains
from dbfixtures import sqlite_database

HOST = "host-1"
SANITIZING = "0000:41:00.0"
ZEROING = "0000:42:00.0"
SECRET = b"the last guest's secret "
PATIENCE = 60.0
"""Seconds after which what a test waits for is taken for never."""


def sanitizing_drive(address: str = SANITIZING, serial: str = "SER-A", **features: Any) -> DriveSpec:
    """A drive that is erased by sanitize."""
    wanted = {"block": True, "namespace_management": True, "sanitize_seconds": 0.1, "size_bytes": 4 * MIB}
    return DriveSpec(address, serial, **{**wanted, **features})


def zeroing_drive(address: str = ZEROING, serial: str = "SER-B", **features: Any) -> DriveSpec:
    """A drive that can only be zeroed."""
    return DriveSpec(address, serial, **{"size_bytes": 4 * MIB, **features})


class AgentWorld(AgentProcesses):
    """The world around one agent; the agent may be ended and begun again in it."""

    def __init__(
        self,
        tmp_path: Path,
        drives: Sequence[DriveSpec] | None = None,
        functions: Sequence[FunctionSpec] = (),
        *,
        service: Any = None,
    ) -> None:
        """:param service: the Placement; None for the double."""
        super().__init__()
        self.tmp_path = tmp_path
        drives = (sanitizing_drive(), zeroing_drive()) if drives is None else drives
        self.sim = SimulatedHost.create(tmp_path / "host", HOST, drives, functions)
        self.db = sqlite_database(tmp_path)
        service = service or FakePlacement()
        self.faults = Faults(getattr(service, "app", service))
        self.placement = self.faults.client()
        self.onlooker = service.client()
        """Sees Placement as it is, whatever happens to the requests of others."""
        self.casts = HeldCasts()
        self.transport = InProcessTransport(casts=self.casts)
        self.ports = Ports(self.db, self.placement, RPCCleaners(self.transport))
        self.context = RequestContext.admin()
        self.overrides: dict[tuple[str | None, str], Any] = {}
        self.vendor: type[Driver] | None = None
        """The driver of a vendor, in the place of ours."""
        self.domains: Domains | None = SimulatedDomains(self.sim)
        """The guests that the agent sees; None: it has no virsh."""
        self.told_to_end = threading.Event()
        """An agent wants its process to end."""

    def configuration(self) -> Any:
        """The agent's."""
        return new_config(
            [],
            self.sim.conf_overrides(device_spec=True)
            | {
                ("agent", "data_dir"): str(self.tmp_path / "data"),
                ("agent", "rebind_timeout"): 0.2,
                ("placement", "create_root_provider"): True,
                ("nvme", "poll_interval"): 0.05,
                ("nvme", "command_timeout"): 60.0,
            }
            | self.overrides,
        )

    def build(self, ports: Ports | None = None) -> AgentManager:
        """An agent that has not begun. With *ports*, it sees the world through those."""
        conf = self.configuration()
        paths = host_paths(conf)
        loaded = [self.vendor(conf, paths)] if self.vendor else load_drivers(conf, paths)
        drivers = {driver.name: driver for driver in loaded}
        hints = read_hints(paths)
        agent = AgentManager(
            conf,
            ports or self.ports,
            HOST,
            drivers,
            end=self.told_to_end.set,
            users=FunctionUsers(paths, lambda _paths: self.domains),
            hints=hints,
        )
        self._agents.append(agent)
        return agent

    def start(self, ports: Ports | None = None) -> AgentManager:
        """An agent that has started as its service starts it."""
        return self.run(self.build(ports))

    def close(self) -> None:
        self.sim.clear_faults()
        self.end_all()
        workers = [thread for thread in threading.enumerate() if thread.name.startswith("clean-")]
        for worker in workers:
            worker.join(PATIENCE)
        self.transport.close()
        self.db.dispose()

    # What the rest of the system does

    def bind(self, address: str = SANITIZING) -> DeviceRecord:
        """Let an instance have the device and write to it; nobody's request holds it afterwards."""
        with self.db.write() as tx:
            bound = swap(tx, self.device(address), Event.BIND, Cause(Actor.CONDUCTOR, "conductor-1"))
        settle(self.db, self.placement, bound.uuid)
        self.sim.fill(address, SECRET)
        return bound

    def ask_to_clean(self, address: str = SANITIZING) -> None:
        """Send the message that an unbind or the operator sends, and deliver it."""
        self.ports.cleaners.clean(self.context, self.device(address))
        self.casts.deliver()

    def clean(self, address: str = SANITIZING) -> DeviceRecord:
        """Ask for a clean and wait for its outcome."""
        self.ask_to_clean(address)
        return self.outcome(address)

    def outcome(self, address: str = SANITIZING) -> DeviceRecord:
        """The device once no clean of it goes on, and Placement has been told if it can be told."""
        busy = (DeviceState.PENDING_CLEANING, DeviceState.CLEANING)
        self.wait(lambda: self.device(address).device_state not in busy, f"the clean of {address} ends")
        device = self.device(address)
        self.wait(lambda: not self.working(device.uuid), f"the worker of {address} retires")
        return self.device(address)

    def working(self, device_uuid: str) -> bool:
        return any(agent._cleanup.works_on(device_uuid) for agent in self._agents)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until *condition* holds."""
        end = time.monotonic() + PATIENCE
        while not condition():
            assert time.monotonic() < end, f"waited in vain until {what}"
            time.sleep(0.01)

    # What can be seen

    def find_device(self, address: str = SANITIZING) -> DeviceRecord | None:
        with self.db.read() as tx:
            found = device_rows.list_all(tx, hostname=HOST)
        return next((row for row in found if row.pci_address == address), None)

    def device(self, address: str = SANITIZING) -> DeviceRecord:
        found = self.find_device(address)
        assert found is not None, f"there is no device at {address}"
        return found

    def provider(self, address: str = SANITIZING) -> Provider:
        found = self.onlooker.find_provider(f"{HOST}_{address.upper()}")
        assert found is not None, f"there is no provider of {address}"
        return found

    def inventory(self, address: str = SANITIZING) -> Inventory:
        (record,) = self.onlooker.get_inventories(self.provider(address).uuid).records.values()
        return record

    def offered(self, address: str = SANITIZING) -> bool:
        """Whether Placement would give it to somebody."""
        provider = self.onlooker.find_provider(f"{HOST}_{address.upper()}")
        if provider is None:
            return False
        used = self.onlooker.get_usages(provider.uuid)
        records = self.onlooker.get_inventories(provider.uuid).records
        return any(record.total - record.reserved - used[name] > 0 for name, record in records.items())

    def assert_promises(self, address: str = SANITIZING) -> None:
        """Never bound dirty, never offered dirty: as the database, Placement and the drive are at this moment."""
        dirty = self.sim.find(address, SECRET)
        device = self.find_device(address)
        state = device.device_state if device else None
        assert not (dirty and state is DeviceState.AVAILABLE), "a bind would win a dirty drive"
        if not self.offered(address):
            return
        assert not dirty, "a dirty drive is offered"
        assert device is not None, "a drive is offered that nobody has recorded"
        if state is not DeviceState.AVAILABLE:
            assert state is DeviceState.ALLOCATED, f"a drive in {state} is offered"
            with self.db.read() as tx:
                holders = {arq.state for arq in arq_rows.active_of_device(tx, device.id)}
            assert holders & {ARQState.BIND_STARTED, ARQState.DELETING}, "no unfinished bind holds what is offered"

    def assert_withheld(self, address: str = SANITIZING) -> None:
        """The device is in error, and Placement does not offer it."""
        device = self.device(address)
        assert device.device_state is DeviceState.ERROR, device.state_reason
        assert self.inventory(address).reserved == 1

    def assert_offered(self, address: str = SANITIZING) -> None:
        """The device is available, and Placement offers it."""
        device = self.device(address)
        assert device.device_state is DeviceState.AVAILABLE, device.state_reason
        assert not device.release_pending
        assert self.inventory(address).reserved == 0


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AgentWorld]:
    """A host with a drive that sanitizes and one that is zeroed; the agent has not begun."""
    made = AgentWorld(tmp_path)
    yield made
    made.close()


@pytest.fixture
def one_drive(tmp_path: Path) -> Iterator[AgentWorld]:
    """As ``world``, with the drive that sanitizes alone: enough for most stories, and soon made."""
    made = AgentWorld(tmp_path, [sanitizing_drive()])
    yield made
    made.close()
