"""A Placement that fails at any one request of a discovery, a bind, an unbind or a clean."""

import uuid

import pytest
from agentworld import HOST, SANITIZING, SECRET, ZEROING, AgentWorld
from failing_placement import OFFER, SETTLE, every_failure_at, failing, shape
from strikes import Death, death
from tenant import Tenant, assert_promises, conductor, recover

from autoclave.db.tables import DeviceType, devices
from autoclave.exceptions import Conflict, PlacementError
from autoclave.placement.provider_tree import whole_record
from autoclave.rules.device_lifecycle import ARQState, DeviceState
from autoclave.rules.reclaim import Reclaim
from autoclave.rules.resource_names import OWNER_CYBORG
from autoclave.simulator.faults import Fault, FaultKind
from autoclave.testing.placement.faults import Effect, answer

pytestmark = pytest.mark.matrix

BOTH = (SANITIZING, ZEROING)

FIRST_DISCOVERY = (
    "GET resource_providers",  # the root, by its name
    "GET resource_providers",  # in another spelling
    "POST resource_providers",
    "GET resource_providers",  # the tree
    "POST resource_providers",  # the drive's
    "PUT resource_classes",
    "GET traits",  # those that Placement knows
    "PUT traits",
    "PUT inventories",
)
FOUND_PROVIDER = (
    "GET resource_providers",
    "GET resource_providers",
    "GET traits",
    "GET inventories",
    "GET usages",
)
"""Until the drive of a provider that is there already is recorded; afterwards as in a first discovery."""
BIND_OF_TWO = SETTLE * 2
UNBIND_OF_AN_UNFINISHED_BIND = SETTLE
CLEAN = OFFER


def provider_left_reserved(world: AgentWorld) -> None:
    """Placement has our provider of a drive that no database knows, and reserved: an operator must look at it."""
    placement, root, ours = world.onlooker, str(uuid.uuid4()), str(uuid.uuid4())
    placement.create_provider(root, HOST)
    placement.create_provider(ours, f"{HOST}_{SANITIZING}", root)
    generation = placement.put_traits(ours, 0, [OWNER_CYBORG])
    resource_class = "CUSTOM_NVME_1B36_0010"
    placement.ensure_resource_class(resource_class)
    placement.put_inventories(ours, generation, {resource_class: whole_record(1, 1)})


def dead_bind(world: AgentWorld) -> Tenant:
    """A tenant whose conductor died when it had won the drive and told Placement nothing."""
    tenant = Tenant(world)
    with pytest.raises(Death):
        tenant.bind(death(2, applied=True).ports(world))
    return tenant


# Discovery


def test_a_first_discovery_makes_the_requests_that_are_struck_below(one_drive: AgentWorld) -> None:
    one_drive.start()
    assert shape(one_drive.faults.calls) == FIRST_DISCOVERY


@every_failure_at(FIRST_DISCOVERY)
def test_a_first_discovery_that_placement_fails_is_completed_by_the_next_period(
    one_drive: AgentWorld, at: int, effect: Effect, times: int | None
) -> None:
    with failing(one_drive, at, effect, times):
        agent = one_drive.start()
        one_drive.assert_promises()

    agent.period()

    assert OWNER_CYBORG in one_drive.onlooker.get_traits(one_drive.provider().uuid).names
    one_drive.assert_offered()


def test_a_drive_with_a_provider_makes_the_requests_that_are_struck_below(one_drive: AgentWorld) -> None:
    provider_left_reserved(one_drive)
    one_drive.start()
    assert shape(one_drive.faults.calls)[: len(FOUND_PROVIDER)] == FOUND_PROVIDER


@every_failure_at(FOUND_PROVIDER)
def test_a_reservation_that_placement_does_not_tell_is_not_taken_for_none(
    one_drive: AgentWorld, at: int, effect: Effect, times: int | None
) -> None:
    provider_left_reserved(one_drive)
    with failing(one_drive, at, effect, times):
        agent = one_drive.start()
        assert not one_drive.offered()

    agent.period()

    one_drive.assert_withheld()


def test_a_provider_that_placement_does_not_show_hides_no_other_drive(world: AgentWorld) -> None:
    provider_left_reserved(world)
    world.faults.add(answer(500), path=f"^/resource_providers/{world.provider().uuid}/")

    world.start()

    assert world.find_device(SANITIZING) is None
    world.assert_offered(ZEROING)


# Bind


def test_a_bind_makes_the_requests_that_are_struck_below(world: AgentWorld) -> None:
    world.start()
    tenant = Tenant(world, *BOTH)
    world.faults.clear()
    tenant.bind()
    assert shape(world.faults.calls) == BIND_OF_TWO


