"""Cards that guests get as they are: their handles follow the host and the configuration, never under a guest."""

import json
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from agentworld import HOST, SANITIZING, AgentWorld, sanitizing_drive
from tenant import Tenant

import burnedrows
from autoclave.agent.manager import AgentManager
from autoclave.audit.records import read
from autoclave.db import devices as device_rows
from autoclave.db import handles as handle_rows
from autoclave.db import pci
from autoclave.db.columns import utcnow
from autoclave.db.handles import HandleRecord, HandleUse
from autoclave.db.tables import DeviceType
from autoclave.exceptions import Conflict, InvalidConfiguration
from autoclave.lifecycle import claims, operator
from autoclave.lifecycle.pci_inventory import withdraw
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.records import Inventory
from autoclave.rules.device_lifecycle import Actor, DeviceState
from autoclave.rules.reclaim import Reclaim
from autoclave.simulator.functions import FunctionSpec
from autoclave.testing.placement.faults import lose_answer, refuse
from burnedrows import OPERATOR, OneTimeUse

ANOTHER_GPU = "0000:83:00.0"
GPU, CARD, VF0, VF1, VF2 = "0000:81:00.0", "0000:82:00.0", "0000:82:02.0", "0000:82:02.1", "0000:82:02.2"


def virtual(address: str, driver: str | None = "vfio-pci") -> FunctionSpec:
    return FunctionSpec(address, "8086", "154c", class_code="020000", driver=driver, physfn=CARD)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[AgentWorld]:
    """A host with a graphics card, and a network card with two virtual functions."""
    card = FunctionSpec(CARD, "8086", "1572", class_code="020000", driver="i40e")
    functions = (FunctionSpec(GPU, "10de", "25b6", driver="nouveau"), card, virtual(VF0), virtual(VF1))
    made = AgentWorld(tmp_path, [], functions)
    made.overrides["agent", "enabled_drivers"] = ["pci_driver"]
    yield made
    made.close()


def start(world: AgentWorld, *entries: dict[str, Any]) -> AgentManager:
    world.overrides["pci", "passthrough_whitelist"] = [json.dumps(entry) for entry in entries]
    return world.start()


def restart(world: AgentWorld, agent: AgentManager, *entries: dict[str, Any]) -> AgentManager:
    """The operator changes the configuration, and starts the agent again."""
    world.end(agent)
    return start(world, *entries)


def uses(world: AgentWorld, address: str) -> list[HandleUse]:
    with world.db.read() as tx:
        [deployable] = device_rows.deployables_of(tx, [world.device(address).id])
        return handle_rows.of_deployables(tx, [deployable.id])[deployable.id]


def handles(world: AgentWorld, address: str) -> dict[str, HandleRecord]:
    return {use.handle.identity: use.handle for use in uses(world, address)}


def info(world: AgentWorld, address: str, identity: str) -> dict[str, Any]:
    return dict(json.loads(handles(world, address)[identity].attach_info))


def whole(total: int, reserved: int) -> Inventory:
    return Inventory(total=total, reserved=reserved, min_unit=1, max_unit=total, step_size=1, allocation_ratio=1.0)


# managed


def test_a_card_is_offered_with_a_handle_that_mentions_managed_only_where_it_was_configured(world: AgentWorld) -> None:
    agent = start(world, {"address": GPU})
    world.assert_offered(GPU)
    text = handles(world, GPU)[GPU].attach_info
    assert text == '{"bus": "81", "device": "00", "domain": "0000", "function": "0"}'
    restart(world, agent, {"address": GPU, "managed": True})
    assert list(info(world, GPU, GPU)) == ["bus", "device", "domain", "function", "managed"]


def test_managed_changed_while_the_handle_is_free_takes_effect_and_nothing_else_of_it_changes(
    world: AgentWorld,
) -> None:
    world.sim.functions.bind(GPU, "vfio-pci")
    agent = start(world, {"address": GPU})
    before, device = handles(world, GPU)[GPU], world.device(GPU)
    agent = restart(world, agent, {"address": GPU, "managed": "no"})
    after = handles(world, GPU)[GPU]
    assert info(world, GPU, GPU) == {**json.loads(before.attach_info), "managed": False}
    assert (after.id, after.uuid, after.identity, after.attach_type) == (
        before.id,
        before.uuid,
        before.identity,
        before.attach_type,
    )
    assert world.device(GPU) == device
    restart(world, agent, {"address": GPU})
    assert handles(world, GPU)[GPU] == before


