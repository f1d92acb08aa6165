"""The races that the protocol was made for, one by one."""

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoclave.db import arqs as arq_rows
from autoclave.db.tables import DeviceStatus
from autoclave.exceptions import AutoclaveError
from autoclave.lifecycle import operator
from autoclave.lifecycle.sweep import pay_debts
from autoclave.objects.base import RequestContext
from autoclave.placement.records import ConsumerAllocations
from autoclave.rules.device_lifecycle import ARQState, DeviceState
from autoclave.testing.placement import FakePlacement
from dbfixtures import make_arq
from promises.gates import Actor, GatedDatabase
from promises.history import recover, return_orphans
from promises.host import CLASSES, NVME
from promises.people import Operator
from promises.world import LEASE, NEW, OLD, OPERATOR, PATIENCE, World


class Tenant:
    """An instance, its allocation and its accelerator request."""

    def __init__(self, world: World, *, claim: bool = True, number: int = 0) -> None:
        self.world, self.instance = world, str(uuid.uuid4())
        self.provider = world.devices[number][1].rp_uuid
        self.address = world.devices[number][0].pci_address
        if claim:
            world.placement.put_allocations(
                ConsumerAllocations(self.instance, {self.provider: {CLASSES[NVME]: 1}}, project_id="p", user_id="u")
            )
        with world.db.write() as tx:
            self.arq = make_arq(tx, project_id="p").uuid
        world.add_instance(self.instance, [self.arq])

    def bind(self) -> None:
        request = {
            "arq_uuid": self.arq,
            "hostname": self.world.hostname,
            "device_rp_uuid": self.provider,
            "instance_uuid": self.instance,
        }
        self.world.conductors[0].arq_bind(RequestContext.admin(), [request])

    def write(self) -> None:
        assert self.state is ARQState.BOUND
        self.world.guests.add(self.arq)
        self.world.host.start_guest(self.instance, [self.address])

    def leave(self) -> None:
        self.world.give_back(self.instance, self.world.conductors[1])
        self.world.check()

    @property
    def state(self) -> ARQState | None:
        with self.world.db.read() as tx:
            found = arq_rows.get(tx, self.arq)
        return found.state if found else None


def at(world: World, group: str, work: Callable[[], Any], gate: str, times: int = 1) -> Actor:
    """An actor that has come to *gate* for the *times*-th time, and waits there."""
    actor = world.spawn(group, group, work)
    while True:
        world.run(actor)
        assert not actor.done, f"never came to {gate}: {world.steps}"
        times -= actor.at == gate
        if not times:
            return actor


def finish(world: World, actor: Actor, fate: str | None = None) -> None:
    world.run(actor, fate)
    while not actor.done:
        world.run(actor)


def write_and_die(world: World, actor: Actor) -> None:
    """Let an actor go on until it has written in Placement, and die before it records that."""
    world.run(actor)
    while not actor.done and actor.at != "db write":
        world.run(actor)
    if not actor.done:
        world.kill(actor.group)


def clean_now(world: World) -> None:
    world.recovering = True
    while world.casts.pending:
        world.casts.deliver()
    world.recovering = False
    world.check()


def used_once(world: World) -> None:
    first = Tenant(world)
    first.bind()
    first.write()
    first.leave()


def test_a_doubled_cleanup_message_does_not_erase_the_next_tenants_drive(world: World) -> None:
    used_once(world)
    world.casts.duplicate()
    world.recovering = True
    world.casts.deliver()
    assert world.device().device_state is DeviceState.AVAILABLE
    second = Tenant(world)
    second.bind()
    second.write()
    clean_now(world)
    assert not world.host.is_clean(world.devices[0][0].pci_address), "what the second tenant wrote is still there"
    assert (second.state, world.device().device_state) == (ARQState.BOUND, DeviceState.ALLOCATED)


def test_a_binder_that_wakes_up_late_does_not_take_back_what_another_has_bound_since(world: World) -> None:
    zombie_binder_meets_a_new_tenant(world)


def test_a_slow_lowering_loses_against_a_newer_raise(world: World) -> None:
    operator.hold(world.ports, world.device().uuid, OPERATOR)
    slow = at(world, "api", Operator(world, 0).release, "PUT inventories")
    operator.hold(world.ports, world.device().uuid, OPERATOR)
    finish(world, slow)
    assert world.free(world.devices[0][1]) == 0


