"""A device whose server Nova deleted without a word is given back when that is sure, or waits for an operator."""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from agentworld import HOST, SANITIZING, ZEROING, AgentWorld, sanitizing_drive, zeroing_drive
from strikes import Death, death
from tenant import Tenant, conductor

from autoclave.api.admin.devices import view_of
from autoclave.conductor.binding import Unbinder
from autoclave.conductor.manager import ConductorManager
from autoclave.conductor.orphans import MOST_LOOKUPS, Orphans
from autoclave.db import device_views, history, orphans
from autoclave.db.columns import utcnow
from autoclave.db.tables import arqs
from autoclave.exceptions import ToolFailed
from autoclave.lifecycle.guests_seen import GuestsSeen
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.requests import record_unbind
from autoclave.lifecycle.transitions import Cause
from autoclave.rpc.agent_api import AgentAPI
from autoclave.rpc.port import AGENT_TOPIC
from autoclave.rules.device_lifecycle import Actor, ARQState, DeviceState
from autoclave.rules.pci_address import PCIAddress
from autoclave.testing.nova import FakeNova, FakeServer
from autoclave.testing.placement.faults import Faults, answer, answer_raw, before, refuse, time_out
from autoclave.testing.ports import GivenDomains
from autoclave.virt.domains import Domain
from nova_double import servers_within
from sqlcount import counted

pytestmark = pytest.mark.matrix

PATIENCE = timedelta(seconds=600)
THIRD = "0000:43:00.0"
COMMAND = f"`autoclave device take-back {HOST}/{SANITIZING}`"


class Cloud:
    """A server with a drive, another one of another project, and the conductors that ask Nova about them.

    :param alone: there is no other server.
    """

    def __init__(self, world: AgentWorld, *, alone: bool = False) -> None:
        world.start()
        self.world = world
        self.nova = FakeNova()
        self.faults = Faults(self.nova)
        self.now = utcnow()
        self.ports = replace(world.ports, clock=lambda: self.now)
        self.agents_patience = timedelta(days=1)
        self.project: str | None = "service"
        if not alone:
            self.other = self._server(ZEROING, "others")
        self.tenant = self._server(SANITIZING, "demo")
        self.conductor = self.looker()

    def _server(self, address: str, project: str) -> Tenant:
        made = Tenant(self.world, address)
        self.nova.servers[made.instance] = FakeServer(project)
        with self.world.db.write() as tx:
            tx.execute(arqs.update().where(arqs.c.uuid == made.arqs[0]).values(project_id=project))
        made.bind()
        made.write()
        return made

    def looker(self, ports: Ports | None = None) -> Orphans:
        """Another conductor; with *ports*, it sees the world through those."""
        seen = ports or self.ports
        guests = GuestsSeen(seen, AgentAPI(self.world.transport), self.agents_patience)
        unbinder = Unbinder(seen, "conductor-1", 240)
        return Orphans(seen, servers_within(self.faults, self.project), guests, unbinder, "conductor-1", PATIENCE)

    def delete(self, *, archived: bool = False) -> None:
        """Nova deletes the server while the api is away: what it has in Placement goes, its request does not."""
        if archived:
            self.conductor.look()  # a round in which the server was there
        self.tenant.give_up()
        self.nova.servers[self.tenant.instance].status = "DELETED"
        if archived:
            del self.nova.servers[self.tenant.instance]

    def forward(self, by: timedelta = PATIENCE) -> None:
        self.now += by

    def look_twice(self) -> None:
        self.conductor.look()
        self.forward()
        self.conductor.look()

    def row(self) -> Any:
        with self.world.db.read() as tx:
            return tx.execute(sa.select(arqs).where(arqs.c.uuid == self.tenant.arqs[0])).one()

    def waiting_for(self, address: str = SANITIZING) -> str | None:
        """What ``autoclave device list`` shows."""
        with self.world.db.read() as tx:
            [view] = device_views.of(tx, [self.world.device(address)])
        waits: str | None = view_of(view)["waiting_for"]
        return waits

    def assert_given_back(self) -> None:
        assert self.tenant.states() == set()
        self.world.assert_promises()
        while self.world.casts.pending:
            self.world.casts.deliver()
        self.world.outcome()
        self.world.assert_offered()
        self.world.assert_promises()
        assert self.waiting_for() is None

    def assert_kept(self) -> None:
        assert self.tenant.states() == {ARQState.BOUND}
        assert self.world.device().device_state is DeviceState.ALLOCATED
        assert not self.world.offered()

    def assert_waits(self, why: str) -> None:
        """The operator gets the one command, and why the device is not given back by itself."""
        self.assert_kept()
        waits = self.waiting_for()
        assert waits is not None
        assert why in waits
        assert COMMAND in waits
        assert self.waiting_for(ZEROING) is None
        assert self.other.states() == {ARQState.BOUND}


