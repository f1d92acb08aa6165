"""Nova is told how every bind ended: once if all goes well, again until it knows, and not for ever."""

import logging
import uuid
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa
from agentworld import SANITIZING, ZEROING, AgentWorld
from strikes import Death, death
from tenant import Tenant, conductor

from autoclave.conductor.manager import ConductorManager
from autoclave.conductor.nova_events import CLAIM, Teller
from autoclave.db import arqs as arq_rows
from autoclave.db import arqs as bind_events
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.db.tables import arqs
from autoclave.exceptions import BadRequest, Conflict
from autoclave.lifecycle.ports import Ports
from autoclave.rules.device_lifecycle import ARQState
from autoclave.testing.nova import FakeNova
from autoclave.testing.placement.faults import Faults, answer, before, lose_answer, refuse
from dbfixtures import make_arq, make_profile
from nova_double import client_within

pytestmark = pytest.mark.matrix

PATIENCE = 300


class Clock:
    """Now, until it is put forward."""

    def __init__(self) -> None:
        self.now = utcnow()

    def __call__(self) -> datetime:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


class Told:
    """Nova's double in a world, and who tells it."""

    def __init__(self, ports: Ports) -> None:
        self.nova = FakeNova()
        self.faults = Faults(self.nova)
        self.clock = Clock()
        self.ports = replace(ports, clock=self.clock, tells_nova=True)

    def teller(self, ports: Ports | None = None) -> Teller:
        """The teller of a conductor; with *ports*, it sees the world through those."""
        return Teller(ports or self.ports, client_within(self.faults), PATIENCE)

    def tell(self) -> float | None:
        return self.teller().tell()

    def owed(self) -> int:
        with self.ports.db.read() as tx:
            return bind_events.count(tx)

    def events(self) -> list[list[tuple[str, str, str]]]:
        """Every request that Nova has had: instance, ARQ and status of its events."""
        return [[(event["server_uuid"], event["tag"], event["status"]) for event in post] for post in self.nova.posts]

    def tenant(self, world: AgentWorld, *addresses: str, host: str | None = "compute-1", claim: bool = True) -> Tenant:
        made = Tenant(world, *addresses, claim=claim)
        self.nova.hosts[made.instance] = host
        return made


@pytest.fixture
def told(world: AgentWorld) -> Told:
    world.start()
    return Told(world.ports)


def completed(tenant: Tenant) -> list[tuple[str, str, str]]:
    return [(tenant.instance, arq, "completed") for arq in tenant.arqs]


def failed(tenant: Tenant) -> list[tuple[str, str, str]]:
    return [(tenant.instance, arq, "failed") for arq in tenant.arqs]


# What is told


def test_all_binds_of_one_request_are_told_in_one_request_to_nova(world: AgentWorld, told: Told) -> None:
    tenant = told.tenant(world, SANITIZING, ZEROING)
    tenant.bind(told.ports)
    assert told.tell() is None
    assert told.events() == [completed(tenant)]
    assert told.owed() == 0
    told.tell()
    assert len(told.nova.posts) == 1


def test_when_one_device_cannot_be_had_nova_is_told_once_that_all_binds_have_failed(
    world: AgentWorld, told: Told
) -> None:
    other = Tenant(world, ZEROING, claim=False)
    other.bind()
    tenant = told.tenant(world, SANITIZING, ZEROING, claim=False)
    with pytest.raises(Conflict):
        tenant.bind(told.ports)
    told.tell()
    assert told.events() == [failed(tenant)]


def test_a_second_request_for_an_instance_that_has_devices_tells_nova_nothing(world: AgentWorld, told: Told) -> None:
    tenant = told.tenant(world, SANITIZING)
    tenant.bind(told.ports)
    told.tell()
    second = Tenant(world, ZEROING)
    with pytest.raises(BadRequest, match="already has accelerator requests"):
        conductor(world, told.ports).arq_bind(
            world.context, [{**request, "instance_uuid": tenant.instance} for request in second.requests]
        )
    told.tell()
    assert told.events() == [completed(tenant)]


