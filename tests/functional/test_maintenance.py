"""A device is disabled and enabled: its offer follows, its state does not, and no failure loses either word."""

import uuid
from collections.abc import Callable
from dataclasses import replace

import pytest
from agentworld import SANITIZING, SECRET, AgentWorld
from failing_placement import OFFER, SETTLE, every_failure_at, failing, shape
from strikes import Death, death
from tenant import Tenant, conductor, recover

from autoclave.agent.manager import AgentManager
from autoclave.db import devices as device_rows
from autoclave.db import history as events
from autoclave.db.devices import DeployableRecord
from autoclave.db.tables import DeviceStatus
from autoclave.exceptions import Conflict
from autoclave.lifecycle import operator
from autoclave.lifecycle.ports import Ports
from autoclave.lifecycle.reserve import Settled, settle
from autoclave.lifecycle.sweep import pay_debts
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.provider_tree import whole_record
from autoclave.rules.device_lifecycle import Actor, ARQState, DeviceState
from autoclave.rules.resource_names import OWNER_CYBORG
from autoclave.testing.placement.faults import Effect, refuse

pytestmark = pytest.mark.matrix

OPERATOR = Cause(Actor.OPERATOR, "ann", "req-1", "new firmware")
ENABLE_WRITES = 3
"""The intent; reserved=0; the debt is cleared."""
DISABLE_WRITES = 2
"""The intent; reserved=total."""

Payer = Callable[[AgentWorld, AgentManager], None]
PAYERS: dict[str, Payer] = {
    "a conductor's sweep": lambda world, _agent: conductor(world).sweep(),
    "the agent's period": lambda _world, agent: agent.period(),
}
whoever_pays = pytest.mark.parametrize("payer", PAYERS.values(), ids=PAYERS)
before_or_after = pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])


@pytest.fixture
def world(one_drive: AgentWorld) -> AgentWorld:
    return one_drive


def disable(world: AgentWorld, ports: Ports | None = None) -> bool:
    return operator.disable(ports or world.ports, world.device().uuid, OPERATOR)


def enable(world: AgentWorld, ports: Ports | None = None) -> bool:
    return operator.enable(ports or world.ports, world.device().uuid, OPERATOR)


def assert_out_of_service(world: AgentWorld, state: DeviceState = DeviceState.AVAILABLE) -> None:
    device = world.device()
    assert (device.status, device.device_state) == (DeviceStatus.MAINTAINING, state)
    assert world.inventory().reserved == 1


def history(world: AgentWorld) -> list[str]:
    with world.db.read() as tx:
        return [line.event for line in events.history(tx, world.device().uuid)]


# What the two words do


def test_a_disabled_device_is_not_offered_until_it_is_enabled_and_its_state_stays(world: AgentWorld) -> None:
    world.start()
    assert disable(world)
    assert_out_of_service(world)
    assert enable(world)
    assert world.device().status is DeviceStatus.ENABLED
    world.assert_offered()


def test_the_history_tells_who_disabled_and_enabled_it_in_which_request_and_why(world: AgentWorld) -> None:
    world.start()
    disable(world)
    enable(world)
    with world.db.read() as tx:
        said = events.history(tx, world.device().uuid)[-2:]
    assert [(line.event, line.from_state, line.to_state) for line in said] == [
        ("disable", "available", "available"),
        ("enable", "available", "available"),
    ]
    for line in said:
        assert (line.actor, line.request_id, line.reason) == ("operator ann", "req-1", "new firmware")


def test_saying_it_again_changes_nothing_and_is_no_history(world: AgentWorld) -> None:
    world.start()
    for word in (disable, enable):
        assert word(world)
        once = world.device(), world.inventory(), history(world)
        assert word(world)
        assert (world.device(), world.inventory(), history(world)) == once


def test_every_provider_of_a_device_follows(world: AgentWorld) -> None:
    world.start()
    second = add_deployable(world)

    def reserved() -> list[int]:
        every = (world.provider().uuid, second.rp_uuid)
        return [record.reserved for each in every for record in inventories(world, each).values()]

    disable(world)
    assert reserved() == [1, 4]
    enable(world)
    assert reserved() == [0, 0]
    assert not world.device().release_pending