@pytest.fixture
def three_drives(tmp_path: Path) -> Iterator[AgentWorld]:
    made = AgentWorld(tmp_path, [sanitizing_drive(), zeroing_drive(), zeroing_drive(THIRD, "SER-C")])
    yield made
    made.close()


@pytest.fixture
def cloud(world: AgentWorld) -> Cloud:
    return Cloud(world)


# It is given back


@pytest.mark.parametrize("archived", [False, True])
def test_a_server_deleted_without_a_word_gives_its_drive_back(cloud: Cloud, archived: bool) -> None:
    cloud.delete(archived=archived)
    cloud.conductor.look()
    cloud.assert_kept()
    assert cloud.waiting_for() is None, "it goes on by itself"
    cloud.forward()
    cloud.conductor.look()
    cloud.assert_given_back()
    assert cloud.other.states() == {ARQState.BOUND}
    with cloud.world.db.read() as tx:
        told = [each for each in history.history(tx, cloud.world.device().uuid) if each.event == "take_back"]
    assert [each.actor for each in told] == ["conductor conductor-1"]
    assert cloud.tenant.instance in (told[0].reason or "")


def test_an_only_server_that_nova_records_as_deleted_gives_its_drive_back(one_drive: AgentWorld) -> None:
    """No other server proves that Nova shows all projects; the deleted row is proof enough."""
    cloud = Cloud(one_drive, alone=True)
    cloud.delete()
    cloud.look_twice()
    cloud.assert_given_back()


def test_servers_that_are_there_cost_one_request_of_nova(cloud: Cloud) -> None:
    cloud.conductor.look()
    assert [call.path for call in cloud.faults.calls] == ["/v2.1/servers"]
    cloud.assert_kept()


def test_without_a_bound_request_nova_is_not_asked(cloud: Cloud) -> None:
    cloud.other.delete()
    cloud.tenant.delete()
    cloud.conductor.look()
    assert cloud.faults.calls == []


# (a) The credentials are not shown to see all projects


def test_credentials_of_one_project_give_nothing_back(cloud: Cloud) -> None:
    """Nova answers 404 for every server of another project; that is no deletion."""
    cloud.nova.sees_all_projects = False
    cloud.look_twice()
    cloud.assert_kept()
    assert cloud.waiting_for() is None, "the server lives and has its allocation"

    cloud.delete()
    cloud.look_twice()
    cloud.assert_waits("403")


def test_an_absent_server_without_a_witness_gives_nothing_back(cloud: Cloud) -> None:
    """Nova lists servers of the credentials' own project only, or is another region's."""
    cloud.nova.servers[cloud.other.instance].project_id = "service"
    cloud.delete(archived=True)
    cloud.look_twice()
    cloud.assert_waits("may lack access to other projects")


def test_a_request_of_what_nova_never_showed_gives_nothing_back(cloud: Cloud) -> None:
    """Ironic or an operator may have bound it for a uuid of their own."""
    del cloud.nova.servers[cloud.tenant.instance]
    cloud.tenant.give_up()
    cloud.look_twice()
    cloud.assert_waits("Another service may have bound the request")


def test_a_nova_of_another_region_gives_nothing_back(cloud: Cloud) -> None:
    cloud.nova.servers = {str(uuid.uuid4()): FakeServer("theirs")}
    cloud.look_twice()
    cloud.assert_kept()
    assert "may name another cloud" in (cloud.waiting_for() or "")


def test_credentials_of_an_unknown_project_need_two_witnesses(cloud: Cloud) -> None:
    cloud.project = None
    cloud.conductor = cloud.looker()
    cloud.delete(archived=True)
    cloud.look_twice()
    cloud.assert_waits("may lack access to other projects")