def test_a_second_request_after_one_that_failed_is_told_by_itself(world: AgentWorld, told: Told) -> None:
    Tenant(world, ZEROING, claim=False).bind()
    tenant = told.tenant(world, ZEROING, claim=False)
    with pytest.raises(Conflict):
        tenant.bind(told.ports)
    told.tell()
    second = Tenant(world, SANITIZING, claim=False)
    second.instance = tenant.instance
    for request in second.requests:
        request["instance_uuid"] = tenant.instance
    second.bind(told.ports)
    told.tell()
    assert told.events() == [failed(tenant), completed(second)]


def test_binds_for_two_instances_in_one_request_are_told_apart(world: AgentWorld, told: Told) -> None:
    one, two = told.tenant(world, SANITIZING), told.tenant(world, ZEROING)
    conductor(world, told.ports).arq_bind(world.context, one.requests + two.requests)
    told.tell()
    assert sorted(told.events()) == sorted([completed(one), completed(two)])


def test_a_bind_that_is_taken_back_for_a_dead_conductor_is_told_as_failed(world: AgentWorld, told: Told) -> None:
    tenant = told.tenant(world, SANITIZING)
    with pytest.raises(Death):
        tenant.bind(replace(death(2, applied=True).ports(world), tells_nova=True))
    told.tell()
    assert told.events() == []
    told.clock.forward(299)
    ConductorManager(told.ports, "conductor-2", 240).sweep()
    told.tell()
    assert told.events() == [failed(tenant)]


def test_without_a_nova_nothing_is_owed(world: AgentWorld, told: Told) -> None:
    tenant = Tenant(world, SANITIZING)
    tenant.bind()
    with pytest.raises(Conflict):
        Tenant(world, SANITIZING, claim=False).bind()
    assert told.owed() == 0


# When Nova does not take it


def test_an_instance_without_a_host_is_told_soon_after_it_has_one(world: AgentWorld, told: Told) -> None:
    tenant = told.tenant(world, SANITIZING, host=None)
    tenant.bind(told.ports)
    pause = told.tell()
    assert pause == 1
    told.tell()
    assert len(told.nova.posts) == 1, "not before it is due"
    told.nova.hosts[tenant.instance] = "compute-1"
    told.clock.forward(pause)
    assert told.tell() is None
    assert len(told.nova.taken) == 1


@pytest.mark.parametrize("effect", [refuse, answer(500), answer(503), answer(401)])
def test_whatever_nova_says_the_bind_stands_and_nova_is_told_again(world: AgentWorld, told: Told, effect: Any) -> None:
    told.faults.add(effect, times=3)
    tenant = told.tenant(world, SANITIZING)
    tenant.bind(told.ports)
    for _ in range(3):
        assert told.tell() is not None
        assert told.owed() == 1
        told.clock.forward(60)
    assert tenant.states() == {ARQState.BOUND}
    told.tell()
    assert told.events() == [completed(tenant)]
    assert told.owed() == 0


def test_when_the_answer_is_lost_nova_is_told_again(world: AgentWorld, told: Told) -> None:
    told.faults.add(lose_answer, times=1)
    tenant = told.tenant(world, SANITIZING)
    tenant.bind(told.ports)
    pause = told.tell()
    assert pause is not None
    told.clock.forward(pause)
    told.tell()
    assert told.events() == [completed(tenant)] * 2
    assert told.owed() == 0


def test_a_nova_that_is_away_is_asked_once_a_round_and_not_once_for_each_instance(
    world: AgentWorld, told: Told
) -> None:
    told.faults.add(refuse, times=1)
    one, two = told.tenant(world, SANITIZING), told.tenant(world, ZEROING)
    one.bind(told.ports)
    told.clock.forward(0.1)
    two.bind(told.ports)
    told.tell()
    assert len(told.faults.calls) == 1
    told.tell()
    assert told.events() == [completed(two)], "the one whose turn it is not waits"