def add_deployable(world: AgentWorld) -> DeployableRecord:
    """A second provider of the same device, with four accelerators of another class."""
    rp_uuid, device = str(uuid.uuid4()), world.device()
    world.onlooker.ensure_resource_class("CUSTOM_REGION")
    world.onlooker.create_provider(rp_uuid, f"{device.hostname}_region")
    generation = world.onlooker.put_traits(rp_uuid, 0, [OWNER_CYBORG])
    world.onlooker.put_inventories(rp_uuid, generation, {"CUSTOM_REGION": whole_record(4, 0)})
    with world.db.write() as tx:
        values = {
            "uuid": str(uuid.uuid4()),
            "name": f"{device.hostname}_region",
            "num_accelerators": 4,
            "device_id": device.id,
            "rp_uuid": rp_uuid,
            "resource_class": "CUSTOM_REGION",
            "driver_name": "nvme_driver",
        }
        device_rows.insert_deployable(tx, values)
        return device_rows.deployables_of(tx, [device.id])[-1]


def inventories(world: AgentWorld, provider: str) -> dict[str, object]:
    return dict(world.onlooker.get_inventories(provider).records)


# Beside the state, a hold, and a hand in Placement


def test_an_instance_keeps_its_device_and_the_erase_goes_on_while_it_is_disabled(world: AgentWorld) -> None:
    agent = world.start()
    tenant = Tenant(world)
    tenant.bind()
    tenant.write()

    disable(world)
    assert tenant.states() == {ARQState.BOUND}
    assert_out_of_service(world, DeviceState.ALLOCATED)
    tenant.delete()
    tenant.give_up()
    recover(world, agent)
    assert not world.sim.find(SANITIZING, SECRET)
    assert_out_of_service(world)

    enable(world)
    world.assert_offered()


def test_a_device_that_is_not_available_is_not_offered_by_being_enabled(world: AgentWorld) -> None:
    world.start()
    world.bind()
    disable(world)
    enable(world)
    assert not world.device().release_pending
    assert (world.device().device_state, world.inventory().reserved) == (DeviceState.ALLOCATED, 1)
    world.assert_promises()

    world.clean()
    world.assert_offered()


@pytest.mark.parametrize("last", ["enable", "release"])
def test_of_a_hold_and_a_maintenance_the_end_of_the_last_offers_the_device(world: AgentWorld, last: str) -> None:
    agent = world.start()
    device = world.device().uuid
    operator.hold(world.ports, device, OPERATOR)
    disable(world)
    first, second = (lambda: operator.release(world.ports, device, OPERATOR), lambda: enable(world))[
        :: 1 if last == "enable" else -1
    ]
    first()
    for pay in PAYERS.values():
        pay(world, agent)
        assert world.inventory().reserved == 1
    second()
    world.assert_offered()


def test_a_clean_device_that_is_disabled_costs_placement_nothing_while_it_waits(world: AgentWorld) -> None:
    agent = world.start()
    world.bind()
    disable(world)
    world.clean()
    assert world.device().release_pending, "it was cleaned, and will be offered when it is enabled"
    agent.period()
    agent.period()
    world.faults.clear()

    pay_debts(world.ports)
    agent.period()

    assert set(shape(world.faults.calls)) == {"GET resource_providers"}


def test_enabling_what_is_enabled_ends_no_hold_that_somebody_set_by_hand_in_placement(world: AgentWorld) -> None:
    agent = world.start()
    provider = world.provider().uuid
    present = world.onlooker.get_inventories(provider)
    by_hand = {name: replace(record, reserved=1) for name, record in present.records.items()}
    world.onlooker.put_inventories(provider, present.generation, by_hand)

    enable(world)
    agent.period()
    conductor(world).sweep()

    assert world.inventory().reserved == 1


def amend(world: AgentWorld, **values: int) -> None:
    """Another service or an operator writes some fields of the inventory record."""
    provider = world.provider().uuid
    present = world.onlooker.get_inventories(provider)
    records = {name: replace(record, **values) for name, record in present.records.items()}
    world.onlooker.put_inventories(provider, present.generation, records)


def test_an_amended_total_ends_no_hold_set_in_placement(world: AgentWorld, caplog: pytest.LogCaptureFixture) -> None:
    agent = world.start()
    amend(world, reserved=1)
    amend(world, total=2, max_unit=2)
    uuid = world.device().uuid
    assert operator.is_held(world.ports, uuid)
    assert settle(world.db, world.placement, uuid) is Settled.OPERATORS_HOLD
    assert world.inventory() == whole_record(1, 1)
    assert "had total=2 and reserved=1; Autoclave writes total=1" in caplog.text
    operator.release(world.ports, uuid, OPERATOR)
    agent.period()
    world.assert_offered()