def _lose_witness(cloud: Cloud) -> None:
    """Nova answers 500 for the other server in every round, and has archived the tenant's."""
    cloud.delete(archived=True)
    cloud.faults.add(answer(500), path=cloud.other.instance)
    cloud.look_twice()


@pytest.mark.parametrize("project", ["others", "third"])
def test_a_failing_witness_is_replaced_by_another(three_drives: AgentWorld, project: str) -> None:
    """The other witness is another server of the same project, or one of another project."""
    cloud = Cloud(three_drives)
    third = cloud._server(THIRD, project)
    if project == "others":  # of one project, the server that was bound last is asked first
        cloud.other = third
    _lose_witness(cloud)
    cloud.assert_given_back()


def test_a_failing_witness_without_another_gives_nothing_back(cloud: Cloud) -> None:
    _lose_witness(cloud)
    cloud.assert_waits("Nova is unavailable")


# (b) Two lookups a patience apart do not say deleted


def test_a_second_lookup_too_soon_gives_nothing_back(cloud: Cloud) -> None:
    cloud.delete()
    cloud.conductor.look()
    cloud.forward(PATIENCE - timedelta(seconds=1))
    cloud.conductor.look()
    cloud.looker().look()
    cloud.assert_kept()


@pytest.mark.parametrize("server", [FakeServer("demo"), FakeServer("demo", cell_down=True)])
def test_a_server_that_comes_back_begins_anew(cloud: Cloud, server: FakeServer) -> None:
    """Nova's database is restored, or its endpoint mended: what was absent is there, in the list or not."""
    cloud.delete()
    deleted = cloud.nova.servers[cloud.tenant.instance]
    cloud.conductor.look()
    cloud.forward()
    cloud.nova.servers[cloud.tenant.instance] = server
    cloud.conductor.look()
    assert cloud.row().orphan_since is None
    cloud.nova.servers[cloud.tenant.instance] = deleted
    cloud.conductor.look()
    cloud.assert_kept()


def test_a_soft_deleted_server_that_no_list_has_keeps_its_drive(cloud: Cloud) -> None:
    """Nova leaves the filter for soft-deleted servers out of account where its policy is changed."""
    cloud.nova.servers[cloud.tenant.instance].status = "SOFT_DELETED"
    body = b'{"servers": [{"id": "%s"}]}' % cloud.other.instance.encode()
    cloud.faults.add(answer_raw(200, body, "application/json"), path=r"/servers\?")
    cloud.look_twice()
    cloud.assert_kept()
    assert cloud.waiting_for() is None


@pytest.mark.parametrize(
    "server", [FakeServer("demo", "SOFT_DELETED"), FakeServer("demo", cell_down=True), FakeServer("demo", "ERROR")]
)
def test_a_server_that_may_come_back_keeps_its_drive(cloud: Cloud, server: FakeServer) -> None:
    """It is soft-deleted and can be restored, or the database of its cell does not answer."""
    cloud.nova.servers[cloud.tenant.instance] = server
    cloud.look_twice()
    cloud.assert_kept()
    assert cloud.waiting_for() is None


@pytest.mark.parametrize("effect", [refuse, time_out, answer(401), answer(403), answer(500), answer(503)])
@pytest.mark.parametrize("path", [r"/servers\?", r"/servers/[0-9a-f]{8}-", "detail"])
def test_a_nova_that_does_not_answer_gives_nothing_back(cloud: Cloud, effect: Any, path: str) -> None:
    cloud.delete()
    cloud.conductor.look()
    cloud.faults.add(effect, path=path)
    cloud.forward()
    cloud.conductor.look()
    cloud.assert_waits("Nova is unavailable")
    cloud.faults.clear()
    cloud.conductor.look()
    cloud.assert_given_back()


def test_a_404_that_is_not_novas_gives_nothing_back(cloud: Cloud) -> None:
    cloud.delete()
    cloud.conductor.look()
    cloud.faults.add(answer_raw(404, b"<h1>no such page</h1>"), path=cloud.tenant.instance)
    cloud.forward()
    cloud.conductor.look()
    cloud.assert_waits("404")


def test_a_nova_that_was_never_reached_shows_what_has_no_allocation(cloud: Cloud) -> None:
    cloud.faults.add(refuse)
    cloud.delete()
    cloud.look_twice()
    cloud.assert_waits("its server has no allocation for it")
    assert cloud.row().orphan_since is None