def test_nova_is_asked_soon_then_seldom_and_in_the_end_no_more(
    world: AgentWorld, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    told.nova.hosts.clear()
    tenant = told.tenant(world, SANITIZING, host=None)
    tenant.bind(told.ports)
    begin = told.clock.now
    tries = []
    while (pause := told.tell()) is not None:
        tries.append((told.clock.now - begin).total_seconds())
        told.clock.forward(pause)
    assert tries[:4] == [0, 1, 2, 4]
    assert len(tries) < 15
    assert (told.clock.now - begin).total_seconds() < PATIENCE + 61
    assert told.owed() == 0
    assert len(told.nova.posts) == len(tries)
    [error] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert tenant.arqs[0] in error
    assert tenant.instance in error
    assert tenant.states() == {ARQState.BOUND}


def test_an_instance_that_nova_does_not_know_is_logged_and_not_asked_for_again(
    world: AgentWorld, told: Told, caplog: pytest.LogCaptureFixture
) -> None:
    tenant = Tenant(world, SANITIZING)
    tenant.bind(told.ports)
    assert told.tell() is None
    assert told.owed() == 0
    [error] = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert tenant.arqs[0] in error
    assert "role admin" in error


@pytest.mark.parametrize("end", ["arq_delete", "arq_unbind"])
def test_a_bind_that_was_taken_back_by_nova_itself_is_not_told(world: AgentWorld, told: Told, end: str) -> None:
    tenant = told.tenant(world, SANITIZING)
    tenant.bind(told.ports)
    getattr(conductor(world, told.ports), end)(world.context, tenant.arqs)
    assert told.owed() == 0
    told.tell()
    assert told.events() == []
    with world.db.read() as tx:
        assert tx.scalars(sa.select(arqs.c.event_due_at).where(arqs.c.event_due_at.is_not(None))).all() == []


# Deaths


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, 5))
def test_a_conductor_that_dies_at_any_write_of_a_bind_leaves_another_to_tell_how_it_ended(
    world: AgentWorld, told: Told, at: int, applied: bool
) -> None:
    tenant = told.tenant(world, SANITIZING)
    with pytest.raises(Death):
        tenant.bind(replace(death(at, applied=applied).ports(world), tells_nova=True))
    told.clock.forward(299)
    ConductorManager(told.ports, "conductor-2", 240).sweep()
    told.tell()
    begun = tenant.states() != {ARQState.INITIAL}
    outcome = completed(tenant) if tenant.states() == {ARQState.BOUND} else failed(tenant)
    assert told.events() == ([outcome] if begun else [])
    assert told.owed() == 0


TELLING_WRITES = 3
"""What is overdue; the claim; paid."""


def test_telling_writes_as_often_as_is_struck_below(world: AgentWorld, told: Told) -> None:
    told.tenant(world, SANITIZING).bind(told.ports)
    counting = death()
    told.teller(counting.database_ports(world)).tell()
    assert counting.calls == TELLING_WRITES


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("at", range(1, TELLING_WRITES + 1))
def test_a_conductor_that_dies_while_it_tells_leaves_another_to_tell(
    world: AgentWorld, told: Told, at: int, applied: bool
) -> None:
    tenant = told.tenant(world, SANITIZING)
    tenant.bind(told.ports)
    with pytest.raises(Death):
        told.teller(replace(death(at, applied=applied).database_ports(world), clock=told.clock)).tell()
    told.clock.forward(CLAIM.total_seconds())
    told.tell()
    twice = (at, applied) == (TELLING_WRITES, False)
    assert told.events() == [completed(tenant)] * (2 if twice else 1)
    assert told.owed() == 0


# Several conductors


def test_while_one_conductor_tells_another_does_not(world: AgentWorld, told: Told) -> None:
    told.faults.add(before(lambda: told.teller().tell()), times=1)
    tenant = told.tenant(world, SANITIZING)
    tenant.bind(told.ports)
    told.tell()
    assert told.events() == [completed(tenant)]


