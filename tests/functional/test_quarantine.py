"""A database that was restored from a backup offers nothing, and has nothing erased, on its own word."""

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from agentworld import SANITIZING, SECRET, AgentWorld
from tenant import Tenant, conductor

from autoclave.audit.auditor import Scope
from autoclave.audit.remedies import Remedies
from autoclave.db import history
from autoclave.db.columns import utcnow
from autoclave.db.tables import DeviceType, arqs, devices
from autoclave.rules.device_lifecycle import ARQState, DeviceState
from autoclave.rules.reclaim import Reclaim
from autoclave.testing.placement.faults import before, refuse


@pytest.fixture
def world(one_drive: AgentWorld) -> AgentWorld:
    """The agent has offered the drive, and runs."""
    one_drive.start()
    return one_drive


@contextmanager
def restored_afterwards(world: AgentWorld) -> Iterator[None]:
    """The database is as it was before, when what happens in here is over and the services are stopped."""
    path = Path(world.db.writer_engine.url.database or "")
    copy = path.with_suffix(".backup")
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    yield
    [agent] = world._agents
    world.end(agent)
    world.db.dispose()
    path.with_name(f"{path.name}-wal").unlink(missing_ok=True)
    path.with_name(f"{path.name}-shm").unlink(missing_ok=True)
    shutil.copyfile(copy, path)


def quarantine(world: AgentWorld, scope: Scope | None = None) -> list[str]:
    remedies = Remedies(world.db, world.placement, "ann")
    return list(remedies.quarantine(remedies.unproved(scope or Scope())))


def placement_is_as_old(world: AgentWorld) -> None:
    """Placement was restored with the database."""
    record, provider = world.inventory(), world.provider()
    for consumer in world.onlooker.get_allocations_for_provider(provider.uuid):
        world.onlooker.delete_allocations(consumer)
    [name] = world.onlooker.get_inventories(provider.uuid).records
    generation = world.onlooker.get_provider(provider.uuid).generation
    lowered = type(record)(**{**vars(record), "reserved": 0})
    world.onlooker.put_inventories(provider.uuid, generation, {name: lowered})


@pytest.mark.parametrize("placement_restored", [False, True])
def test_a_drive_that_was_given_to_a_guest_after_the_backup_is_offered_only_when_it_was_cleaned(
    world: AgentWorld, placement_restored: bool
) -> None:
    with restored_afterwards(world):
        tenant = Tenant(world)
        tenant.bind()
        tenant.write()
    if placement_restored:
        placement_is_as_old(world)

    assert quarantine(world) == ["error, reserved=total"]

    world.assert_withheld()
    assert "nobody knows who has had it since" in (world.device().state_reason or "")
    world.start().period()
    conductor(world).sweep()
    world.assert_withheld()
    assert world.sim.find(SANITIZING, SECRET)
    world.clean()
    if not placement_restored:
        tenant.give_up()
    world.assert_offered()
    world.assert_promises()


def test_a_bind_that_was_being_made_is_not_taken_back_to_available(world: AgentWorld) -> None:
    tenant = Tenant(world)
    tenant.bind()
    unfinished(world, ARQState.BIND_STARTED)
    with restored_afterwards(world):
        world.sim.fill(SANITIZING, SECRET)

    assert quarantine(world) == ["error, reserved=total"]
    assert tenant.states() == {ARQState.BIND_FAILED}
    conductor(world).sweep()
    world.start().period()
    world.assert_withheld()
    assert world.sim.find(SANITIZING, SECRET)


@pytest.mark.parametrize("state", [ARQState.DELETING, None])
def test_a_drive_that_was_waiting_to_be_erased_is_not_erased_on_nobodys_word(
    world: AgentWorld, state: ARQState | None
) -> None:
    """By now it may be the drive of another guest, which is switched off."""
    if state is None:
        world.bind()
    else:
        tenant = Tenant(world)
        tenant.bind()
        unfinished(world, state)
    with restored_afterwards(world):
        world.sim.fill(SANITIZING, SECRET)

    quarantine(world)
    conductor(world).sweep()
    world.start().period()
    world.outcome()

    world.assert_withheld()
    assert world.sim.find(SANITIZING, SECRET)
    if state is not None:
        assert tenant.states() == {ARQState.UNBOUND}


def test_a_drive_that_a_request_in_bound_has_is_left_to_it(world: AgentWorld) -> None:
    tenant = Tenant(world)
    tenant.bind()
    tenant.write()
    with restored_afterwards(world):
        pass
    assert quarantine(world) == []
    assert world.device().device_state is DeviceState.ALLOCATED


def test_a_type_that_is_never_erased_stays_as_it_is(world: AgentWorld) -> None:
    with world.db.write() as tx:
        tx.execute(devices.update().values(type=DeviceType.GPU, reclaim=Reclaim.NONE))
    assert quarantine(world) == []


def test_nothing_is_offered_when_whoever_waits_for_an_unbind_drops_its_allocation(world: AgentWorld) -> None:
    tenant = Tenant(world)
    tenant.bind()
    unfinished(world, ARQState.DELETING)
    seen: list[set[ARQState]] = []
    world.faults.add(before(lambda: seen.append(tenant.states())), method="PUT", path="/inventories$")

    quarantine(world)

    assert seen[0] == {ARQState.DELETING}, "reserved=total stands before the request is gone"
    world.assert_withheld()


def test_only_the_devices_that_are_meant_are_quarantined(world: AgentWorld) -> None:
    assert quarantine(world, Scope(host="another")) == []
    assert len(quarantine(world, Scope(device=world.device().uuid))) == 1
    assert quarantine(world) == []


def test_a_quarantine_is_in_the_history_with_who_asked_for_it(world: AgentWorld) -> None:
    quarantine(world)
    with world.db.read() as tx:
        last = history.history(tx, world.device().uuid)[-1]
    assert (last.event, last.from_state, last.to_state, last.actor) == (
        "quarantine",
        "available",
        "error",
        "operator ann",
    )


def test_a_placement_that_is_away_is_told_by_the_agent(world: AgentWorld) -> None:
    fault = world.faults.add(refuse, method="PUT", times=None)
    [done] = quarantine(world)
    assert "will be told later" in done
    assert world.device().device_state is DeviceState.ERROR
    fault.times = fault.struck
    [agent] = world._agents
    agent.period()
    world.assert_withheld()


def test_a_device_that_moved_after_it_was_judged_is_left_alone(world: AgentWorld) -> None:
    remedies = Remedies(world.db, world.placement, "ann")
    found = remedies.unproved(Scope())
    world.bind()
    [done] = remedies.quarantine(found)
    assert "has changed since" in done
    assert world.device().device_state is DeviceState.ALLOCATED


def test_agents_that_were_seen_lately_are_named(world: AgentWorld) -> None:
    remedies = Remedies(world.db, world.placement, "ann")
    rows = [row for row, _ in remedies.unproved(Scope())]
    assert remedies.alive(rows) == ["host-1"]
    assert remedies.alive([]) == []


def unfinished(world: AgentWorld, state: ARQState) -> None:
    """The one request was being worked on, and its lease is over long since."""
    with world.db.write() as tx:
        tx.execute(arqs.update().values(state=state, lease_expires_at=utcnow() - timedelta(hours=1)))
