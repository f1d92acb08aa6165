"""Each service in a process of its own: RabbitMQ between them, PostgreSQL or MariaDB and Placement behind them."""

import json
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from processes import COMMAND, Cloud, Process, wait_until, written

from autoclave.rpc.port import AGENT_TOPIC
from autoclave.simulator.drive_spec import default_drives
from autoclave.simulator.host import SimulatedHost
from autoclave.testing.nova import FakeNova
from dbfixtures import SERVERS, server_database
from freeport import free_port
from nova_double import options as nova_options
from nova_double import served

pytestmark = pytest.mark.integration

DRIVE = "0000:41:00.0"
SECRET = b"the tenant's secret"


class Deployment:
    """An api, a conductor and an agent, one process each, and the Placement that they share.

    :param nova: where Nova's double is.
    """

    def __init__(self, directory: Path, database: str, broker: str, nova: str) -> None:
        self._directory = directory
        self._nova = nova
        name = f"host-{uuid.uuid4().hex[:12]}"
        self.host = SimulatedHost.create(directory / "host", name, default_drives(1))
        self._ports = {"api": free_port(), "placement": free_port()}
        self.api, self.placement = (f"http://127.0.0.1:{self._ports[service]}" for service in ("api", "placement"))
        self.cloud = Cloud(self.api, self.placement)
        self.config = directory / "autoclave.conf"
        self.config.write_text(self._configuration(database, broker))
        self._running: dict[str, Process] = {}

    @property
    def queues(self) -> list[str]:
        """The queues of this host, which the broker would keep for ever."""
        return [f"{AGENT_TOPIC}.{self.host.name}"]

    @property
    def log(self) -> str:
        return "\n".join(f"--- {name}\n{process.log}" for name, process in self._running.items())

    def start(self) -> None:
        script = Path(__file__).with_name("placement_process.py")
        database = str(self._directory / "placement.db")
        self._run("placement", [sys.executable, str(script), database, str(self._ports["placement"])])
        self._running["placement"].wait_for_http(self.placement)
        sync = [COMMAND, "db", "sync", "--config-file", str(self.config)]
        subprocess.run(sync, check=True, timeout=60)
        for service in ("conductor", "agent", "api"):
            self._run(service, [COMMAND, service, "--config-file", str(self.config)])
        self._running["api"].wait_for_http(f"{self.api}/v2/devices")

    def stop(self) -> dict[str, int]:
        """Tell all of them to stop; how each of them did."""
        codes = {}
        while self._running:
            name, process = self._running.popitem()
            codes[name] = process.terminate()
        return codes

    def wait_until_offered(self) -> None:
        wait_until(f"{DRIVE} is offered", lambda: self.cloud.offered(DRIVE), lambda: self.log)
        assert self.cloud.state(DRIVE) == "available"

    def _run(self, name: str, argv: list[str]) -> None:
        self._running[name] = Process(argv, self._directory / f"{name}.log")

    def _configuration(self, database: str, broker: str) -> str:
        options: dict[tuple[str | None, str], object] = {
            (None, "transport_url"): broker,
            ("database", "connection"): database,
            ("placement", "endpoint"): self.placement,
            ("placement", "auth_type"): "token",
            ("placement", "create_root_provider"): "true",
            **nova_options(self._nova),
            ("api", "auth_strategy"): "noauth",
            ("api", "port"): self._ports["api"],
            ("agent", "data_dir"): self._directory / "agent",
            ("agent", "periodic_interval"): 2,
            ("nvme", "poll_interval"): 0.2,
            **self.host.conf_overrides(),
            ("nvme", "device_spec"): json.dumps({"address": DRIVE}),
        }
        return written(options)


@pytest.fixture
def nova() -> FakeNova:
    return FakeNova()


@pytest.fixture(params=SERVERS)
def deployment(
    request: pytest.FixtureRequest, tmp_path: Path, rabbitmq_vhost_url: str, nova: FakeNova
) -> Iterator[Deployment]:
    import kombu

    with ExitStack() as stack:
        database, nova_url = stack.enter_context(server_database(request.param)), stack.enter_context(served(nova))
        made = Deployment(tmp_path, database, rabbitmq_vhost_url, nova_url)
        broker = stack.enter_context(
            kombu.Connection(rabbitmq_vhost_url.partition("?")[0].replace("rabbit", "amqp", 1))
        )
        stack.callback(lambda: [broker.default_channel.queue_delete(queue) for queue in made.queues])
        stack.callback(made.stop)
        made.start()
        yield made


def test_a_drive_makes_its_trip_through_three_processes(deployment: Deployment, nova: FakeNova) -> None:
    cloud, instance = deployment.cloud, str(uuid.uuid4())
    nova.hosts[instance] = None
    wait_until("the drive", lambda: cloud.device(DRIVE), lambda: deployment.log)
    deployment.wait_until_offered()

    cloud.bind(DRIVE, instance)
    assert cloud.state(DRIVE) == "allocated"
    assert cloud.reserved(DRIVE) == 1
    wait_until("Nova is told", lambda: nova.posts, lambda: deployment.log)
    nova.hosts[instance] = deployment.host.name
    [event] = wait_until("Nova takes it", lambda: nova.taken, lambda: deployment.log)
    assert (event["server_uuid"], event["status"]) == (instance, "completed")
    deployment.host.write(DRIVE, 4096, SECRET)

    cloud.unbind(instance)
    deployment.wait_until_offered()
    assert cloud.reserved(DRIVE) == 0
    assert not deployment.host.find(DRIVE, SECRET)
    assert deployment.stop() == dict.fromkeys(("api", "agent", "conductor", "placement"), 0)
