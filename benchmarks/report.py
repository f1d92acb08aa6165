#!/usr/bin/env python
"""What an agent's report costs when nothing has changed since the last one, by the number of its devices.

    benchmarks/report.py [COUNT …]

One agent with a driver that reports so many GPUs, on an SQLite file and the embedded Placement. Prints what the first
report of all of them took, and then a period in which nothing is new: its seconds, its SQL statements
and its Placement requests. The project promises 10 statements at most and 1 request, whatever the number.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from population import Meter, counted_statements, new_database

from autoclave.agent.manager import AgentManager
from autoclave.conf import new_config
from autoclave.drivers.base import AttachHandle, DiscoveredDevice, Driver
from autoclave.hardware.host import HostPaths
from autoclave.lifecycle.ports import Ports, RPCCleaners
from autoclave.placement.embedded import EmbeddedPlacement
from autoclave.rpc.inprocess import InProcessTransport
from autoclave.rules.pci_address import PCIAddress

PERIODS = 9


class Reporting(Driver):
    """Reports GPUs, and takes no time for it."""

    name = "reporting_driver"
    count: ClassVar[int]

    def discover(self) -> Sequence[DiscoveredDevice]:
        """As many as it was told."""
        return [_gpu(PCIAddress.parse(f"{number >> 8:04x}:{number & 255:02x}:00.0")) for number in range(self.count)]


def _gpu(address: PCIAddress) -> DiscoveredDevice:
    return DiscoveredDevice(
        pci_address=str(address),
        device_type="GPU",
        vendor="10de",
        product="20b5",
        resource_class="CUSTOM_GPU",
        traits=["CUSTOM_GPU_A100"],
        attach_handles=[AttachHandle("PCI", address.as_attach_info(), str(address))],
    )


def measure(directory: Path, count: int) -> None:
    database = new_database(directory / "autoclave.db")
    embedded = EmbeddedPlacement.start(directory / "placement.db")
    meter = Meter(embedded.app)
    transport = InProcessTransport()
    settings = {("agent", "data_dir"): str(directory / "data"), ("placement", "create_root_provider"): True}
    conf = new_config([], settings)
    Reporting.count = count
    driver = Reporting(conf, HostPaths())
    ports = Ports(database, meter.client(), RPCCleaners(transport))
    agent = AgentManager(conf, ports, "host-1", {driver.name: driver}, end=sys.exit)
    agent.init_host()
    began = time.perf_counter()
    agent.start()
    first = time.perf_counter() - began
    agent.period()  # looks at what the first one wrote
    seconds = []
    for _ in range(PERIODS):
        requests = meter.requests
        with counted_statements(database) as statements:
            began = time.perf_counter()
            agent.period()
            seconds.append(time.perf_counter() - began)
        requests = meter.requests - requests
    print(
        f"{count:6} devices: first report {first:7.2f} s; unchanged: {1000 * statistics.median(seconds):7.1f} ms, "
        f"{len(statements)} statements, {requests} Placement request(s)",
        flush=True,
    )
    agent.stop()
    transport.close()
    embedded.stop()
    database.dispose()


def main() -> None:
    for count in [int(text) for text in sys.argv[1:]] or [1, 10, 100, 1000]:
        with tempfile.TemporaryDirectory(prefix="autoclave-benchmark-") as directory:
            measure(Path(directory), count)


if __name__ == "__main__":
    main()
