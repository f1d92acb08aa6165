"""What services leave in the broker when they stop: no more after many restarts than after one."""

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import amqp
import amqp.exceptions
import kombu
import pytest
from oslo_config import cfg

from autoclave.conf import new_config
from autoclave.exceptions import RPCUnavailable
from autoclave.lifecycle.ports import Ports, RPCCleaners
from autoclave.objects.base import RequestContext
from autoclave.rpc.messaging import MessagingTransport
from autoclave.rpc.port import AGENT_TOPIC, CONDUCTOR_TOPIC, Transport
from autoclave.services.service import Service
from autoclave.services.workers import AgentService, ConductorService
from autoclave.simulator.drive_spec import default_drives
from autoclave.simulator.host import SimulatedHost
from autoclave.testing.placement import FakePlacement
from dbfixtures import sqlite_database

pytestmark = pytest.mark.integration

RESTARTS = 3

Make = Callable[[MessagingTransport], Service]


class Broker:
    """The queues that this process has ever declared, and which of them there still are."""

    def __init__(self, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.url = url
        self.declared: set[str] = set()
        declare = amqp.Channel.queue_declare

        def noted(channel: Any, queue: str = "", *arguments: Any, **options: Any) -> Any:
            answer = declare(channel, queue, *arguments, **options)
            self.declared.add(answer.queue if answer else queue)
            return answer

        monkeypatch.setattr(amqp.Channel, "queue_declare", noted)

    @contextmanager
    def channel(self) -> Iterator[Any]:
        with kombu.Connection(self.url.partition("?")[0].replace("rabbit", "amqp", 1)) as connection:
            yield connection.channel()

    def left(self) -> set[str]:
        """Those declared that are still there and do not vanish by themselves."""
        return {name for name in list(self.declared) if not name.startswith("reply_") and self._exists(name)}

    def _exists(self, name: str) -> bool:
        try:
            with self.channel() as channel:
                channel.queue_declare(name, passive=True)
        except amqp.exceptions.NotFound:
            return False
        return True


@pytest.fixture
def broker(rabbitmq_vhost_url: str, monkeypatch: pytest.MonkeyPatch) -> Broker:
    return Broker(rabbitmq_vhost_url, monkeypatch)


@pytest.fixture
def host(tmp_path: Path, broker: Broker) -> Iterator[SimulatedHost]:
    name = f"host-{uuid.uuid4().hex[:12]}"
    yield SimulatedHost.create(tmp_path / "host", name, default_drives(1))
    with broker.channel() as channel:
        channel.queue_delete(f"{AGENT_TOPIC}.{name}")


@pytest.fixture
def conf(tmp_path: Path, broker: Broker, host: SimulatedHost) -> cfg.ConfigOpts:
    overrides = {
        **host.conf_overrides(device_spec=True),
        (None, "transport_url"): broker.url,
        ("agent", "data_dir"): str(tmp_path / "agent"),
        ("placement", "create_root_provider"): True,
        ("conductor", "rpc_timeout"): 60,
    }
    return new_config((), overrides)


@pytest.fixture
def make(tmp_path: Path, conf: cfg.ConfigOpts) -> Iterator[dict[str, Callable[[Transport, str], Service]]]:
    database = sqlite_database(tmp_path)
    placement = FakePlacement().client()

    def ports(transport: Transport) -> Ports:
        return Ports(database, placement, RPCCleaners(transport))

    yield {
        "conductor": lambda transport, name: ConductorService(conf, ports(transport), transport, name),
        "agent": lambda transport, name: AgentService(conf, ports(transport), transport),
    }
    database.dispose()


@pytest.mark.parametrize("service", ["conductor", "agent"])
def test_many_restarts_of_a_service_leave_no_more_queues_than_one(
    broker: Broker, conf: cfg.ConfigOpts, host: SimulatedHost, make: Any, service: str
) -> None:
    left = []
    for run in range(RESTARTS):
        transport = MessagingTransport(conf)
        running = make[service](transport, f"{service}-{run}")
        running.start()
        running.stop()
        transport.close()
        left.append(broker.left())
    topic, server = {"conductor": (CONDUCTOR_TOPIC, "any"), "agent": (AGENT_TOPIC, host.name)}[service]
    assert left == [{topic, f"{topic}.{server}"}] * RESTARTS
    assert len(broker.declared) > 2, "the queue for broadcasts is not even seen"


def test_two_conductors_of_one_host_both_serve_and_one_goes_on_when_the_other_stops(
    broker: Broker, conf: cfg.ConfigOpts, host: SimulatedHost, make: Any
) -> None:
    transports = [MessagingTransport(conf) for _ in range(3)]
    conductors = [make["conductor"](transport, f"conductor-{n}") for n, transport in enumerate(transports[:2])]
    client = transports[2].client(CONDUCTOR_TOPIC, version="1.0")

    def ask() -> None:
        client.call(RequestContext.admin(), "arq_delete_for_instance", instance_uuid=str(uuid.uuid4()))

    for conductor in conductors:
        conductor.start()
    for _ in range(4):
        ask()
    conductors[0].stop()
    for _ in range(4):
        ask()
    conductors[1].stop()
    for transport in transports:
        transport.close()


def test_a_service_without_a_broker_names_the_option_and_keeps_its_password(
    conf: cfg.ConfigOpts, host: SimulatedHost, make: Any
) -> None:
    conf.set_override("transport_url", "rabbit://guest:secret@127.0.0.1:1/vhost")
    transport = MessagingTransport(conf)
    said = r"^\[DEFAULT\] transport_url: rabbit://guest:\*\*\*@127.0.0.1:1/vhost cannot be used: .*; check that"
    with pytest.raises(RPCUnavailable, match=said):
        make["conductor"](transport, "conductor").start()
    transport.close()