def test_a_crash_between_available_and_its_offer_leaves_a_debt_that_anybody_pays(world: World) -> None:
    used_once(world)
    cast = world.casts.deliver
    deliver = world.spawn("deliver", "agent", cast)
    finish(world, deliver)
    [worker] = world.stage.actors
    while world.device().device_state is not DeviceState.AVAILABLE:
        world.run(worker)
    world.kill("agent")
    assert world.free(world.devices[0][1]) == 0
    pay_debts(world.ports)
    world.check()
    assert world.free(world.devices[0][1]) == 1


@pytest.mark.parametrize("gate", ["GET inventories", "PUT inventories", "PUT inventories answered"])
def test_a_conductor_dead_in_the_middle_of_a_bind_loses_nothing_for_good(world: World, gate: str) -> None:
    tenant = Tenant(world)
    at(world, "conductor-0", tenant.bind, gate)
    world.kill("conductor-0")
    tenant.leave()
    recover(world)
    assert world.device().device_state is DeviceState.AVAILABLE


def test_an_expired_bind_is_swept_back_and_its_zombie_cannot_bind(world: World) -> None:
    tenant = Tenant(world)
    zombie = at(world, "conductor-0", tenant.bind, "PUT inventories")
    world.let_time_pass()
    world.conductors[1].sweep()
    assert tenant.state is ARQState.BIND_FAILED
    finish(world, zombie)
    world.check()
    assert tenant.state is ARQState.BIND_FAILED
    assert world.device().device_state is DeviceState.AVAILABLE
    assert LEASE < 300


def test_an_answer_lost_after_the_write_takes_the_bind_back_and_offers_the_drive_again(world: World) -> None:
    tenant = Tenant(world)
    binder = at(world, "conductor-0", tenant.bind, "PUT inventories")
    finish(world, binder, "lose")
    assert tenant.state is ARQState.BIND_FAILED
    assert world.device().device_state is DeviceState.AVAILABLE
    tenant.leave()
    assert world.free(world.devices[0][1]) == 1


def test_of_two_binds_of_one_drive_one_wins_and_the_other_is_told(world: World) -> None:
    first, second = Tenant(world), Tenant(world, claim=False)
    slow = at(world, "conductor-0", first.bind, "db write", times=2)
    second.bind()
    finish(world, slow)
    assert (first.state, second.state) == (ARQState.BIND_FAILED, ARQState.BOUND)
    with pytest.raises(AutoclaveError, match="allocated"):
        Tenant(world, claim=False).bind()
    world.check()


def slow_lowering_meets_a_new_tenant(world: World, gate: str, times: int = 1) -> None:
    """Somebody pays a debt slowly; meanwhile it is paid, and the drive bound, used and let go of."""
    used_once(world)
    finish(world, world.spawn("deliver", "agent", world.casts.deliver))
    [worker] = world.stage.actors
    while world.device().device_state is not DeviceState.AVAILABLE:
        world.run(worker)
    slow = at(world, "api", lambda: pay_debts(world.ports), gate, times)
    pay_debts(world.ports)
    tenant = Tenant(world)
    tenant.bind()
    tenant.write()
    write_and_die(world, slow)
    tenant.leave()


@pytest.mark.parametrize("gate", ["GET inventories", "GET inventories answered", "PUT inventories"])
def test_a_slow_lowering_never_offers_the_drive_that_a_tenant_has_written_since(world: World, gate: str) -> None:
    slow_lowering_meets_a_new_tenant(world, gate)
    assert world.free(world.devices[0][1]) == 0


def zombie_binder_meets_a_new_tenant(world: World) -> None:
    """A binder hangs; its request is deleted, the drive cleaned and used by another; then the binder wakes up."""
    slow = Tenant(world)
    binder = at(world, "conductor-0", slow.bind, "GET inventories")
    slow.leave()
    clean_now(world)
    tenant = Tenant(world)
    tenant.bind()
    tenant.write()
    finish(world, binder, "fail")
    assert (tenant.state, world.device().device_state) == (ARQState.BOUND, DeviceState.ALLOCATED)


def slow_lowering_meets_a_raise_to_what_is(world: World) -> None:
    """A hold's end is written slowly; meanwhile somebody who was allocated before binds, uses and lets go."""
    tenant = Tenant(world)
    operator.hold(world.ports, world.device().uuid, OPERATOR)
    slow = at(world, "api", Operator(world, 0).release, "PUT inventories")
    tenant.bind()
    tenant.write()
    write_and_die(world, slow)
    tenant.leave()


