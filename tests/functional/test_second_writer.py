"""Nova's ``[pci] device_spec`` matches a device of ours: nova-compute writes its provider as its own."""

import logging

import pytest
from agentworld import AgentWorld
from tenant import Tenant, conductor, recover

from autoclave.api.metrics import Fleet
from autoclave.audit.auditor import Auditor, Scope
from autoclave.audit.remedies import Remedies
from autoclave.conductor.manager import ConductorManager
from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import history
from autoclave.exceptions import Conflict
from autoclave.lifecycle.operator import release
from autoclave.placement.provider_tree import whole_record
from autoclave.placement.records import ConsumerAllocations
from autoclave.rules.audit.kinds import Kind
from autoclave.rules.device_lifecycle import ARQState, DeviceState
from autoclave.testing.placement.faults import after
from burnedrows import OPERATOR

NOVAS = "CUSTOM_PCI_1B36_0010"
TRAITS = frozenset({"COMPUTE_MANAGED_PCI_DEVICE", "OWNER_NOVA"})


@pytest.fixture
def world(one_drive: AgentWorld) -> AgentWorld:
    """The agent has offered the drive, and has verified that."""
    one_drive.start().period()
    return one_drive


def nova_writes(world: AgentWorld) -> None:
    """What nova-compute does at its start: the whole inventory, then all traits."""
    placement, rp_uuid = world.onlooker, world.provider().uuid
    placement.ensure_resource_class(NOVAS)
    placement.put_inventories(rp_uuid, placement.get_inventories(rp_uuid).generation, {NOVAS: whole_record(1, 0)})
    placement.ensure_traits(TRAITS)
    placement.put_traits(rp_uuid, placement.get_traits(rp_uuid).generation, TRAITS)


def period(world: AgentWorld) -> None:
    world._agents[-1].period()


def assert_ours(world: AgentWorld) -> None:
    """Placement has our class alone, all of it reserved, and our owner."""
    [(name, record)] = world.onlooker.get_inventories(world.provider().uuid).records.items()
    assert (name.startswith("CUSTOM_NVME"), record.reserved) == (True, 1)
    assert not world.offered()


def test_an_idle_device_goes_to_error_at_once(world: AgentWorld, caplog: pytest.LogCaptureFixture) -> None:
    nova_writes(world)
    with caplog.at_level(logging.ERROR):
        period(world)

    device = world.device()
    assert (device.device_state, device.rewritten, device.held) == (DeviceState.ERROR, True, False)
    assert "OWNER_NOVA" in (device.state_reason or "")
    assert_ours(world)
    assert "OWNER_NOVA" not in world.onlooker.get_traits(world.provider().uuid).names
    assert "must not be offered" in caplog.text
    with world.db.read() as tx:
        assert [event.actor for event in history.history(tx, device.uuid)][-1] == "placement OWNER_NOVA"


def test_a_write_is_recorded_before_it_is_written_over(world: AgentWorld) -> None:
    """The agent dies between the two: the next one knows."""
    nova_writes(world)
    seen: list[bool] = []
    world.faults.add(after(lambda: seen.append(world.device().rewritten)), "PUT", r"/traits$", times=1)
    period(world)
    assert seen == [True]


def test_a_device_in_use_is_held_and_fails_when_returned(world: AgentWorld) -> None:
    """Its allocation keeps Nova from writing the inventory; the traits are written."""
    tenant = Tenant(world, claim=False)
    tenant.bind()
    tenant.write()
    nova_writes(world)
    period(world)

    device = world.device()
    assert (device.device_state, device.held, device.rewritten) == (DeviceState.ALLOCATED, True, True)
    assert_ours(world)

    tenant.delete()
    assert world.device().device_state is DeviceState.ERROR
    assert_ours(world)

    release(world.ports, world.device().uuid, OPERATOR)
    world.clean()
    period(world)
    world.assert_offered()
    assert not world.device().rewritten


