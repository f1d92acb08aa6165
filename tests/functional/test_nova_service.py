"""A conductor's service with a Nova on a socket: what a bind waits for, and what a configuration must say."""

import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from agentworld import SANITIZING, AgentWorld
from tenant import Tenant

from autoclave.conf import new_config
from autoclave.db import arqs
from autoclave.exceptions import InvalidConfiguration
from autoclave.nova.client import http_adapter
from autoclave.rpc.conductor_api import ConductorAPI
from autoclave.rules.device_lifecycle import ARQState
from autoclave.services.workers import ConductorService
from autoclave.testing.nova import FakeNova, FakeServer
from autoclave.testing.placement.faults import Faults
from nova_double import options, served


@contextmanager
def conductor_service(world: AgentWorld, said: dict[tuple[str | None, str], Any]) -> Iterator[None]:
    service = ConductorService(new_config([], said), world.ports, world.transport, "conductor-1")
    service.start()
    try:
        yield
    finally:
        service.stop()


def bind(world: AgentWorld, tenant: Tenant) -> None:
    """As the API asks for it, from any conductor."""
    ConductorAPI(world.transport).arq_bind(world.context, tenant.requests)


def owed(world: AgentWorld) -> int:
    with world.db.read() as tx:
        return arqs.count(tx)


def test_a_bind_does_not_wait_for_a_nova_that_hangs(one_drive: AgentWorld) -> None:
    one_drive.start()
    nova, reached, let_go = FakeNova(), threading.Event(), threading.Event()
    tenant = Tenant(one_drive, SANITIZING)
    nova.hosts[tenant.instance] = "compute-1"

    def hangs(environ: Any, start: Any) -> Iterable[bytes]:
        reached.set()
        let_go.wait(60)
        return nova(environ, start)

    with served(hangs) as url, conductor_service(one_drive, options(url, timeout=60)):
        try:
            bind(one_drive, tenant)  # returns, though Nova answers nobody before the end
            assert tenant.states() == {ARQState.BOUND}
            assert reached.wait(60), "Nova is told at once, not by the next sweep"
            assert owed(one_drive) == 1
        finally:
            let_go.set()
        one_drive.wait(lambda: owed(one_drive) == 0, "Nova has been told")
    assert [event["tag"] for event in nova.taken] == tenant.arqs


def test_an_instance_that_gets_its_host_after_the_bind_is_told_without_waiting_for_the_sweep(
    one_drive: AgentWorld,
) -> None:
    one_drive.start()
    nova = FakeNova()
    tenant = Tenant(one_drive, SANITIZING)
    nova.hosts[tenant.instance] = None
    never = {("conductor", "sweep_interval"): 86400.0}
    with served(nova) as url, conductor_service(one_drive, options(url) | never):
        bind(one_drive, tenant)
        one_drive.wait(lambda: bool(nova.posts), "Nova has been told for the first time")
        nova.hosts[tenant.instance] = "compute-1"
        one_drive.wait(lambda: bool(nova.taken), "Nova has been told again")


def test_a_conductor_without_a_nova_owes_it_nothing(one_drive: AgentWorld) -> None:
    one_drive.start()
    tenant = Tenant(one_drive, SANITIZING)
    with conductor_service(one_drive, {}):
        bind(one_drive, tenant)
    assert tenant.states() == {ARQState.BOUND}
    assert owed(one_drive) == 0


@pytest.mark.parametrize(
    ("said", "missing"),
    [
        ({"auth_type": "password", "password": "x"}, "auth_url"),
        ({"auth_type": "password", "auth_url": "http://keystone/v3", "user_id": "u"}, "password"),
        ({"auth_type": "password", "auth_url": "http://keystone/v3", "password": "x"}, "username"),
        ({"auth_type": "admin_token", "token": "x"}, "endpoint_override"),
        ({"auth_type": "admin_token", "endpoint": "http://nova/v2.1"}, "token"),
        ({"auth_type": "none"}, "endpoint_override"),
        ({"auth_type": "v3applicationcredential", "auth_url": "http://k/v3"}, "application_credential_id"),
        ({"auth_type": "v3multifactor", "auth_url": "http://k/v3"}, "auth_methods"),
    ],
)
def test_a_nova_that_cannot_be_reached_with_what_is_configured_stops_the_conductor(
    one_drive: AgentWorld, said: dict[str, str], missing: str
) -> None:
    conf = new_config([], {("nova", name): value for name, value in said.items()})
    with pytest.raises(InvalidConfiguration, match=rf"\[nova\] {missing}: .*{said['auth_type']}"):
        ConductorService(conf, one_drive.ports, one_drive.transport, "conductor-1")


@pytest.mark.parametrize(
    "said",
    [
        {"auth_type": "password", "auth_url": "http://k/v3", "username": "autoclave", "password": "x"},
        {
            "auth_type": "v3applicationcredential",
            "auth_url": "http://k/v3",
            "application_credential_id": "i",
            "application_credential_secret": "s",
        },
        {"auth_type": "none", "endpoint": "http://nova/v2.1", "timeout": 3.0, "region_name": "one"},
        {"auth_type": "http_basic", "username": "u", "password": "p", "endpoint_override": "http://nova/v2.1"},
    ],
)
def test_each_way_to_authenticate_can_be_configured(said: dict[str, Any]) -> None:
    adapter = http_adapter(new_config([], {("nova", name): value for name, value in said.items()}))
    assert adapter.session.timeout == said.get("timeout", 10.0)
    assert adapter.service_type == "compute"
    assert adapter.interface == ["internal", "public"]
    assert adapter.region_name == said.get("region_name")


@pytest.fixture
def vanished(one_drive: AgentWorld) -> tuple[FakeNova, Tenant]:
    """Nova has deleted a server, and not asked for an end of its requests."""
    one_drive.start()
    nova, tenant = FakeNova(), Tenant(one_drive, SANITIZING)
    tenant.bind()
    tenant.give_up()
    nova.servers[tenant.instance] = FakeServer("demo", "DELETED")
    return nova, tenant


def test_a_conductor_gives_the_device_of_a_deleted_server_back(
    one_drive: AgentWorld, vanished: tuple[FakeNova, Tenant]
) -> None:
    nova, tenant = vanished
    with served(nova) as url, conductor_service(one_drive, options(url, orphan_patience=1)):
        one_drive.wait(lambda: not tenant.states(), "the requests are deleted")
        one_drive.wait(lambda: bool(one_drive.casts.pending), "the agent is asked to clean")
    one_drive.casts.deliver()
    one_drive.outcome()
    one_drive.assert_offered()


def test_a_conductor_told_not_to_look_for_deleted_servers_does_not(
    one_drive: AgentWorld, vanished: tuple[FakeNova, Tenant]
) -> None:
    nova, tenant = vanished
    asked = Faults(nova)
    with served(asked) as url, conductor_service(one_drive, options(url, orphan_patience=0)):
        time.sleep(0.3)  # without a pause between its rounds, it would have asked by now
    assert asked.calls == []
    assert tenant.states() == {ARQState.BOUND}
