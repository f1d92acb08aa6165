"""A conductor that dies at any write of a bind or an unbind, before or after it was applied."""

import pytest
from agentworld import SANITIZING, SECRET, AgentWorld
from strikes import Death, Strike, death
from tenant import Tenant, recover

from autoclave.rules.device_lifecycle import ARQState, DeviceState

pytestmark = pytest.mark.matrix

BIND_WRITES = 4
"""BindStarted; the swap; reserved=total; Bound."""
UNBIND_WRITES = 2
"""Deleting; gone. The bind has settled."""

before_or_after = pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])


@pytest.fixture
def world(one_drive: AgentWorld) -> AgentWorld:
    return one_drive


def dies(strike: Strike, world: AgentWorld, work: str, tenant: Tenant) -> None:
    """A conductor begins to bind or delete what *tenant* asked for, and dies."""
    with pytest.raises(Death):
        getattr(tenant, work)(strike.ports(world))
    assert strike.struck.is_set()
    world.assert_promises()


def test_a_bind_and_an_unbind_write_as_often_as_is_struck_below(world: AgentWorld) -> None:
    world.start()
    tenant, binding, unbinding = Tenant(world), death(), death()
    tenant.bind(binding.ports(world))
    tenant.delete(unbinding.ports(world))
    assert (binding.calls, unbinding.calls) == (BIND_WRITES, UNBIND_WRITES)


@before_or_after
@pytest.mark.parametrize("at", range(1, BIND_WRITES + 1))
def test_a_bind_that_dies_at_any_write_offers_nothing_dirty_and_loses_no_drive(
    world: AgentWorld, at: int, applied: bool
) -> None:
    agent = world.start()
    tenant = Tenant(world)
    dies(death(at, applied=applied), world, "bind", tenant)
    if tenant.states() != {ARQState.BOUND}:
        tenant.give_up()  # Nova has no answer
        world.assert_promises()

    recover(world, agent)

    world.assert_promises()
    if tenant.states() == {ARQState.BOUND}:
        assert world.device().device_state is DeviceState.ALLOCATED
        assert world.inventory().reserved == 1
    else:
        world.assert_offered()


@before_or_after
@pytest.mark.parametrize("at", range(1, UNBIND_WRITES + 1))
def test_an_unbind_that_dies_at_any_write_ends_in_a_clean_drive_that_is_offered(
    world: AgentWorld, at: int, applied: bool
) -> None:
    agent = world.start()
    tenant = Tenant(world)
    tenant.bind()
    tenant.write()
    dies(death(at, applied=applied), world, "delete", tenant)
    tenant.give_up()  # Nova goes on regardless
    world.assert_promises()
    if tenant.states() == {ARQState.BOUND}:
        tenant.delete()  # nothing had happened: Nova asks again

    recover(world, agent)

    assert tenant.states() == set()
    assert not world.sim.find(SANITIZING, SECRET)
    world.assert_offered()
