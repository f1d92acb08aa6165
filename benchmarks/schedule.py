"""Scheduling instances that want several identical devices: benchmarks/schedule.py [--rounds N].

Prints what one claim costs on four hosts with eight devices each, and how many requests of Placement it takes.
"""

import argparse
import logging
import statistics
import sys
import tempfile
import time
import uuid
from collections import Counter
from datetime import timedelta
from pathlib import Path

import population

from autoclave.conductor.compute_hosts import ComputeHosts
from autoclave.conductor.scheduling import Scheduler
from autoclave.db import agents, hosts, instances
from autoclave.db.agents import AgentRecord
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.db.instances import InstanceRecord
from autoclave.lifecycle.ports import Ports, RPCCleaners
from autoclave.placement.client import PlacementClient
from autoclave.placement.embedded import EmbeddedPlacement
from autoclave.placement.records import Inventory
from autoclave.rpc.agent_api import AgentAPI
from autoclave.rpc.inprocess import InProcessTransport
from autoclave.rpc.port import AGENT_TOPIC
from autoclave.rules.flavor_image import Flavor
from autoclave.rules.pci_alias import PCIAlias
from autoclave.rules.pci_inventory import ALWAYS
from autoclave.rules.resource_request import build_request
from autoclave.testing.placement.faults import Faults

HOSTS, PER_HOST = 4, 8
CLASS = "CUSTOM_GPU"


def provider(
    client: PlacementClient, name: str, amounts: dict[str, int], traits: frozenset[str], root: str | None
) -> str:
    """A provider with inventory and traits; its uuid."""
    made = client.create_provider(str(uuid.uuid4()), name, root)
    records = {name: Inventory(total, 0, 1, total, 1, 1.0) for name, total in amounts.items()}
    generation = client.put_inventories(made.uuid, made.generation, records)
    client.put_traits(made.uuid, generation, traits)
    return made.uuid


def add_hosts(client: PlacementClient, database: Database, transport: InProcessTransport) -> None:
    """Four hosts with eight devices each, alive."""
    client.ensure_resource_class(CLASS)
    for number in range(HOSTS):
        name = f"host-{number}"
        room = {"VCPU": 256, "MEMORY_MB": 1048576, "DISK_GB": 10000}
        root = provider(client, name, room, frozenset({"COMPUTE_NODE"}), None)
        for slot in range(PER_HOST):
            provider(client, f"{name}_0000:81:{slot:02X}.0", {CLASS: 1}, ALWAYS, root)
        size = {"vcpus": 256, "memory_mb": 1048576, "local_gb": 10000}
        with database.write() as tx:
            hosts.report(tx, name, {"rp_uuid": root, "hypervisor_type": "null", "hypervisor_version": 1, **size})
            agents.register(tx, AgentRecord(name, "run", "1.2", utcnow(), utcnow()))
        transport.serve(AGENT_TOPIC, name, object(), "1.2").start()


def add_instance(database: Database) -> InstanceRecord:
    """An instance that waits for the scheduler."""
    instance_uuid = str(uuid.uuid4())
    row = {
        "uuid": instance_uuid,
        "name": "vm",
        "project_id": "project",
        "user_id": "user",
        "flavor": {},
        "image_uuid": str(uuid.uuid4()),
        "image": {},
        "metadata": {},
        "tags": [],
    }
    with database.write() as tx:
        instances.insert(tx, row)
        found = instances.get(tx, instance_uuid)
    assert found is not None
    return found


def main() -> int:
    """Measure, print, and fail only if something could not be scheduled."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5, help="claims of each kind; the median and the worst are told")
    rounds = parser.parse_args().rounds
    logging.disable(logging.INFO)
    with tempfile.TemporaryDirectory() as directory:
        embedded = EmbeddedPlacement.start(Path(directory) / "placement.db")
        database = population.new_database(Path(directory) / "autoclave.db")
        transport = InProcessTransport()
        faults = Faults(embedded.app)
        add_hosts(embedded.client(), database, transport)
        ports = Ports(database, faults.client(), RPCCleaners(transport))
        scheduler = Scheduler(ports, ComputeHosts(ports, AgentAPI(transport), timedelta(hours=1)))
        aliases = {"gpu": PCIAlias("gpu", CLASS)}
        print(f"{HOSTS} hosts with {PER_HOST} identical devices each, Placement embedded, SQLite file")
        for count in (0, 1, 2, 4, 5, 6, 8):
            specs = {"pci_passthrough:alias": f"gpu:{count}"} if count else {}
            request = build_request(Flavor("bench", 1, 512, 1, 0, 0, specs), {}, aliases)
            seconds = []
            faults.calls.clear()
            for _ in range(rounds):
                instance = add_instance(database)
                begun = time.perf_counter()
                scheduler.claim(instance, request, utcnow() + timedelta(minutes=10))
                seconds.append(time.perf_counter() - begun)
                embedded.client().delete_allocations(instance.uuid)
            asked = Counter(call.method for call in faults.calls)
            calls = ", ".join(f"{number / rounds:g} {method}" for method, number in sorted(asked.items()))
            middle, worst = statistics.median(seconds) * 1000, max(seconds) * 1000
            print(f"{count} devices: {middle:7.1f} ms (worst {worst:7.1f})   {calls}")
        transport.close()
        database.dispose()
        embedded.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