def test_an_amended_total_is_written_back_and_logged(world: AgentWorld, caplog: pytest.LogCaptureFixture) -> None:
    agent = world.start()
    for held in (False, True):
        if held:
            operator.hold(world.ports, world.device().uuid, OPERATOR)
        amend(world, total=3, max_unit=3)
        caplog.clear()
        agent.period()
        assert world.inventory() == whole_record(1, int(held))
        assert f"had total=3 and reserved={int(held)}; Autoclave writes total=1" in caplog.text


# Placement fails, or the process dies


def test_the_two_words_make_the_requests_that_are_struck_below(world: AgentWorld) -> None:
    world.start()
    for word, requests in ((disable, SETTLE), (enable, OFFER)):
        world.faults.clear()
        word(world)
        assert shape(world.faults.calls) == requests


@whoever_pays
@every_failure_at(OFFER)
def test_what_placement_was_not_told_of_an_enabled_device_is_a_debt_that_anybody_pays(
    world: AgentWorld, payer: Payer, at: int, effect: Effect, times: int | None
) -> None:
    agent = world.start()
    disable(world)
    with failing(world, at, effect, times):
        told = enable(world)
        assert world.device().status is DeviceStatus.ENABLED
        assert told or world.device().release_pending

    payer(world, agent)

    world.assert_offered()


@whoever_pays
@every_failure_at(SETTLE)
def test_what_placement_was_not_told_of_a_disabled_device_it_is_told_by_anybody(
    world: AgentWorld, payer: Payer, at: int, effect: Effect, times: int | None
) -> None:
    agent = world.start()
    with failing(world, at, effect, times):
        told = disable(world)
        assert world.device().status is DeviceStatus.MAINTAINING
        assert not told or world.inventory().reserved == 1
        world.assert_promises()

    payer(world, agent)

    assert_out_of_service(world)


def test_saying_it_again_tells_a_placement_that_was_away(world: AgentWorld) -> None:
    world.start()
    world.faults.add(refuse)
    assert not disable(world)
    assert world.inventory().reserved == 0
    world.faults.clear()
    assert disable(world)
    assert_out_of_service(world)


def test_nobody_binds_a_disabled_device_that_placement_still_offers(world: AgentWorld) -> None:
    world.start()
    tenant = Tenant(world)
    world.faults.add(refuse)
    disable(world)
    world.faults.clear()
    with pytest.raises(Conflict, match="it is maintaining"):
        tenant.bind()
    assert tenant.states() == {ARQState.BIND_FAILED}
    assert world.device().device_state is DeviceState.AVAILABLE


def test_the_two_words_write_as_often_as_is_struck_below(world: AgentWorld) -> None:
    world.start()
    disabling, enabling = death(), death()
    disable(world, disabling.ports(world))
    enable(world, enabling.ports(world))
    assert (disabling.calls, enabling.calls) == (DISABLE_WRITES, ENABLE_WRITES)


@whoever_pays
@before_or_after
@pytest.mark.parametrize("at", range(1, ENABLE_WRITES + 1))
def test_an_enabling_that_dies_at_any_write_was_not_said_or_is_finished_by_others(
    world: AgentWorld, payer: Payer, at: int, applied: bool
) -> None:
    agent = world.start()
    disable(world)
    with pytest.raises(Death):
        enable(world, death(at, applied=applied).ports(world))
    world.assert_promises()

    payer(world, agent)

    if at == 1 and not applied:
        assert_out_of_service(world)
    else:
        world.assert_offered()


@whoever_pays
@before_or_after
@pytest.mark.parametrize("at", range(1, DISABLE_WRITES + 1))
def test_a_disabling_that_dies_at_any_write_was_not_said_or_is_finished_by_others(
    world: AgentWorld, payer: Payer, at: int, applied: bool
) -> None:
    agent = world.start()
    with pytest.raises(Death):
        disable(world, death(at, applied=applied).ports(world))
    world.assert_promises()

    payer(world, agent)

    if at == 1 and not applied:
        world.assert_offered()
    else:
        assert_out_of_service(world)
