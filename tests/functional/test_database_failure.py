"""A database that is locked, or gone, at any one transaction of a discovery, a bind, an unbind or a clean."""

import contextlib
import sqlite3
from collections.abc import Callable, Iterator

import pytest
import sqlalchemy as sa
from agentworld import SANITIZING, SECRET, AgentWorld
from strikes import Strike, no_database
from tenant import Tenant, recover

from autoclave.agent import cleaning
from autoclave.agent.manager import AgentManager
from autoclave.exceptions import DatabaseUnavailable, NotFound
from autoclave.rules.device_lifecycle import ARQState, DeviceState

pytestmark = pytest.mark.matrix

BIND = 6
"""BindStarted; the swap; the device, before and after Placement is asked; its drive's other rows; Bound."""
UNBIND = 3
"""The requests; Deleting; gone."""
CLEAN = 11
"""The device; pending_cleaning; its drive's other rows; cleaning; its driver; twice progress; available; the device
twice; the debt is paid."""
DISCOVERY = 11
"""It lives; what to recover, twice known, dirty serials; the new drive; what to tell; the device twice; the total that
was published; debts, paid."""

TROUBLE = {
    "not reached": {"applied": False, "lasting": False},
    "answer lost": {"applied": True, "lasting": False},
    "gone from then on": {"applied": False, "lasting": True},
}


def every_trouble_at(count: int) -> pytest.MarkDecorator:
    """At each of *count* transactions, each of the troubles."""
    return pytest.mark.parametrize(
        ("at", "trouble"),
        [pytest.param(at, TROUBLE[name], id=f"{at}-{name}") for at in range(1, count + 1) for name in TROUBLE],
    )


@pytest.fixture
def world(one_drive: AgentWorld) -> AgentWorld:
    return one_drive


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """An outcome that cannot be written is soon tried again; and no progress is written on account of the time."""
    monkeypatch.setattr(cleaning, "SWAP_PATIENCE", (0.01, 0.01))
    monkeypatch.setattr(cleaning, "PROGRESS_INTERVAL", 3600)


# Gone


def attempt(strike: Strike, work: Callable[[], None]) -> None:
    """Do it with a database that must fail meanwhile, and is well afterwards."""
    with contextlib.suppress(DatabaseUnavailable):
        work()
    assert strike.struck.is_set()
    strike.arm(None)


def test_a_bind_and_an_unbind_make_the_transactions_that_are_struck_below(world: AgentWorld) -> None:
    world.start()
    tenant, binding, unbinding = Tenant(world), no_database(), no_database()
    tenant.bind(binding.database_ports(world))
    tenant.delete(unbinding.database_ports(world))
    assert (binding.calls, unbinding.calls) == (BIND, UNBIND)


@every_trouble_at(BIND)
def test_a_bind_that_loses_its_database_offers_nothing_dirty_and_loses_no_drive(
    world: AgentWorld, at: int, trouble: dict[str, bool]
) -> None:
    agent = world.start()
    tenant, strike = Tenant(world), no_database(at, **trouble)
    attempt(strike, lambda: tenant.bind(strike.database_ports(world)))
    world.assert_promises()
    if tenant.states() == {ARQState.BOUND}:
        tenant.delete()  # whoever is told that it failed, gives it back
        world.assert_promises()
    tenant.give_up()
    world.assert_promises()

    recover(world, agent)

    world.assert_offered()


@every_trouble_at(UNBIND)
def test_an_unbind_that_loses_its_database_ends_in_a_clean_drive_that_is_offered(
    world: AgentWorld, at: int, trouble: dict[str, bool]
) -> None:
    agent = world.start()
    tenant, strike = Tenant(world), no_database(at, **trouble)
    tenant.bind()
    tenant.write()
    attempt(strike, lambda: tenant.delete(strike.database_ports(world)))
    world.assert_promises()
    with contextlib.suppress(NotFound):
        tenant.delete()  # whoever is told that it failed, asks again
    tenant.give_up()
    world.assert_promises()

    recover(world, agent)

    assert tenant.states() == set()
    assert not world.sim.find(SANITIZING, SECRET)
    world.assert_offered()