def test_a_device_returned_without_a_word_fails(world: AgentWorld) -> None:
    """The agent finds it allocated without a request, and does not erase what another guest may have."""
    tenant = Tenant(world, claim=False)
    tenant.bind()
    nova_writes(world)
    period(world)
    with world.db.write() as tx:
        arq_rows.delete(tx, tenant.arqs[0])
    period(world)
    assert world.device().device_state is DeviceState.ERROR
    assert_ours(world)


def test_a_device_being_cleaned_fails_afterwards(world: AgentWorld) -> None:
    world.bind()
    nova_writes(world)
    period(world)
    assert world.device().held
    world.outcome()
    period(world)
    assert world.device().device_state is DeviceState.ERROR
    assert_ours(world)


def test_a_bind_is_refused_before_the_agent_looks(world: AgentWorld) -> None:
    tenant = Tenant(world, claim=False)
    nova_writes(world)

    with pytest.raises(Conflict, match="OWNER_NOVA"):
        tenant.bind()

    assert tenant.states() == {ARQState.BIND_FAILED}
    assert (world.device().device_state, world.device().rewritten) == (DeviceState.ERROR, True)
    period(world)
    assert_ours(world)


def test_a_bind_is_refused_while_nova_has_an_allocation(world: AgentWorld) -> None:
    """Nova gave the device to a guest of its own meanwhile."""
    tenant = Tenant(world, claim=False)
    nova_writes(world)
    rp_uuid = world.provider().uuid
    world.onlooker.put_allocations(ConsumerAllocations(tenant.instance, {rp_uuid: {NOVAS: 1}}, None, "p", "u"))

    with pytest.raises(Conflict, match="OWNER_NOVA"):
        tenant.bind()

    period(world)
    records = world.onlooker.get_inventories(rp_uuid).records
    assert all(record.reserved == record.total for record in records.values())
    assert world.device().device_state is DeviceState.ERROR


def test_a_bind_cut_short_is_taken_back_into_error(world: AgentWorld) -> None:
    tenant = Tenant(world, claim=False)
    nova_writes(world)
    conductor(world)
    with world.db.write() as tx:
        device_rows.update(tx, world.device(), {"rewritten": True, "held": True, "hold_reason": "noted by another"})
    with pytest.raises(Conflict):
        tenant.bind()
    recover(world, world._agents[-1])
    assert world.device().device_state is DeviceState.ERROR


def test_an_audit_and_the_metrics_name_it(world: AgentWorld) -> None:
    nova_writes(world)
    found = Auditor(world.db, world.onlooker, [], sleep=lambda _: None).audit(Scope(), 0)
    assert Kind.PROVIDER_REWRITTEN in {each.kind for each in found if each.counts}
    assert Kind.PROVIDER_NOT_OURS not in {each.kind for each in found}
    Remedies(world.db, world.onlooker, "ann").fix(found)
    assert world.device().device_state is DeviceState.ERROR

    period(world)
    found = Auditor(world.db, world.onlooker, [], sleep=lambda _: None).audit(Scope(), 0)
    assert Kind.PROVIDER_REWRITTEN in {each.kind for each in found if each.counts}
    samples = [
        (sample.labels["condition"], sample.value)
        for metric in Fleet(world.db).collect()
        for sample in metric.samples
        if metric.name == "autoclave_devices_condition"
    ]
    assert ("rewritten", 1) in samples


def test_a_conductor_that_reconciles_notices_it(world: AgentWorld) -> None:
    """No agent runs: what a conductor settles is enough."""
    world.end(world._agents[-1])
    with world.db.write() as tx:
        device_rows.update(tx, world.device(), {"release_pending": True})
    nova_writes(world)
    ConductorManager(world.ports, "conductor-1", 240).sweep()
    assert (world.device().device_state, world.device().rewritten) == (DeviceState.ERROR, True)
    assert_ours(world)
