"""One machine with ``autoclave up`` on a simulated host, and an instance that uses its drives."""

import contextlib
import sqlite3
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from processes import COMMAND, Cloud, Process, wait_until

from autoclave.simulator.faults import Fault, FaultKind
from autoclave.simulator.host import Fleet, SimulatedHost
from freeport import free_port

SANITIZING, ZEROING = "0000:41:00.0", "0000:42:00.0"
SECRET = b"the tenant's secret"
SLOW = {
    SANITIZING: Fault(FaultKind.SANITIZE_SECONDS, 90),
    ZEROING: Fault(FaultKind.ZERO_BYTES_PER_SECOND, 1 << 20),
}
"""What makes an erase last long enough to be interrupted."""


class Machine:
    """What runs there, and what is done with it."""

    def __init__(self, directory: Path) -> None:
        self.data_dir = directory / "data"
        self._log = directory / "log"
        self._config = directory / "autoclave.conf"
        # What a kill leaves half done is taken over when its lease ends: soon, here.
        self._config.write_text("[conductor]\nbind_lease = 3\nsweep_interval = 0.5\n")
        port = free_port()
        self._bind = f"127.0.0.1:{port}"
        self.url = f"http://{self._bind}"
        self.cloud = Cloud(self.url, f"{self.url}/placement")
        self.up()

    @property
    def host(self) -> SimulatedHost:
        return Fleet(self.data_dir).host("sim-1")

    def up(self) -> None:
        argv = [COMMAND, "up", "--simulate", "1", "--data-dir", str(self.data_dir), "--bind", self._bind]
        argv += ["--config-file", str(self._config)]
        self.process = Process(argv, self._log)
        self.process.wait_for_hosts(self.url)

    def wait_for(self, address: str, state: str) -> None:
        """Wait for a state; whatever is seen on the way must keep the promises."""
        wait_until(f"{address} is {state}", lambda: self.cloud.state(address) == state, lambda: self.process.log)

    def wait_until_offered(self, address: str) -> None:
        """Wait until it is available, and Placement gives it away again."""
        self.wait_for(address, "available")
        wait_until(f"{address} is offered", lambda: self.cloud.offered(address), lambda: self.process.log)

    def use(self, address: str) -> None:
        """An instance gets the drive, writes to it, and is deleted."""
        instance = str(uuid.uuid4())
        self.cloud.bind(address, instance)
        self.host.write(address, 4096, SECRET)
        self.cloud.unbind(instance)

    def begin_erase(self, address: str) -> None:
        """As :meth:`use`; returns in the middle of the erase that follows."""
        self.host.set_fault(address, SLOW[address])
        self.use(address)
        self.wait_for(address, "cleaning")
        if address == SANITIZING:
            wait_until("a sanitize", lambda: self._sanitizing(address), lambda: self.process.log)
        else:
            wait_until("the zeroing", lambda: self._zeroing(address), lambda: self.process.log)

    def kill_once_taken(self, address: str, patch: Any) -> None:
        """Send the PATCH that binds the drive, and kill the process as soon as its first write is committed."""

        def bind() -> None:
            with contextlib.suppress(requests.ConnectionError):
                self.cloud.ask("PATCH", "/v2/accelerator_requests", patch)

        with contextlib.closing(sqlite3.connect(self.data_dir / "autoclave.db")) as database:
            binding = threading.Thread(target=bind)
            binding.start()
            query = "SELECT device_state FROM devices WHERE pci_address = ?"
            while binding.is_alive() and database.execute(query, (address,)).fetchone()[0].lower() == "available":
                pass
            self.process.kill()
            binding.join()

    def _sanitizing(self, address: str) -> bool:
        with self.host.drive(address) as drive:
            return drive.progress is not None

    def _zeroing(self, address: str) -> bool:
        return self.host.read(address, 4096, len(SECRET)) != SECRET


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    made.process.kill()
