"""The fake driver, and through it all that concerns a device of sixteen handles."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from agentworld import HOST, AgentWorld
from tenant import Tenant, conductor, recover

from autoclave.agent.manager import AgentManager
from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import handles as handle_rows
from autoclave.db.columns import utcnow
from autoclave.db.devices import DeployableRecord
from autoclave.db.handles import HandleUse
from autoclave.exceptions import Conflict
from autoclave.lifecycle.requests import begin_unbind
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.records import Inventory
from autoclave.rules.device_lifecycle import Actor, ARQState, DeviceState
from autoclave.testing.placement.faults import Effect, answer, lose_answer

SLOT = "0000:0c:00.0"


class FakeWorld(AgentWorld):
    """A host with the fake device, whose agent has begun."""

    def __init__(self, tmp_path: Path) -> None:
        super().__init__(tmp_path, [])
        self.overrides["agent", "enabled_drivers"] = ["fake_driver"]
        self.agent: AgentManager = self.start()

    @property
    def deployable(self) -> DeployableRecord:
        with self.db.read() as tx:
            [deployable] = device_rows.deployables_of(tx, [self.device(SLOT).id])
        return deployable

    @property
    def uses(self) -> list[HandleUse]:
        with self.db.read() as tx:
            return handle_rows.of_deployables(tx, [self.deployable.id])[self.deployable.id]

    def record(self) -> Inventory:
        return self.onlooker.get_inventories(self.deployable.rp_uuid).records["FPGA"]

    def assert_has(self, state: DeviceState, *, reserved: int, in_use: int) -> None:
        assert self.device(SLOT).device_state is state
        assert self.record() == Inventory(16, reserved, 1, 16, 1, 1.0)
        assert sum(use.in_use for use in self.uses) == in_use

    def tenants(self, number: int, *, claim: bool = True) -> list[Tenant]:
        made = []
        for _ in range(number):
            tenant = Tenant(self, SLOT, claim=claim)
            tenant.bind()
            made.append(tenant)
        return made


@pytest.fixture
def fake(tmp_path: Path) -> Iterator[FakeWorld]:
    made = FakeWorld(tmp_path)
    yield made
    made.close()


def test_the_fake_device_has_the_shape_of_cyborgs(fake: FakeWorld) -> None:
    device, deployable = fake.device(SLOT), fake.deployable
    assert (device.type.value, device.vendor, deployable.name) == ("FPGA", "0xABCD", f"{HOST}_FakeDevice")
    assert (deployable.resource_class, deployable.num_accelerators) == ("FPGA", 16)
    assert [use.handle.attach_type.value for use in fake.uses] == ["TEST_PCI"] * 16
    assert len({use.handle.attach_info for use in fake.uses}) == 16
    assert set(json.loads(fake.uses[0].handle.attach_info)) == {"domain", "bus", "device", "function"}
    traits = fake.onlooker.get_traits(deployable.rp_uuid).names
    assert traits == {"CUSTOM_FAKE_DEVICE", "OWNER_CYBORG"}
    fake.assert_has(DeviceState.AVAILABLE, reserved=0, in_use=0)


def test_sixteen_are_bound_the_seventeenth_is_refused_and_one_given_back_is_offered_again(fake: FakeWorld) -> None:
    tenants = fake.tenants(15)
    fake.assert_has(DeviceState.AVAILABLE, reserved=0, in_use=15)
    tenants += fake.tenants(1)
    fake.assert_has(DeviceState.ALLOCATED, reserved=16, in_use=16)
    late = Tenant(fake, SLOT, claim=False)
    with pytest.raises(Conflict, match="it is allocated"):
        late.bind()
    assert late.states() == {ARQState.BIND_FAILED}
    tenants[7].delete()
    fake.assert_has(DeviceState.AVAILABLE, reserved=0, in_use=15)
    tenants[7].give_up()
    fake.tenants(1)
    fake.assert_has(DeviceState.ALLOCATED, reserved=16, in_use=16)


def test_one_instance_may_have_several_and_no_handle_is_given_twice(fake: FakeWorld) -> None:
    tenant = Tenant(fake, *[SLOT] * 16, claim=False)
    tenant.bind()
    with fake.db.read() as tx:
        given = {arq.attach_handle_id for arq in arq_rows.get_many(tx, tenant.arqs)}
    assert len(given) == 16
    fake.assert_has(DeviceState.ALLOCATED, reserved=16, in_use=16)
    tenant.delete()
    fake.assert_has(DeviceState.AVAILABLE, reserved=0, in_use=0)


def test_a_request_for_more_than_there_are_leaves_nothing_behind(fake: FakeWorld) -> None:
    fake.tenants(1)
    tenant = Tenant(fake, *[SLOT] * 16, claim=False)
    with pytest.raises(Conflict):
        tenant.bind()
    assert tenant.states() == {ARQState.BIND_FAILED}
    fake.assert_has(DeviceState.AVAILABLE, reserved=0, in_use=1)


@pytest.mark.parametrize("effect", [lose_answer, answer(500)], ids=["lost", "refused"])
def test_a_bind_of_the_last_ones_that_fails_in_placement_is_taken_back_and_they_are_offered_again(
    fake: FakeWorld, effect: Effect
) -> None:
    fake.tenants(14)
    tenant = Tenant(fake, SLOT, SLOT, claim=False)
    fake.faults.add(effect, method="PUT", path="/inventories$")
    with pytest.raises(Conflict):
        tenant.bind()
    fake.faults.clear()
    assert fake.device(SLOT).device_state is DeviceState.AVAILABLE
    fake.agent.period()
    fake.assert_has(DeviceState.AVAILABLE, reserved=0, in_use=14)


def test_a_conductor_that_died_in_the_bind_of_the_last_one_is_swept_up_after(fake: FakeWorld) -> None:
    fake.tenants(15)
    tenant = Tenant(fake, SLOT, claim=False)
    fake.faults.add(die, method="PUT", path="/inventories$", times=1)
    with pytest.raises(ConductorDied):
        tenant.bind()
    fake.faults.clear()
    assert tenant.states() == {ARQState.BIND_STARTED}
    assert fake.device(SLOT).device_state is DeviceState.ALLOCATED
    recover(fake, fake.agent, [SLOT])
    assert tenant.states() == {ARQState.BIND_FAILED}
    fake.assert_has(DeviceState.AVAILABLE, reserved=0, in_use=15)


def test_an_unbind_that_was_begun_and_not_finished_is_swept_up_after(fake: FakeWorld) -> None:
    tenants = fake.tenants(16)
    [arq] = tenants[3].arqs
    with fake.db.write() as tx:
        cause = Cause(Actor.CONDUCTOR, "dead")
        begin_unbind(tx, arq, cause, lease_owner="dead", lease_expires_at=utcnow(), delete=True)
    assert fake.device(SLOT).device_state is DeviceState.ALLOCATED
    recover(fake, fake.agent, [SLOT])
    assert tenants[3].states() == set()
    fake.assert_has(DeviceState.AVAILABLE, reserved=0, in_use=15)


@pytest.mark.parametrize("who", ["sweep", "repeated delete"])
def test_an_unbind_does_not_wait_for_the_traits_of_what_else_of_the_device_is_free(fake: FakeWorld, who: str) -> None:
    tenants = fake.tenants(16)
    provider = fake.deployable.rp_uuid
    fake.onlooker.put_traits(provider, fake.onlooker.get_traits(provider).generation, set())  # by hand
    tenants[0].delete()
    fake.assert_has(DeviceState.AVAILABLE, reserved=16, in_use=15)  # its debt waits for the agent
    with fake.db.write() as tx:
        dead = Cause(Actor.CONDUCTOR, "dead")
        begin_unbind(tx, tenants[3].arqs[0], dead, lease_owner="dead", lease_expires_at=utcnow(), delete=True)
    if who == "sweep":
        later = replace(fake.ports, clock=lambda: fake.ports.clock() + timedelta(hours=1))
        conductor(fake, later).sweep()
    else:
        tenants[3].delete()
    assert tenants[3].states() == set()
    fake.assert_has(DeviceState.AVAILABLE, reserved=16, in_use=14)
    fake.agent.period()
    fake.assert_has(DeviceState.AVAILABLE, reserved=0, in_use=14)


def test_a_bind_does_not_wait_for_the_traits_of_what_else_of_the_device_is_free(fake: FakeWorld) -> None:
    tenants = fake.tenants(16)
    late = Tenant(fake, SLOT, claim=False)
    provider = fake.deployable.rp_uuid
    fake.onlooker.put_traits(provider, fake.onlooker.get_traits(provider).generation, set())  # by hand
    for tenant in tenants[:2]:
        tenant.delete()
    late.bind()
    assert late.states() == {ARQState.BOUND}
    fake.assert_has(DeviceState.AVAILABLE, reserved=16, in_use=15)


def test_an_agent_that_starts_anew_leaves_what_is_in_use_and_frees_what_nobody_holds(fake: FakeWorld) -> None:
    tenants = fake.tenants(16)
    fake.end(fake.agent)
    fake.agent = fake.start()
    fake.assert_has(DeviceState.ALLOCATED, reserved=16, in_use=16)
    with fake.db.write() as tx:
        arq_rows.delete(tx, tenants[0].arqs[0])  # by hand, behind everybody's back
    fake.agent.period()
    fake.assert_has(DeviceState.AVAILABLE, reserved=0, in_use=15)


def test_reserved_written_by_hand_below_the_total_of_a_full_device_is_raised_again(fake: FakeWorld) -> None:
    fake.tenants(16)
    uuid = fake.deployable.rp_uuid
    present = fake.onlooker.get_inventories(uuid)
    lowered = replace(present.records["FPGA"], reserved=0)
    fake.onlooker.put_inventories(uuid, present.generation, {"FPGA": lowered})
    fake.agent.period()
    fake.assert_has(DeviceState.ALLOCATED, reserved=16, in_use=16)


class ConductorDied(BaseException):
    """The process ends here."""


def die(_app: object, _environ: object, _start: object) -> Iterable[bytes]:
    raise ConductorDied