class Requests:
    """Rows of ARQs, on each engine."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.now = datetime(2026, 1, 1, microsecond=123456)
        self.instance = str(uuid.uuid4())

    def add(self, state: ARQState, *, owed: bool = True) -> str:
        values: dict[str, Any] = {"instance_uuid": self.instance, "state": state}
        with self.database.write() as tx:
            return make_arq(tx, **values, **(bind_events.owed(self.now) if owed else {})).uuid

    def claim(self, after: float = 0) -> list[str]:
        now = self.now + timedelta(seconds=after)
        with self.database.write() as tx:
            return [event.uuid for event in bind_events.claim(tx, self.instance, now, now + CLAIM)]


@pytest.fixture
def requests(database: Database) -> Requests:
    with database.write() as tx:
        make_profile(tx)
    return Requests(database)


def test_what_one_has_claimed_another_gets_after_the_claim_only(requests: Requests) -> None:
    both = [requests.add(ARQState.BOUND), requests.add(ARQState.BIND_FAILED)]
    assert requests.claim() == both
    assert requests.claim() == []
    assert requests.claim(after=CLAIM.total_seconds()) == both


def test_nobody_is_told_of_an_instance_of_which_a_bind_still_runs(requests: Requests) -> None:
    first = requests.add(ARQState.BIND_FAILED)
    running = requests.add(ARQState.BIND_STARTED, owed=False)
    assert requests.claim() == []
    with requests.database.write() as tx:
        arq_rows.swap(tx, running, [ARQState.BIND_STARTED], ARQState.BIND_FAILED, bind_events.owed(requests.now))
    assert requests.claim() == [first, running]


@pytest.mark.parametrize("state", [ARQState.UNBOUND, ARQState.DELETING, ARQState.INITIAL])
def test_a_debt_that_a_service_of_the_release_before_has_left_behind_is_none(
    requests: Requests, state: ARQState
) -> None:
    requests.add(state)
    with requests.database.read() as tx:
        assert bind_events.due(tx, requests.now) == []
        assert bind_events.next_due(tx) is None
        assert bind_events.count(tx) == 0
    assert requests.claim() == []


def test_who_was_slow_does_not_settle_what_another_has_claimed_since(requests: Requests) -> None:
    requests.add(ARQState.BOUND)
    later = requests.now + CLAIM
    with requests.database.write() as tx:
        slow = bind_events.claim(tx, requests.instance, requests.now, later)
        bind_events.claim(tx, requests.instance, later, later + CLAIM)
        bind_events.paid(tx, slow, later)
        bind_events.postpone(tx, slow, later, requests.now)
        assert bind_events.next_due(tx) == later + CLAIM
        bind_events.paid(tx, slow, later + CLAIM)
        assert bind_events.next_due(tx) is None


def test_the_longest_waiting_instance_comes_first_and_none_before_its_time(requests: Requests) -> None:
    requests.add(ARQState.BOUND)
    first, requests.instance, requests.now = requests.instance, str(uuid.uuid4()), requests.now + timedelta(seconds=1)
    requests.add(ARQState.BOUND)
    requests.add(ARQState.BOUND)
    with requests.database.read() as tx:
        assert bind_events.due(tx, requests.now) == [first, requests.instance]
        assert bind_events.due(tx, requests.now - timedelta(seconds=1)) == [first]
        assert bind_events.count(tx) == 3


def test_what_is_overdue_is_given_up_once(requests: Requests) -> None:
    arq = requests.add(ARQState.BIND_FAILED)
    patience = timedelta(seconds=PATIENCE)
    for now, given_up in ((299.9, []), (300, [arq]), (300, [])):
        moment = requests.now + timedelta(seconds=now)
        with requests.database.write() as tx:
            assert [event.uuid for event in bind_events.take_overdue(tx, moment, moment - patience)] == given_up


def test_to_a_caller_telling_does_not_change_the_request(requests: Requests) -> None:
    arq = requests.add(ARQState.BOUND)
    with requests.database.write() as tx:
        arq_rows.swap(tx, arq, [ARQState.BOUND], ARQState.BOUND)
        before_it = arq_rows.get(tx, arq)
    requests.claim()
    with requests.database.read() as tx:
        assert arq_rows.get(tx, arq) == before_it