@every_failure_at(BIND_OF_TWO)
def test_a_bind_that_placement_fails_binds_both_drives_or_gives_both_back(
    world: AgentWorld, at: int, effect: Effect, times: int | None
) -> None:
    agent = world.start()
    tenant = Tenant(world, *BOTH)
    bound = True
    with failing(world, at, effect, times):
        try:
            tenant.bind()
        except Conflict:
            bound = False
        assert_promises(world, BOTH)
    assert tenant.states() == {ARQState.BOUND if bound else ARQState.BIND_FAILED}
    if not bound:
        tenant.give_up()  # Nova looks for another host
        assert_promises(world, BOTH)

    recover(world, agent, BOTH)

    for address in BOTH:
        if bound:
            assert world.device(address).device_state is DeviceState.ALLOCATED
            assert world.inventory(address).reserved == 1
        else:
            world.assert_offered(address)


def test_only_a_generation_that_moved_is_tried_again_by_a_bind(one_drive: AgentWorld) -> None:
    one_drive.start()
    tenant = Tenant(one_drive)
    with failing(one_drive, 1, answer(409, "placement.concurrent_update"), 1):
        tenant.bind()
    assert tenant.states() == {ARQState.BOUND}
    assert one_drive.inventory().reserved == 1


# Unbind


def test_an_unbind_of_what_was_bound_asks_nothing_of_placement(one_drive: AgentWorld) -> None:
    one_drive.start()
    tenant = Tenant(one_drive)
    tenant.bind()
    one_drive.faults.clear()
    tenant.delete()
    assert one_drive.faults.calls == []


def test_an_unbind_of_an_unfinished_bind_makes_the_requests_that_are_struck_below(one_drive: AgentWorld) -> None:
    one_drive.start()
    tenant = dead_bind(one_drive)
    one_drive.faults.clear()
    tenant.delete()
    assert shape(one_drive.faults.calls) == UNBIND_OF_AN_UNFINISHED_BIND


@every_failure_at(UNBIND_OF_AN_UNFINISHED_BIND)
def test_an_unbind_that_placement_fails_keeps_the_allocation_or_is_finished_by_itself(
    one_drive: AgentWorld, at: int, effect: Effect, times: int | None
) -> None:
    agent = one_drive.start()
    tenant = dead_bind(one_drive)
    done = True
    with failing(one_drive, at, effect, times):
        try:
            tenant.delete()
        except PlacementError:
            done = False
        one_drive.assert_promises()
    if done:
        tenant.give_up()
        one_drive.assert_promises()

    recover(one_drive, agent)

    assert tenant.states() == set()
    if not done:
        tenant.give_up()  # told to keep it, Nova has asked again
    one_drive.assert_promises()
    one_drive.assert_offered()


@every_failure_at(SETTLE)
def test_what_needs_no_cleaning_is_given_back_though_placement_fails_and_offered_by_the_next_sweep(
    one_drive: AgentWorld, at: int, effect: Effect, times: int | None
) -> None:
    one_drive.start()
    with one_drive.db.write() as tx:
        tx.execute(devices.update().values(type=DeviceType.GPU, reclaim=Reclaim.NONE))
    tenant = Tenant(one_drive)
    tenant.bind()
    with failing(one_drive, at, effect, times):
        tenant.delete()
        one_drive.assert_promises()
    assert tenant.states() == set()
    tenant.give_up()

    conductor(one_drive).sweep()

    one_drive.assert_offered()


# Clean


def test_a_clean_makes_the_requests_that_are_struck_below(one_drive: AgentWorld) -> None:
    one_drive.start()
    one_drive.bind()
    one_drive.faults.clear()
    one_drive.clean()
    assert shape(one_drive.faults.calls) == CLEAN


@every_failure_at(CLEAN)
def test_a_clean_that_placement_fails_is_not_lost_and_the_drive_is_offered_by_the_next_period(
    one_drive: AgentWorld, at: int, effect: Effect, times: int | None
) -> None:
    agent = one_drive.start()
    one_drive.bind()
    with failing(one_drive, at, effect, times):
        assert one_drive.clean().device_state is DeviceState.AVAILABLE
        one_drive.assert_promises()

    agent.period()

    assert not one_drive.sim.find(SANITIZING, SECRET)
    one_drive.assert_offered()


@every_failure_at(SETTLE)
def test_a_failed_clean_withholds_the_drive_whether_placement_hears_of_it_or_not(
    one_drive: AgentWorld, at: int, effect: Effect, times: int | None
) -> None:
    agent = one_drive.start()
    one_drive.bind()
    one_drive.sim.set_fault(SANITIZING, Fault(FaultKind.SANITIZE_FAILS))
    with failing(one_drive, at, effect, times):
        one_drive.clean()
        one_drive.assert_promises()
        one_drive.assert_withheld()

    one_drive.sim.clear_faults()
    agent.period()
    one_drive.assert_withheld()
    one_drive.clean()
    one_drive.assert_offered()