def test_a_raise_defeats_a_slower_lowering_even_where_it_changes_nothing(world: World) -> None:
    slow_lowering_meets_a_raise_to_what_is(world)
    assert world.free(world.devices[0][1]) == 0


def slow_payer_meets_a_new_debt(world: World) -> None:
    """A debt is paid but not yet cleared; meanwhile the next one is made, and cannot be paid at once."""
    release = Operator(world, 0).release
    slow = at(world, "conductor-0", release, "db write", times=2)
    operator.hold(world.ports, world.device().uuid, OPERATOR)
    finish(world, at(world, "api", release, "PUT inventories"), "fail")
    finish(world, slow)


def test_a_debt_made_since_is_not_cleared_with_the_one_that_was_paid(world: World) -> None:
    slow_payer_meets_a_new_debt(world)
    recover(world)
    assert world.free(world.devices[0][1]) == 1


def test_a_drive_that_is_cleaned_by_its_former_row_is_not_offered_by_its_new_one(
    tmp_path: Path, db: GatedDatabase
) -> None:
    world = World(tmp_path, db, FakePlacement(), (NVME, NVME))
    world.host.shelf.clear()
    used_once(world)
    Operator(world, 0).pull_drive()
    clean_now(world)
    assert world.device(0).device_state is DeviceState.ERROR
    Operator(world, 1).exchange_drive()
    world.agent.period()
    world.check()
    Operator(world, 1).mend()
    clean_now(world)
    assert (world.device(1).device_state, world.free(world.devices[1][1])) == (DeviceState.AVAILABLE, 1)
    Operator(world, 0).mend()
    clean_now(world)
    assert (world.device(1).device_state, world.free(world.devices[1][1])) == (DeviceState.ERROR, 0)
    world.close()


def enabled_again(world: World) -> None:
    """It is clean and out of service; nothing but an operator's word brings it back, and that does."""
    world.conductors[0].sweep()
    world.agent.period()
    world.check()
    row = world.device()
    assert (row.status, row.device_state) == (DeviceStatus.MAINTAINING, DeviceState.AVAILABLE)
    assert world.free(world.devices[0][1]) == 0
    operator.enable(world.ports, row.uuid, OPERATOR)
    world.check()
    assert world.free(world.devices[0][1]) == 1


def test_a_bind_that_was_begun_does_not_get_a_drive_that_is_disabled_before_it_is_claimed(world: World) -> None:
    tenant = Tenant(world)
    binder = at(world, "conductor-0", tenant.bind, "db write", times=2)
    operator.disable(world.ports, world.device().uuid, OPERATOR)
    finish(world, binder)
    assert tenant.state is ARQState.BIND_FAILED
    tenant.leave()
    enabled_again(world)


@pytest.mark.parametrize("gate", ["GET inventories", "PUT inventories", "PUT inventories answered"])
def test_a_drive_that_is_disabled_while_it_is_bound_stays_the_tenants_until_he_leaves(world: World, gate: str) -> None:
    tenant = Tenant(world)
    binder = at(world, "conductor-0", tenant.bind, gate)
    operator.disable(world.ports, world.device().uuid, OPERATOR)
    finish(world, binder)
    assert (tenant.state, world.device().device_state) == (ARQState.BOUND, DeviceState.ALLOCATED)
    tenant.write()
    tenant.leave()
    clean_now(world)
    enabled_again(world)


def test_a_bind_taken_back_from_a_drive_that_was_disabled_meanwhile_offers_nothing(world: World) -> None:
    tenant = Tenant(world)
    binder = at(world, "conductor-0", tenant.bind, "PUT inventories")
    operator.disable(world.ports, world.device().uuid, OPERATOR)
    finish(world, binder, "fail")
    assert tenant.state is ARQState.BIND_FAILED
    tenant.leave()
    enabled_again(world)


def test_a_slow_enabling_loses_against_a_newer_disabling(world: World) -> None:
    operator.disable(world.ports, world.device().uuid, OPERATOR)
    slow = at(world, "api", lambda: operator.enable(world.ports, world.device().uuid, OPERATOR), "PUT inventories")
    operator.disable(world.ports, world.device().uuid, OPERATOR)
    finish(world, slow)
    enabled_again(world)


# A server that vanishes without a word


def add_witness(world: World) -> None:
    """The second drive's server proves that Nova shows servers of other projects, and is the right one."""
    witness = Tenant(world, number=1)
    witness.bind()
    witness.write()