# (c) The agent does not see that no guest has it


@pytest.mark.parametrize("running", [True, False])
def test_a_drive_that_a_guest_has_is_not_given_back(cloud: Cloud, running: bool) -> None:
    domain = Domain(cloud.tenant.instance, "instance-00000001", running, frozenset({PCIAddress.parse(SANITIZING)}))
    cloud.world.domains = GivenDomains([domain])
    cloud.delete()
    cloud.look_twice()
    cloud.assert_waits("domain instance-00000001")
    cloud.world.domains = GivenDomains()
    cloud.conductor.look()
    cloud.assert_given_back()


def test_a_device_that_is_given_back_waits_for_nothing(cloud: Cloud) -> None:
    """The operator has taken it back, and no conductor has gone on with that yet."""
    cloud.world.domains = None
    cloud.delete()
    cloud.look_twice()
    cloud.assert_waits("the guests cannot be listed")
    record_unbind(cloud.ports, cloud.tenant.arqs, Cause(Actor.OPERATOR, "ann", "req-1"), delete=True)
    assert cloud.tenant.states() == {ARQState.DELETING}
    assert cloud.waiting_for() is None


@pytest.mark.parametrize("domains", [None, GivenDomains(failure=ToolFailed("virsh list failed", ["virsh"], 1))])
def test_guests_that_cannot_be_listed_keep_the_drive(cloud: Cloud, domains: GivenDomains | None) -> None:
    cloud.world.domains = domains
    cloud.delete()
    cloud.look_twice()
    cloud.assert_waits("the guests cannot be listed")


def test_a_drive_that_is_not_in_its_slot_is_not_given_back(cloud: Cloud) -> None:
    cloud.world.sim.pull(SANITIZING)
    cloud.delete()
    cloud.look_twice()
    cloud.assert_waits("it cannot be looked at")


def test_only_users_that_are_seen_keep_an_operator_from_it(cloud: Cloud) -> None:
    """A drive that was pulled can be taken back; one that a guest has cannot."""
    guests = GuestsSeen(cloud.ports, AgentAPI(cloud.world.transport), cloud.agents_patience)
    cloud.world.domains = GivenDomains(
        [Domain("1-2-3", "instance-1", running=False, functions=frozenset({PCIAddress.parse(ZEROING)}))]
    )
    cloud.world.sim.pull(SANITIZING)
    assert guests.users(HOST, [SANITIZING, "no function"]) == []
    [user] = guests.users(HOST, [SANITIZING, ZEROING])
    assert user == "domain instance-1 (1-2-3), which is off"


def test_a_silent_agent_is_not_asked_and_keeps_the_drive(cloud: Cloud) -> None:
    cloud.agents_patience = timedelta(seconds=300)
    cloud.conductor = cloud.looker()
    cloud.delete()
    cloud.look_twice()
    cloud.assert_waits("which must tell which guest has it, was last seen at 20")
    reason = cloud.row().orphan_reason
    cloud.forward()
    cloud.conductor.look()
    assert cloud.row().orphan_reason == reason, "no news, so nothing is written or logged"


def test_an_agent_that_is_gone_keeps_the_drive(cloud: Cloud) -> None:
    cloud.world._server.stop()
    cloud.delete()
    cloud.look_twice()
    cloud.assert_waits("cannot be asked who has it")


def test_an_agent_of_the_release_before_keeps_the_drive(world: AgentWorld) -> None:
    world.overrides["agent", "rpc_version_cap"] = "1.2"
    cloud = Cloud(world)
    cloud.delete()
    cloud.look_twice()
    cloud.assert_waits("speaks RPC 1.2, not 1.3: upgrade it")


def test_an_agent_that_fails_keeps_the_drive(cloud: Cloud) -> None:
    class Failing:
        def function_users(self, _context: Any, addresses: list[str]) -> None:
            raise RuntimeError(f"cannot look at {addresses}")

    cloud.world._server.stop()
    server = cloud.world.transport.serve(AGENT_TOPIC, HOST, Failing(), "1.3")
    server.start()
    cloud.delete()
    cloud.look_twice()
    cloud.assert_waits("cannot tell who has it")
    server.stop()


# Several conductors, and dead ones


