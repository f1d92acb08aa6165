#!/usr/bin/env python
"""The accelerator API at the size of a large cloud: lists, memory, and the trip of a request.

    benchmarks/api.py [--devices 10000] [--requests 10000]

Everything runs in this process, on SQLite files (synchronous=FULL) and the embedded Placement. Prints seconds (the
median and the best), counts of SQL statements and Placement requests, and ratios. What the project aims at on two
processors: 10,000 devices listed in 0.08 s and 10,000 deployables in 0.15 s; a cycle of create, bind and delete with
12 ms of its own work; a bind within 1.2 times the same, whatever number of requests stand; less than 150 MB of memory.
"""

import argparse
import gc
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from population import (
    CLASS,
    PER_HOST,
    TRAITS,
    Meter,
    Service,
    add_devices,
    add_standing_requests,
    counted_statements,
    new_database,
)

from autoclave.db.engine import Database
from autoclave.placement.embedded import EmbeddedPlacement
from autoclave.placement.provider_tree import whole_record

MIB = 1 << 20


@dataclass(frozen=True)
class Cost:
    """What one run took: seconds in all and in Placement, SQL statements, Placement requests."""

    seconds: float
    placement_seconds: float
    statements: int
    requests: int

    @property
    def own(self) -> float:
        """Seconds without Placement's."""
        return self.seconds - self.placement_seconds


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the accelerator API.")
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--requests", type=int, default=10_000, help="standing requests")
    parser.add_argument("--repeat", type=int, default=15, metavar="N", help="runs of each")
    given = parser.parse_args()
    if given.requests > given.devices:
        parser.error("--requests is more than --devices: each of them has a device")
    with tempfile.TemporaryDirectory(prefix="autoclave-benchmark-") as directory:
        measure(Path(directory), given.devices, given.requests, given.repeat)
    return 0


def measure(directory: Path, devices: int, standing: int, repeat: int) -> None:
    database = new_database(directory / "autoclave.db")
    providers = add_devices(database, devices + 1)  # the last is the one that is bound
    embedded = EmbeddedPlacement.start(directory / "placement.db")
    meter = Meter(embedded.app)
    service = Service(database, meter.client())
    offer(meter, providers[-1])
    gc.collect()
    gc.freeze()  # as the services do when they have started

    print(f"{devices} devices", flush=True)
    for path in ("/v2/devices", "/v2/deployables"):
        size = len(service.raw("GET", path))
        costs = [cost_of(database, meter, lambda path=path: service.raw("GET", path)) for _ in range(repeat)]  # type: ignore[misc]
        report(f"GET {path}, {size / MIB:.1f} MiB", costs)

    profile = [{"name": "one-gpu", "groups": [{f"resources:{CLASS}": "1"}]}]
    service.call("POST", "/v2/device_profiles", profile)
    trip = Trip(service, f"compute-{devices // PER_HOST}", providers[-1])
    trip.cycle()
    costs = [cost_of(database, meter, trip.cycle) for _ in range(repeat)]
    report("create, bind, delete", costs)
    alone = trip.bind_costs(database, meter, repeat)
    report("bind, no other request", alone)
    add_standing_requests(database, standing)
    beside = trip.bind_costs(database, meter, repeat)
    report(f"bind beside {standing} requests", beside)
    ratio = statistics.median(c.own for c in beside) / statistics.median(c.own for c in alone)
    print(f"{'bind beside them / bind alone':40} {ratio:.2f}")
    service.close()
    embedded.stop()
    database.dispose()
    memory = Path(__file__).with_name("memory.py")
    subprocess.run([sys.executable, str(memory), str(directory / "autoclave.db")], check=True)


def offer(meter: Meter, provider: str) -> None:
    """Put the one device that is bound into Placement."""
    client = meter.client()
    client.create_provider(provider, "the-device")
    client.ensure_resource_class(CLASS)
    client.ensure_traits(TRAITS)
    generation = client.put_traits(provider, client.get_traits(provider).generation, TRAITS)
    client.put_inventories(provider, generation, {CLASS: whole_record(1, 0)})


class Trip:
    """The trip of one request: created, bound, deleted."""

    def __init__(self, service: Service, host: str, provider: str) -> None:
        self._service = service
        self._values = {"/hostname": host, "/device_rp_uuid": provider}

    def cycle(self) -> None:
        self.delete(self.bind(self.create()))

    def create(self) -> str:
        made = self._service.call("POST", "/v2/accelerator_requests", {"device_profile_name": "one-gpu"})
        return str(made["arqs"][0]["uuid"])

    def bind(self, arq: str) -> str:
        values = {**self._values, "/instance_uuid": str(uuid.uuid4())}
        operations = [{"path": path, "op": "add", "value": value} for path, value in values.items()]
        self._service.call("PATCH", "/v2/accelerator_requests", {arq: operations})
        return arq

    def delete(self, arq: str) -> None:
        self._service.call("DELETE", "/v2/accelerator_requests", query=f"arqs={arq}")

    def bind_costs(self, database: Database, meter: Meter, repeat: int) -> list[Cost]:
        costs = []
        for _ in range(repeat):
            arq = self.create()
            costs.append(cost_of(database, meter, lambda arq=arq: self.bind(arq)))  # type: ignore[misc]
            self.delete(arq)
        return costs


def cost_of(database: Database, meter: Meter, work: Callable[[], object]) -> Cost:
    requests, in_placement = meter.requests, meter.seconds
    with counted_statements(database) as statements:
        began = time.perf_counter()
        work()
        seconds = time.perf_counter() - began
    return Cost(seconds, meter.seconds - in_placement, len(statements), meter.requests - requests)


def report(what: str, costs: list[Cost]) -> None:
    """One line: own seconds, Placement's apart."""
    own, whole = [cost.own for cost in costs], [cost.placement_seconds for cost in costs]
    typical = costs[len(costs) // 2]
    print(
        f"{what:40} {1000 * statistics.median(own):8.1f} ms (best {1000 * min(own):.1f}), Placement "
        f"{1000 * statistics.median(whole):.1f} ms; {typical.statements} statements, {typical.requests} requests"
    )


if __name__ == "__main__":
    sys.exit(main())