def test_managed_changed_while_an_instance_has_the_handle_waits_until_it_is_free(world: AgentWorld) -> None:
    world.sim.functions.bind(GPU, "vfio-pci")
    agent = start(world, {"address": GPU, "managed": True})
    tenant = Tenant(world, GPU)
    tenant.bind()
    agent = restart(world, agent, {"address": GPU, "managed": False})
    agent.period()
    assert info(world, GPU, GPU)["managed"] is True
    assert world.device(GPU).device_state is DeviceState.ALLOCATED
    tenant.delete()
    tenant.give_up()
    agent.period()
    assert info(world, GPU, GPU)["managed"] is False
    world.assert_offered(GPU)


def test_managed_of_the_free_handles_changes_while_an_instance_keeps_the_other(world: AgentWorld) -> None:
    agent = start(world, {"address": CARD, "managed": True})
    Tenant(world, CARD).bind()
    restart(world, agent, {"address": CARD, "managed": False})
    assert [info(world, CARD, vf)["managed"] for vf in (VF0, VF1)] == [True, False]


def test_what_is_not_managed_and_loses_its_vfio_driver_is_withdrawn_until_it_has_one_again(world: AgentWorld) -> None:
    world.sim.functions.bind(GPU, "vfio-pci")
    agent = start(world, {"address": GPU, "managed": False})
    world.assert_offered(GPU)
    world.sim.functions.bind(GPU, "nouveau")
    agent.period()
    device = world.device(GPU)
    assert (device.device_state, world.inventory(GPU).reserved) == (DeviceState.AVAILABLE, 1)
    assert "bound to nouveau" in (device.excluded_reason or "")
    world.sim.functions.bind(GPU, "vfio-pci")
    agent.period()
    world.assert_offered(GPU)


# Virtual functions


def test_virtual_functions_are_one_device_in_the_slot_of_their_card(world: AgentWorld) -> None:
    start(world, {"address": CARD})
    assert set(handles(world, CARD)) == {VF0, VF1}
    assert world.inventory(CARD) == whole(2, 0)
    assert world.find_device(VF0) is None


def test_a_card_is_allocated_when_no_virtual_function_is_free_and_available_when_one_is(world: AgentWorld) -> None:
    start(world, {"address": CARD})
    first, second = Tenant(world, CARD), Tenant(world, CARD)
    first.bind()
    assert world.device(CARD).device_state is DeviceState.AVAILABLE
    second.bind()
    assert (world.device(CARD).device_state, world.inventory(CARD).reserved) == (DeviceState.ALLOCATED, 2)
    first.delete()
    assert (world.device(CARD).device_state, world.inventory(CARD).reserved) == (DeviceState.AVAILABLE, 0)


def test_more_virtual_functions_are_offered_as_they_are_found(world: AgentWorld) -> None:
    agent = start(world, {"address": CARD})
    world.sim.functions.plug(virtual(VF2))
    agent.period()
    assert set(handles(world, CARD)) == {VF0, VF1, VF2}
    assert world.inventory(CARD) == whole(3, 0)


OTHERS_CHANGED = "another service or an operator has changed"


