"""One simulated host whose functions are for instances: a database, a Placement, and the host's provider tree."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from autoclave.agent.compute.functions import PCIBus
from autoclave.agent.compute.host import ComputeTree
from autoclave.agent.compute.pci_tree import PCITree
from autoclave.agent.compute.provider_config import ProviderAdditions
from autoclave.agent.device_tree import RootProvider
from autoclave.conf import new_config
from autoclave.db import pci
from autoclave.db.pci import FunctionRecord, ProviderRecord
from autoclave.lifecycle.ports import Ports, RPCCleaners
from autoclave.placement.records import Inventory, Provider
from autoclave.rpc.inprocess import InProcessTransport
from autoclave.rules.provider_config import ProviderConfig, parse
from autoclave.services.hosts import host_paths
from autoclave.simulator.drive_spec import DriveSpec
from autoclave.simulator.functions import FunctionSpec
from autoclave.simulator.host import SimulatedHost
from autoclave.testing.placement import FakePlacement
from autoclave.testing.placement.faults import Faults
from autoclave.testing.ports import HeldCasts
from autoclave.virt.driver import load_compute_driver
from dbfixtures import sqlite_database

HOST = "host-1"
PATIENCE = 300.0
"""Seconds for which a function may be one that cannot be looked at."""
GPU, NIC, CARD = "0000:81:00.0", "0000:83:00.0", "0000:82:00.0"
VFS = ("0000:82:02.0", "0000:82:02.1")
GPU_CLASS, NIC_CLASS, VF_CLASS = "CUSTOM_PCI_10DE_25B6", "CUSTOM_PCI_15B3_1015", "CUSTOM_PCI_8086_154C"
FUNCTIONS = (
    FunctionSpec(GPU, "10de", "25b6"),
    FunctionSpec(NIC, "15b3", "1015", class_code="020000"),
    FunctionSpec(CARD, "8086", "1572", class_code="020000"),
    *(FunctionSpec(address, "8086", "154c", class_code="020000", physfn=CARD) for address in VFS),
)
GPU_SPEC: Mapping[str, Any] = {"vendor_id": "10de", "product_id": "25b6", "one_time_use": True}
NIC_SPEC: Mapping[str, Any] = {"vendor_id": "15b3", "product_id": "1015"}
VF_SPEC: Mapping[str, Any] = {"vendor_id": "8086", "product_id": "154c"}
SPECS = (GPU_SPEC, NIC_SPEC, VF_SPEC)


class HostWorld:
    """``placement`` may be made to fail; ``onlooker`` sees it as it is."""

    def __init__(
        self,
        tmp_path: Path,
        functions: Sequence[FunctionSpec] = FUNCTIONS,
        *,
        drives: Sequence[DriveSpec] = (),
        service: Any = None,
        db: Any = None,
    ) -> None:
        self.tmp_path = tmp_path
        self.sim = SimulatedHost.create(tmp_path / "host", HOST, drives, functions)
        self.db = db or sqlite_database(tmp_path)
        service = service or FakePlacement()
        self.faults = Faults(getattr(service, "app", service))
        self.placement = self.faults.client()
        self.onlooker = service.client()
        self.casts = HeldCasts()
        self.transport = InProcessTransport(casts=self.casts)
        self.ports = Ports(self.db, self.placement, RPCCleaners(self.transport))
        self.specs: Sequence[Mapping[str, Any]] = SPECS
        self.config = ProviderConfig()
        self.provider_config_location = ""
        self.overrides: dict[tuple[str | None, str], Any] = {}

    def configuration(self) -> Any:
        return new_config(
            [],
            self.sim.conf_overrides()
            | {
                ("agent", "data_dir"): str(self.tmp_path / "data"),
                ("agent", "enabled_drivers"): [],
                ("placement", "create_root_provider"): True,
                ("compute", "enabled"): True,
                ("compute", "virt_driver"): "null",
                ("compute", "provider_config_location"): self.provider_config_location,
                ("pci", "device_spec"): [json.dumps(spec) for spec in self.specs],
            }
            | self.overrides,
        )

    def configure(self, text: str) -> None:
        """The provider config of the next tree."""
        self.config = parse({"operator.yaml": text})

    def tree(self, ports: Ports | None = None, driver: Any = None) -> ComputeTree:
        """What an agent that has just started keeps of the tree."""
        conf, ports = self.configuration(), ports or self.ports
        return ComputeTree(
            ports,
            RootProvider(ports.placement, HOST, create=True),
            driver or load_compute_driver(conf),
            PCITree(ports, PCIBus(conf, host_paths(conf)), HOST, unreadable_patience=PATIENCE),
            ProviderAdditions(ports, self.config, HOST),
            host=HOST,
        )

    def synced(self) -> ComputeTree:
        """A tree as it is when nothing is left to do."""
        made = self.tree()
        made.sync(starting=True)
        made.sync()
        return made

    def close(self) -> None:
        self.transport.close()
        self.db.dispose()

    # What can be seen

    def provider(self, address: str = GPU) -> Provider:
        found = self.onlooker.find_provider(f"{HOST}_{address.upper()}")
        assert found is not None, f"there is no provider of {address}"
        return found

    def records(self, address: str = GPU) -> Mapping[str, Inventory]:
        return self.onlooker.get_inventories(self.provider(address).uuid).records

    def reserved(self, address: str = GPU) -> int:
        (record,) = self.records(address).values()
        return record.reserved

    def offered(self, address: str = GPU) -> int:
        """How much of it Placement would give away."""
        found = self.onlooker.find_provider(f"{HOST}_{address.upper()}")
        if found is None:
            return 0
        used = self.onlooker.get_usages(found.uuid)
        records = self.onlooker.get_inventories(found.uuid).records
        return sum(max(0, each.total - each.reserved - used[name]) for name, each in records.items())

    def find_row(self, address: str = GPU) -> ProviderRecord | None:
        with self.db.read() as tx:
            return next((row for row in pci.providers(tx, HOST) if row.address == address), None)

    def row(self, address: str = GPU) -> ProviderRecord:
        found = self.find_row(address)
        assert found is not None, f"there is no row of {address}"
        return found

    def function(self, address: str = GPU) -> FunctionRecord:
        with self.db.read() as tx:
            return next(each for each in pci.functions(tx, HOST) if each.address == address)

    def by_hand(self, reserved: int, address: str = GPU) -> None:
        """What an operator writes in Placement."""
        uuid = self.provider(address).uuid
        present = self.onlooker.get_inventories(uuid)
        records = {
            name: Inventory(each.total, reserved, each.min_unit, each.max_unit, each.step_size, each.allocation_ratio)
            for name, each in present.records.items()
        }
        self.onlooker.put_inventories(uuid, present.generation, records)


@pytest.fixture
def host_world(tmp_path: Path) -> Iterator[HostWorld]:
    made = HostWorld(tmp_path)
    yield made
    made.close()