def look_twice(world: World) -> None:
    """Each of two conductors looks once, with the patience between them."""
    for looker in world.lookers:
        looker.look()
        world.check()
        world.now += PATIENCE


def bound_before_its_guest_starts(world: World) -> Tenant:
    """A long build: the agent sees no guest of the server yet."""
    tenant = Tenant(world)
    tenant.bind()
    return tenant


def start_late(world: World, tenant: Tenant) -> None:
    """Nova has seen its requests bound, and starts the guest, whatever has become of the device since."""
    clean_now(world)
    world.guests.add(tenant.arq)
    world.host.start_guest(tenant.instance, [tenant.address])
    world.check()


@pytest.mark.parametrize("archived", [False, True])
def test_a_server_that_vanishes_without_a_word_gives_its_drive_back_erased(two_drives: World, archived: bool) -> None:
    world = two_drives
    add_witness(world)
    tenant = Tenant(world)
    tenant.bind()
    tenant.write()
    look_twice(world)  # it is there: what Nova never showed is not given back by itself
    world.vanish(tenant.instance)
    if archived:
        del world.nova.servers[tenant.instance]
    look_twice(world)
    assert tenant.state is None
    assert world.free(world.devices[0][1]) == 0
    clean_now(world)
    assert world.host.is_clean(tenant.address)
    assert (world.device().device_state, world.free(world.devices[0][1])) == (DeviceState.AVAILABLE, 1)


def test_a_server_that_vanishes_while_its_bind_goes_on_gives_its_drive_back(two_drives: World) -> None:
    """Nova deletes the server of a build at once; the bind ends after that, and nothing asks for its end."""
    world = two_drives
    add_witness(world)
    tenant = Tenant(world)
    binder = at(world, "conductor-0", tenant.bind, "PUT inventories")
    world.vanish(tenant.instance)
    finish(world, binder)
    assert tenant.state is ARQState.BOUND
    look_twice(world)
    clean_now(world)
    assert world.free(world.devices[0][1]) == 1


def test_a_drive_of_a_vanished_server_that_cannot_be_looked_at_is_shown(world: World) -> None:
    """The agent is one of the release before; the device stays, dirty and not offered, and waits for the operator."""
    tenant = Tenant(world)
    tenant.bind()
    tenant.write()
    world.vanish(tenant.instance)
    world.start_agent(OLD)
    look_twice(world)
    assert tenant.state is ARQState.BOUND
    assert world.free(world.devices[0][1]) == 0
    world.start_agent(NEW)
    return_orphans(world)
    clean_now(world)
    assert world.free(world.devices[0][1]) == 1


def restored_nova_meets_a_running_guest(world: World) -> None:
    """Nova's database is restored from before the server, for good; its guest runs on."""
    add_witness(world)
    tenant = Tenant(world)
    tenant.bind()
    tenant.write()
    world.lookers[0].look()
    del world.nova.servers[tenant.instance]
    look_twice(world)
    clean_now(world)
    assert tenant.state is ARQState.BOUND


def restoring_nova_meets_a_long_build(world: World) -> None:
    """For a moment Nova does not know the server, and its guest has not started."""
    add_witness(world)
    tenant = bound_before_its_guest_starts(world)
    world.lookers[0].look()
    server = world.nova.servers.pop(tenant.instance)
    world.lookers[0].look()
    world.nova.servers[tenant.instance] = server
    world.now += PATIENCE
    world.lookers[1].look()
    start_late(world, tenant)
    assert tenant.state is ARQState.BOUND


def nova_of_another_region_meets_a_long_build(world: World) -> None:
    """The endpoint is another region's, for long, and the guest has not started."""
    add_witness(world)
    tenant = bound_before_its_guest_starts(world)
    world.lookers[0].look()
    servers, world.nova.servers = world.nova.servers, {}
    look_twice(world)
    world.nova.servers = servers
    start_late(world, tenant)
    assert tenant.state is ARQState.BOUND


def test_a_guest_that_nova_forgot_keeps_its_drive(two_drives: World) -> None:
    restored_nova_meets_a_running_guest(two_drives)


def test_a_server_absent_for_a_moment_keeps_its_drive(two_drives: World) -> None:
    restoring_nova_meets_a_long_build(two_drives)


def test_a_nova_of_another_region_takes_no_drive(two_drives: World) -> None:
    nova_of_another_region_meets_a_long_build(two_drives)