def test_two_conductors_give_a_drive_back_once(cloud: Cloud) -> None:
    cloud.delete()
    cloud.conductor.look()
    cloud.forward()
    other = cloud.looker()
    cloud.faults.add(before(other.look), path="detail", times=1)
    cloud.conductor.look()
    cloud.assert_given_back()
    with cloud.world.db.read() as tx:
        told = [each.event for each in history.history(tx, cloud.world.device().uuid)]
    assert told.count("take_back") == told.count("unbind") == 1


def test_a_request_bound_anew_in_the_meantime_is_left_alone(cloud: Cloud) -> None:
    """Between the lookups and the end the request is unbound, and bound for another server."""
    cloud.delete()
    cloud.conductor.look()
    cloud.forward()

    def bind_anew() -> None:
        conductor(cloud.world).arq_unbind(cloud.world.context, cloud.tenant.arqs)
        cloud.world.casts.deliver()
        cloud.world.outcome()
        cloud.tenant.instance = str(uuid.uuid4())
        for request in cloud.tenant.requests:
            request["instance_uuid"] = cloud.tenant.instance
        cloud.tenant.bind()

    cloud.faults.add(before(bind_anew), path="detail", times=1)
    cloud.conductor.look()
    cloud.assert_kept()
    assert cloud.row().orphan_since is None


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_conductor_dead_while_it_gives_back_is_followed(cloud: Cloud, at: int, applied: bool) -> None:
    cloud.delete()
    cloud.conductor.look()
    cloud.forward()
    ports = replace(death(at, applied=applied).ports(cloud.world), clock=lambda: cloud.now)
    with pytest.raises(Death):
        cloud.looker(ports).look()
    cloud.forward(timedelta(seconds=300))
    ConductorManager(cloud.ports, "conductor-2", 240).sweep()
    cloud.looker().look()
    cloud.assert_given_back()


def test_many_vanished_servers_are_looked_up_in_turns(cloud: Cloud) -> None:
    servers = [str(uuid.UUID(int=number)) for number in range(MOST_LOOKUPS + 20)]
    rounds = [list(cloud.conductor._turns(servers, MOST_LOOKUPS)) for _ in range(2)]
    assert [len(each) for each in rounds] == [MOST_LOOKUPS, MOST_LOOKUPS]
    assert set(servers) == set(rounds[0]) | set(rounds[1])


def test_a_failing_lookup_keeps_no_other_server_waiting(cloud: Cloud) -> None:
    """Nova answers 500 for one server in every round. It is the first in the order of the lookups."""
    first, second = sorted((cloud.other, cloud.tenant), key=lambda each: each.instance)
    for each in (first, second):
        each.give_up()
        cloud.nova.servers[each.instance].status = "DELETED"
    cloud.faults.add(answer(500), path=first.instance)
    cloud.conductor.look()
    cloud.look_twice()
    assert first.states() == {ARQState.BOUND}
    assert second.states() == set()


def test_a_look_leaves_the_moment_of_a_request_alone(cloud: Cloud) -> None:
    """Clients see ``updated_at``; what Nova says of the server is no change of the request."""
    earlier: datetime = cloud.row().updated_at
    cloud.delete()
    cloud.conductor.look()
    assert cloud.row().orphan_since == cloud.now
    assert cloud.row().updated_at == earlier


def test_requests_noted_together_cost_one_statement(three_drives: AgentWorld) -> None:
    """The conditions of each request stay: one that is bound for another server in the meantime is left alone."""
    cloud = Cloud(three_drives)
    cloud._server(THIRD, "third")
    with cloud.world.db.read() as tx:
        requests = orphans.bound(tx)
    moved = requests[0]
    with cloud.world.db.write() as tx:
        tx.execute(arqs.update().where(arqs.c.uuid == moved.uuid).values(instance_uuid=str(uuid.uuid4())))
    with counted() as statements, cloud.world.db.write() as tx:
        orphans.note(tx, requests, None, "Nova is unavailable")
        orphans.note_seen(tx, requests)
    assert sum(each.startswith("UPDATE") for each in statements) == 2
    with cloud.world.db.read() as tx:
        noted = {each.uuid for each in orphans.bound(tx) if each.orphan_reason and each.server_seen}
    assert noted == {each.uuid for each in requests[1:]}
