"""An agent of RPC 1.0, which cannot clean, beside services of this release; then it is upgraded (NVMe specification).

On both transports: within one process, and over RabbitMQ.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import falcon.testing
import pytest
from agentworld import HOST, SANITIZING, SECRET, AgentWorld, sanitizing_drive
from tenant import Tenant

from autoclave.agent.manager import AgentManager
from autoclave.api.app import create_app
from autoclave.conf import new_config
from autoclave.db.tables import DeviceType, devices
from autoclave.lifecycle.ports import Ports, RPCCleaners
from autoclave.rpc.inprocess import InProcessTransport
from autoclave.rpc.messaging import MessagingTransport
from autoclave.rpc.port import AGENT_TOPIC, Transport
from autoclave.rules.device_lifecycle import DeviceState
from autoclave.rules.reclaim import Reclaim
from autoclave.services.service import remote_versions, version_caps
from autoclave.testing.ports import HeldCasts


class MixedCloud(AgentWorld):
    """A host whose agent is of one release or the other; the other services are of this one."""

    def __init__(self, tmp_path: Path, broker: str | None) -> None:
        super().__init__(tmp_path, [sanitizing_drive()])
        self._broker = broker
        self.pin(None)

    def pin(self, level: str | None) -> None:
        """``[upgrade_levels] agent`` of the services; they start again."""
        overrides: dict[tuple[str | None, str], Any] = {("api", "auth_strategy"): "noauth"}
        if level is not None:
            overrides["upgrade_levels", "agent"] = level
        if self._broker is not None:
            overrides[None, "transport_url"] = self._broker
        self.conf = new_config([], overrides)
        caps, said = version_caps(self.conf), remote_versions(self.db)
        self.transport.close()
        self.casts = HeldCasts()
        self.transport = (
            MessagingTransport(self.conf, version_caps=caps, remote_version=said)  # type: ignore[assignment]
            if self._broker is not None
            else InProcessTransport(casts=self.casts, version_caps=caps, remote_version=said)
        )
        self.ports = Ports(self.db, self.placement, RPCCleaners(self.transport))

    def deliver(self) -> None:
        """What waits within this process; RabbitMQ delivers by itself."""
        while self.casts.pending:
            self.casts.deliver()

    def start_old(self) -> AgentManager:
        """An agent that discovers, and speaks RPC 1.0."""
        self.overrides["agent", "rpc_version_cap"] = "1.0"
        agent = self.start()
        assert agent.rpc_version == "1.0"
        return agent

    def start_new(self) -> AgentManager:
        del self.overrides["agent", "rpc_version_cap"]
        return self.start()

    def end(self, agent: AgentManager) -> None:
        server = self._server
        super().end(agent)
        if server is not None:
            server.wait()  # or its consumer would go on taking the messages of the next

    def instance_comes_and_goes(self) -> None:
        tenant = Tenant(self)
        tenant.bind()
        tenant.write()
        tenant.delete()
        tenant.give_up()
        self.deliver()

    def ask_api_to_clean(self) -> falcon.testing.Result:
        """``POST /v2/devices/{uuid}/clean``."""
        transport: Transport = self.transport
        app = create_app(self.conf, self.ports, transport)
        client = falcon.testing.TestClient(lambda environ, start: app(environ, start))
        answer = client.simulate_post(
            f"/v2/devices/{self.device().uuid}/clean",
            headers={"OpenStack-API-Version": "accelerator 2.5"},
            host="localhost",
        )
        self.deliver()
        return answer


@pytest.fixture(params=["in-process", pytest.param("rabbitmq", marks=pytest.mark.integration)])
def cloud(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MixedCloud]:
    broker = request.getfixturevalue("rabbitmq_vhost_url") if request.param == "rabbitmq" else None
    made = MixedCloud(tmp_path, broker)
    yield made
    made.close()


def test_a_drive_of_an_old_agent_goes_to_error_and_is_cleaned_once_the_agent_is_upgraded(cloud: MixedCloud) -> None:
    old = cloud.start_old()
    cloud.instance_comes_and_goes()
    cloud.assert_withheld()
    reason = cloud.device().state_reason
    assert reason is not None
    assert f"{AGENT_TOPIC} at {HOST} speaks RPC 1.0, not 1.1: upgrade it" in reason

    answer = cloud.ask_api_to_clean()
    assert answer.status_code == 400
    assert "does not support cleaning" in answer.text
    assert "speaks RPC 1.0" in answer.text
    cloud.assert_withheld()

    cloud.end(old)
    cloud.start_new()
    cloud.assert_withheld()
    assert cloud.ask_api_to_clean().status_code == 202
    cloud.wait(lambda: cloud.device().device_state is not DeviceState.ERROR, "the message arrives")
    cloud.outcome()
    cloud.assert_offered()
    assert not cloud.sim.find(SANITIZING, SECRET)


def test_a_device_that_is_not_cleaned_needs_no_new_agent(cloud: MixedCloud) -> None:
    cloud.start_old()
    with cloud.db.write() as tx:
        tx.execute(devices.update().values(type=DeviceType.FPGA, reclaim=Reclaim.NONE))
    cloud.instance_comes_and_goes()
    cloud.assert_offered()


def test_a_drive_of_an_agent_that_is_dead_waits_for_it_and_is_no_error(cloud: MixedCloud) -> None:
    agent = cloud.start()
    cloud.end(agent)
    cloud.instance_comes_and_goes()
    assert cloud.device().device_state is DeviceState.ALLOCATED
    assert not cloud.offered()
    cloud.start()
    cloud.outcome()
    cloud.assert_offered()
    assert not cloud.sim.find(SANITIZING, SECRET)


def test_a_pinned_version_is_kept_to_although_the_agent_is_upgraded(cloud: MixedCloud) -> None:
    agent = cloud.start()
    cloud.end(agent)
    cloud.pin("1.0")
    cloud.start()
    cloud.instance_comes_and_goes()
    cloud.assert_withheld()
    assert "raise [upgrade_levels]" in (cloud.device().state_reason or "")
    assert cloud.ask_api_to_clean().status_code == 400
