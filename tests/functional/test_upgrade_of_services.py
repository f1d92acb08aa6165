"""Services of this release take over a cloud whose devices were bound by the release before."""

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa
from agentworld import HOST, SANITIZING, SECRET, AgentWorld
from strikes import Death, death
from tenant import Tenant, assert_promises, conductor, recover

from autoclave.db import arqs as arq_rows
from autoclave.db import history
from autoclave.db.tables import DeviceType, arqs, devices
from autoclave.exceptions import Conflict
from autoclave.lifecycle.backfill import run_all
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor, ARQState, DeviceState
from autoclave.rules.reclaim import Reclaim
from autoclave.testing.placement.faults import refuse

pytestmark = pytest.mark.matrix

BACKFILL_WRITES = 2
"""State and link of the one device; reserved=total."""
before_or_after = pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])


@pytest.fixture
def world(one_drive: AgentWorld) -> AgentWorld:
    return one_drive


class Before:
    """What a conductor of the release before writes: no state of devices, no link to them, nothing in Placement."""

    def __init__(self, world: AgentWorld) -> None:
        self._world = world

    def knows_no_state(self, address: str = SANITIZING, **changes: Any) -> None:
        with self._world.db.write() as tx:
            mine = devices.update().where(devices.c.hostname == HOST, devices.c.pci_address == address)
            tx.execute(mine.values(device_state=None, state_version=1, release_pending=False, **changes))

    def binds(self, tenant: Tenant, state: ARQState = ARQState.BOUND) -> None:
        """The ARQs name deployable and handle, and the guest writes to its drive."""
        with self._world.db.write() as tx:
            for request in tenant.requests:
                found = tx.execute(
                    sa.text(
                        "SELECT d.id AS deployable_id, h.id AS attach_handle_id FROM deployables d "
                        "JOIN attach_handles h ON h.deployable_id = d.id WHERE d.rp_uuid = :rp"
                    ),
                    {"rp": request["device_rp_uuid"]},
                ).one()
                held = {key: request[key] for key in ("hostname", "device_rp_uuid", "instance_uuid")}
                mine = arqs.update().where(arqs.c.uuid == request["arq_uuid"])
                tx.execute(mine.values(state=state, **held, **found._mapping))
        self._world.sim.fill(SANITIZING, SECRET)


@pytest.fixture
def before(world: AgentWorld) -> Before:
    """A host that was discovered; its agent has ended, and its rows are as the release before left them."""
    world.end(world.start())
    made = Before(world)
    made.knows_no_state()
    return made


def test_a_conductor_that_starts_puts_rows_right_and_tells_placement(world: AgentWorld, before: Before) -> None:
    before.binds(Tenant(world))
    conductor(world).init_host()
    assert world.device().device_state is DeviceState.ALLOCATED
    assert world.inventory().reserved == 1


def test_an_agent_that_starts_puts_the_rows_of_its_host_right(world: AgentWorld, before: Before) -> None:
    before.binds(Tenant(world))
    world.start()
    assert world.device().device_state is DeviceState.ALLOCATED, "and not taken for one that nobody holds"
    assert world.inventory().reserved == 1


def test_an_idle_drive_is_offered_on_after_the_upgrade(world: AgentWorld, before: Before) -> None:
    conductor(world).init_host()
    world.start()
    world.assert_offered()


def test_a_drive_that_its_operator_keeps_out_of_placement_stays_out(world: AgentWorld, before: Before) -> None:
    provider = world.provider()
    present = world.onlooker.get_inventories(provider.uuid)
    ((name, record),) = present.records.items()
    world.onlooker.put_inventories(provider.uuid, present.generation, {name: replace(record, reserved=1)})
    conductor(world).init_host()
    world.start().period()
    assert world.device().device_state is DeviceState.AVAILABLE
    assert not world.offered()


def test_no_bind_is_refused_for_long_and_none_wins_a_drive_without_a_state(world: AgentWorld, before: Before) -> None:
    refused = Tenant(world)
    with pytest.raises(Conflict, match="no known state"):
        refused.bind()
    refused.give_up()
    conductor(world).init_host()
    Tenant(world).bind()
    assert world.device().device_state is DeviceState.ALLOCATED


@pytest.mark.parametrize("backfilled", [True, False], ids=["backfilled", "before any backfill"])
def test_what_the_release_before_has_bound_is_not_offered_after_its_unbind_though_placement_was_away(
    world: AgentWorld, before: Before, backfilled: bool
) -> None:
    tenant = Tenant(world)
    before.binds(tenant)
    if backfilled:
        world.faults.add(refuse)
        conductor(world).init_host()
        world.faults.clear()
    assert world.inventory().reserved == 0, "nobody has told Placement"
    tenant.delete()
    tenant.give_up()
    assert_promises(world)
    world.assert_withheld()
    world.start()
    world.clean()
    world.assert_offered()
    assert not world.sim.find(SANITIZING, SECRET)


@before_or_after
@pytest.mark.parametrize("at", range(1, BACKFILL_WRITES + 1))
@pytest.mark.parametrize(("actor", "hostname"), [(Actor.CONDUCTOR, None), (Actor.AGENT, HOST)])
def test_a_service_that_dies_at_any_write_of_the_backfill_leaves_the_rest_to_the_agents_next_period(
    world: AgentWorld, before: Before, actor: Actor, hostname: str | None, at: int, applied: bool
) -> None:
    before.binds(Tenant(world))
    with pytest.raises(Death):
        run_all(death(at, applied=applied).ports(world), Cause(actor, "who"), hostname=hostname)
    agent = world.start()
    agent.period()
    assert world.device().device_state is DeviceState.ALLOCATED
    assert world.inventory().reserved == 1


def test_a_backfill_writes_as_often_as_is_struck_above(world: AgentWorld, before: Before) -> None:
    before.binds(Tenant(world))
    counted = death()
    conductor(world, counted.ports(world)).init_host()
    assert counted.calls == BACKFILL_WRITES


@before_or_after
def test_a_known_dirty_drive_whose_backfill_placement_did_not_hear_of_is_offered_no_more_after_any_sweep(
    world: AgentWorld, before: Before, applied: bool
) -> None:
    device = world.device()
    with world.db.write() as tx:
        history.add(tx, device.serial, device.drive_model, "another")
    with pytest.raises(Death):
        conductor(world, death(2, applied=applied).ports(world)).init_host()
    assert world.device().device_state is DeviceState.ERROR
    conductor(world).sweep()
    assert world.inventory().reserved == 1


@pytest.mark.parametrize("state", [ARQState.BIND_STARTED, ARQState.DELETING])
def test_what_a_conductor_of_the_release_before_left_half_way_is_finished(
    world: AgentWorld, before: Before, state: ARQState
) -> None:
    tenant = Tenant(world)
    before.binds(tenant, state)
    conductor(world).init_host()
    if state is ARQState.BIND_STARTED:
        world.sim.fill(SANITIZING, b"no guest has seen it")
    agent = world.start()
    tenant.give_up()
    recover(world, agent)
    world.assert_offered()
    with world.db.read() as tx:
        assert not [arq for arq in arq_rows.get_many(tx, tenant.arqs) if arq.state in (state, ARQState.BOUND)]


def test_a_device_that_is_not_cleaned_comes_back_as_it_is(world: AgentWorld, before: Before) -> None:
    before.knows_no_state(type=DeviceType.FPGA, reclaim=Reclaim.NONE)
    tenant = Tenant(world)
    before.binds(tenant)
    tenant.delete()
    tenant.give_up()
    assert world.device().device_state is DeviceState.AVAILABLE
    assert world.inventory().reserved == 0