@pytest.mark.parametrize("change", ["gains", "loses"])
def test_a_card_that_changes_accuses_no_other_writer(
    world: AgentWorld, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    agent = start(world, {"address": CARD})
    if change == "gains":
        world.sim.functions.plug(virtual(VF2))
    else:
        world.sim.functions.pull(VF1)
    agent.period()
    assert world.inventory(CARD).total == (3 if change == "gains" else 1)
    assert OTHERS_CHANGED not in caplog.text


def test_a_changed_card_whose_write_fails_accuses_no_other_writer(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither if the write was refused, nor if it was done and its answer lost."""
    agent = start(world, {"address": CARD})
    for effect, address in ((lose_answer, VF2), (refuse, "0000:82:02.3")):
        world.sim.functions.plug(virtual(address))
        world.faults.add(effect, method="PUT", path="/inventories$", times=1)
        agent.period()
        agent.period()
    assert world.inventory(CARD).total == 4
    assert OTHERS_CHANGED not in caplog.text


def test_a_held_card_that_gains_functions_accuses_no_other_writer(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """All of it is reserved, and less than all that it has now: another has not lowered that."""
    agent = start(world, {"address": CARD})
    operator.hold(world.ports, world.device(CARD).uuid, Cause(Actor.OPERATOR, "ann"))
    agent.period()
    agent.period()
    world.sim.functions.plug(virtual(VF2))
    agent.period()
    assert world.inventory(CARD) == whole(3, 3)
    assert OTHERS_CHANGED not in caplog.text
    assert "Something other than Autoclave" not in caplog.text


def test_a_total_that_another_writes_while_a_card_changes_is_reported(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    agent = start(world, {"address": CARD})
    provider = world.provider(CARD).uuid
    present = world.onlooker.get_inventories(provider)
    records = {name: replace(record, total=7, max_unit=7) for name, record in present.records.items()}
    world.onlooker.put_inventories(provider, present.generation, records)
    world.sim.functions.plug(virtual(VF2))
    agent.period()
    assert world.inventory(CARD) == whole(3, 0)
    assert OTHERS_CHANGED in caplog.text


def test_more_virtual_functions_make_a_card_available_that_had_given_away_all(world: AgentWorld) -> None:
    agent = start(world, {"address": CARD})
    for tenant in (Tenant(world, CARD), Tenant(world, CARD)):
        tenant.bind()
    world.sim.functions.plug(virtual(VF2))
    agent.period()
    assert world.device(CARD).device_state is DeviceState.AVAILABLE
    assert world.inventory(CARD) == whole(3, 0)
    assert world.offered(CARD)


def test_a_card_whose_last_free_virtual_function_goes_is_allocated(world: AgentWorld) -> None:
    agent = start(world, {"address": CARD})
    tenant = Tenant(world, CARD)
    tenant.bind()
    world.sim.functions.pull(VF1)
    agent.period()
    assert set(handles(world, CARD)) == {VF0}
    assert world.device(CARD).device_state is DeviceState.ALLOCATED
    assert world.inventory(CARD) == whole(1, 1)
    tenant.delete()
    tenant.give_up()
    world.assert_offered(CARD)


def test_a_hold_by_hand_in_placement_outlives_a_change_of_the_number(world: AgentWorld) -> None:
    agent = start(world, {"address": CARD})
    provider = world.provider(CARD)
    present = world.onlooker.get_inventories(provider.uuid)
    world.onlooker.put_inventories(provider.uuid, present.generation, {"CUSTOM_PCI": whole(2, 2)})
    world.sim.functions.plug(virtual(VF2))
    agent.period()
    assert world.inventory(CARD) == whole(3, 3)


def test_virtual_functions_made_while_a_guest_has_the_card_are_not_offered_beside_it(world: AgentWorld) -> None:
    world.sim.functions.pull(VF0)
    world.sim.functions.pull(VF1)
    agent = start(world, {"address": CARD})
    tenant = Tenant(world, CARD)
    tenant.bind()
    world.sim.functions.plug(virtual(VF0), virtual(VF1))
    agent.period()
    assert set(handles(world, CARD)) == {CARD}
    assert not world.offered(CARD)
    tenant.delete()
    assert not world.offered(CARD)
    with pytest.raises(Conflict, match="excluded"):
        Tenant(world, CARD, claim=False).bind()
    tenant.give_up()
    agent.period()
    assert set(handles(world, CARD)) == {VF0, VF1}
    world.assert_offered(CARD)
    assert world.inventory(CARD) == whole(2, 0)


def test_a_card_whose_virtual_function_a_guest_has_is_not_offered_as_a_whole(world: AgentWorld) -> None:
    agent = start(world, {"address": CARD})
    tenant = Tenant(world, CARD)
    tenant.bind()
    world.sim.functions.pull(VF0)
    world.sim.functions.pull(VF1)
    agent.period()
    assert set(handles(world, CARD)) == {VF0}
    assert not world.offered(CARD)
    assert f"an instance has {VF0}" in (world.device(CARD).excluded_reason or "")
    tenant.delete()
    assert not world.offered(CARD)
    tenant.give_up()
    agent.period()
    assert set(handles(world, CARD)) == {CARD}
    world.assert_offered(CARD)


# Identity


def test_a_card_on_record_gets_its_serial_and_stays_offered(world: AgentWorld) -> None:
    """It was recorded by a release that read no serials, or its serial could not be read before."""
    agent = start(world, {"address": GPU})
    assert world.device(GPU).serial is None
    for serial in ("00e04c0000123456", "00e04c0000999999"):
        world.sim.functions.pull(GPU)
        world.sim.functions.plug(FunctionSpec(GPU, "10de", "25b6", driver="nouveau", serial=serial))
        agent.period()
        assert world.device(GPU).serial == serial
        world.assert_offered(GPU)
    assert not [row for row in read(world.db, utcnow()).rows.values() if row.drive], "an audit tells no cards by it"


def test_cards_of_one_serial_are_bound_each_by_itself(world: AgentWorld) -> None:
    """A vendor gives one serial to all its cards: a bind must not cost a request of Placement for each of them."""
    for address in (GPU, ANOTHER_GPU):
        if address == GPU:
            world.sim.functions.pull(GPU)
        world.sim.functions.plug(FunctionSpec(address, "10de", "25b6", driver="nouveau", serial="00e04c0000123456"))
    start(world, {"address": GPU}, {"address": ANOTHER_GPU})
    Tenant(world, GPU).bind()
    before = len(world.faults.calls)
    Tenant(world, ANOTHER_GPU).bind()
    asked = [call.path for call in world.faults.calls[before:]]
    assert any(world.provider(ANOTHER_GPU).uuid in path for path in asked)
    assert not any(world.provider(GPU).uuid in path for path in asked)


def test_a_serial_that_cannot_be_read_stays_on_record(world: AgentWorld) -> None:
    world.sim.functions.pull(GPU)
    world.sim.functions.plug(FunctionSpec(GPU, "10de", "25b6", driver="nouveau", serial="00e04c0000123456"))
    agent = start(world, {"address": GPU})
    (world.sim.paths.sysfs / "bus/pci/devices" / GPU / "config").unlink()
    agent.period()
    assert world.device(GPU).serial == "00e04c0000123456"
    world.assert_offered(GPU)


def test_another_card_in_the_slot_is_not_offered_until_the_operator_accepts_it(world: AgentWorld) -> None:
    agent = start(world, {"address": GPU})
    provider = world.provider(GPU)
    world.onlooker.ensure_traits(["CUSTOM_RACK_7"])
    present = world.onlooker.get_traits(provider.uuid)
    world.onlooker.put_traits(provider.uuid, present.generation, present.names | {"CUSTOM_RACK_7"})
    world.sim.functions.pull(GPU)
    world.sim.functions.plug(FunctionSpec(GPU, "1af4", "2331", driver="nouveau"))
    agent.period()
    world.assert_withheld(GPU)
    assert "another card is in the slot: 1af4:2331, where 10de:25b6 was" in (world.device(GPU).state_reason or "")
    operator.accept(world.ports, world.device(GPU).uuid, Cause(Actor.OPERATOR, "ann"))
    assert not world.offered(GPU)
    agent.period()
    world.assert_offered(GPU)
    assert world.device(GPU).model == "2331"
    told = {"CUSTOM_PCI_VENDOR_ID_1AF4", "CUSTOM_PCI_PRODUCT_ID_2331"}
    # nothing of the card that was there, or profiles would find it still; and what the operator has said of the slot
    assert world.onlooker.get_traits(provider.uuid).names == told | {"CUSTOM_RACK_7", "OWNER_CYBORG"}


def test_a_card_that_was_away_is_offered_again_when_it_is_back(world: AgentWorld) -> None:
    agent = start(world, {"address": GPU})
    world.sim.functions.pull(GPU)
    agent.period()
    assert not world.offered(GPU)
    world.sim.functions.plug(FunctionSpec(GPU, "10de", "25b6", driver="nouveau"))
    agent.period()
    world.assert_offered(GPU)


def test_a_card_that_cyborg_had_typed_gpu_and_told_nothing_more_of_is_typed_anew(world: AgentWorld) -> None:
    agent = start(world, {"address": GPU})
    with world.db.write() as tx:
        device_rows.update(tx, world.device(GPU), {"type": DeviceType.GPU, "drive_model": None})
    agent.period()
    device = world.device(GPU)
    assert (device.type, device.drive_model) == (DeviceType.PCI, "10de:25b6")
    world.assert_offered(GPU)


# Two drivers


@pytest.fixture
def both(tmp_path: Path) -> Iterator[AgentWorld]:
    """A host with a drive, and both drivers."""
    made = AgentWorld(tmp_path, [sanitizing_drive()])
    made.overrides["agent", "enabled_drivers"] = ["nvme_driver", "pci_driver"]
    yield made
    made.close()


def test_a_drive_that_both_drivers_claim_keeps_the_agent_from_starting(both: AgentWorld) -> None:
    with pytest.raises(InvalidConfiguration, match=f"{SANITIZING} is claimed by nvme_driver and by pci_driver"):
        start(both, {"address": SANITIZING})
    assert both.find_device() is None


def test_a_drive_on_record_for_erasing_is_not_handed_to_the_driver_that_erases_nothing(both: AgentWorld) -> None:
    agent = start(both)
    both.assert_offered()
    both.overrides["agent", "enabled_drivers"] = ["pci_driver"]
    agent = restart(both, agent, {"address": SANITIZING})
    assert both.device().missing
    assert not both.offered()
    operator.forget(both.ports, both.device().uuid, Cause(Actor.OPERATOR, "ann"))
    agent.period()
    assert both.device().type.value == "PCI"
    both.assert_offered()


# Both halves


def follow_device_spec(world: AgentWorld, provider: str) -> None:
    """Withdraw a device that [pci] device_spec no longer selects, as the compute half of the agent does."""
    with world.db.write() as tx:
        row = pci.get(tx, provider)
        assert row is not None
        assert withdraw(tx, row)


def test_a_card_of_one_time_use_is_not_handed_to_the_driver_before_it_is_deleted_and_released(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    cards = OneTimeUse(world.db, world.placement, HOST)
    provider = cards.add(GPU)
    instance = cards.use(provider)
    with world.db.read() as tx:
        assert pci.is_claimed(tx, cards.row(provider).id)
    world.placement.delete_allocations(instance)
    world.placement.delete_provider(provider)
    agent = start(world, {"address": GPU})
    assert world.device(GPU).uuid == provider
    assert f"instance {instance} has it by its flavor" in caplog.text
    with world.db.write() as tx:
        claims.free(tx, instance, Cause(Actor.AGENT, HOST))
    agent.period()
    assert world.device(GPU).uuid == provider
    assert f"it is burned; clean it, and run `autoclave device release {HOST}/{GPU}`" in caplog.text
    operator.release_spent(world.ports, provider, OPERATOR)
    agent.period()
    assert world.device(GPU).uuid == provider
    follow_device_spec(world, provider)
    agent.period()
    world.assert_offered(GPU)


def test_a_card_that_was_lent_by_flavor_comes_back_when_it_is_free(
    world: AgentWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Its entry was moved to [pci] device_spec, and back while an instance has it."""
    agent = start(world, {"address": GPU})
    agent = restart(world, agent)
    assert world.device(GPU).missing
    operator.forget(world.ports, world.device(GPU).uuid, OPERATOR)
    provider = str(uuid.uuid4())
    with world.db.write() as tx:
        burnedrows.insert(tx, provider, HOST, GPU, [GPU], reclaim=Reclaim.NONE)
        burnedrows.claim(tx, provider, "1")
    agent = restart(world, agent, {"address": GPU})
    assert world.device(GPU).uuid == provider
    assert "instance 1 has it by its flavor" in caplog.text
    with world.db.write() as tx:
        claims.free(tx, "1", Cause(Actor.AGENT, HOST))
    follow_device_spec(world, provider)
    agent.period()
    world.assert_offered(GPU)


# Cost


def test_a_period_without_news_costs_the_same_whatever_the_cards(world: AgentWorld) -> None:
    agent = start(world, {"address": CARD}, {"address": GPU})
    agent.period()
    few = statements(agent)
    world.sim.functions.plug(virtual(VF2), *(FunctionSpec(f"0000:9{n}:00.0", "10de", "25b6") for n in range(5)))
    agent = restart(world, agent, {"address": CARD}, {"vendor_id": "10de"})
    agent.period()
    assert statements(agent) == few


def statements(agent: AgentManager) -> int:
    seen: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        seen.append(statement)

    sa.event.listen(sa.Engine, "before_cursor_execute", note)
    try:
        agent.period()
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", note)
    return len(seen)