def clean_by(world: AgentWorld, strike: Strike, at: int | None) -> AgentManager:
    """An agent begins to clean what a guest has written on; returns when no worker is left."""
    agent = world.start(strike.database_ports(world))
    bound = world.bind()
    strike.arm(at)
    world.ports.cleaners.clean(world.context, bound)
    world.casts.deliver()
    world.wait(lambda: not world.working(bound.uuid), "the worker is gone")
    return agent


def test_a_clean_makes_the_transactions_that_are_struck_below(world: AgentWorld) -> None:
    strike = no_database()
    clean_by(world, strike, None)
    assert strike.calls == CLEAN
    world.assert_offered()


@every_trouble_at(CLEAN)
def test_a_clean_that_loses_its_database_ends_in_a_clean_drive_or_in_an_error(
    world: AgentWorld, at: int, trouble: dict[str, bool]
) -> None:
    strike = no_database(**trouble)
    agent = clean_by(world, strike, at)
    assert strike.struck.is_set()
    world.assert_promises()

    strike.arm(None)
    agent.period()
    found = world.outcome()
    if found.device_state is DeviceState.ERROR:
        world.assert_withheld()
        assert "lost its database" in (found.state_reason or "")
        world.clean()
    assert not world.sim.find(SANITIZING, SECRET)
    world.assert_offered()


def period_with_a_new_drive(world: AgentWorld, strike: Strike, at: int | None) -> AgentManager:
    """The agent's period comes after a drive was put into the host."""
    world.sim.pull(SANITIZING)
    agent = world.start(strike.database_ports(world))
    world.sim.put_back(SANITIZING)
    strike.arm(at)
    agent.period()
    return agent


def test_a_discovery_makes_the_transactions_that_are_struck_below(world: AgentWorld) -> None:
    strike = no_database()
    period_with_a_new_drive(world, strike, None)
    assert strike.calls == DISCOVERY
    world.assert_offered()


@every_trouble_at(DISCOVERY)
def test_a_discovery_that_loses_its_database_is_completed_by_the_next_one(
    world: AgentWorld, at: int, trouble: dict[str, bool]
) -> None:
    strike = no_database(**trouble)
    agent = period_with_a_new_drive(world, strike, at)
    assert strike.struck.is_set()
    world.assert_promises()

    strike.arm(None)
    agent.period()

    world.assert_offered()


# Locked


@contextlib.contextmanager
def locked(world: AgentWorld) -> Iterator[None]:
    """Another process has the file for longer than anybody waits."""
    with contextlib.closing(sqlite3.connect(world.tmp_path / "autoclave.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.fixture
def impatient(world: AgentWorld) -> AgentWorld:
    """A world that waits 20 ms for a lock, not half a minute."""
    sa.event.listen(world.db.writer_engine, "connect", lambda dbapi, _: dbapi.execute("PRAGMA busy_timeout=20"))
    return world


def test_a_bind_in_a_locked_database_changes_nothing_and_says_so(impatient: AgentWorld) -> None:
    impatient.start()
    tenant = Tenant(impatient)
    with locked(impatient), pytest.raises(DatabaseUnavailable, match="locked"):
        tenant.bind()
    assert tenant.states() == {ARQState.INITIAL}
    assert impatient.device().device_state is DeviceState.AVAILABLE
    tenant.bind()
    assert tenant.states() == {ARQState.BOUND}


def test_a_clean_that_could_not_begin_in_a_locked_database_is_made_up_for_by_the_next_period(
    impatient: AgentWorld,
) -> None:
    agent = impatient.start()
    bound = impatient.bind()
    with locked(impatient):
        impatient.ask_to_clean()
        assert impatient.device() == bound
        impatient.assert_promises()
    agent.period()
    impatient.outcome()
    assert not impatient.sim.find(SANITIZING, SECRET)
    impatient.assert_offered()


def test_a_drive_that_is_found_while_the_database_is_locked_is_offered_from_the_next_period_on(
    impatient: AgentWorld,
) -> None:
    impatient.sim.pull(SANITIZING)
    agent = impatient.start()
    impatient.sim.put_back(SANITIZING)
    with locked(impatient):
        agent.period()
        assert impatient.find_device() is None
        assert not impatient.offered()
    agent.period()
    impatient.assert_offered()
