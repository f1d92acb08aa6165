"""Disagreements about what instances hold are named by an audit, and gone once its remedy was followed."""

import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hostworld import CARD, GPU, HOST, NIC, NIC_CLASS, VFS
from instanceworld import FLAVOR, InstanceWorld

from autoclave.audit.auditor import Auditor, HostView, Scope
from autoclave.audit.remedies import Remedies, TakingBack
from autoclave.db import history, hosts
from autoclave.db import instances as instance_rows
from autoclave.db.history import EventRecord
from autoclave.db.tables import attach_handles, devices, instances
from autoclave.exceptions import Conflict, HardwareError, NotFound
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.embedded import EmbeddedPlacement
from autoclave.placement.records import ConsumerAllocations
from autoclave.rules.audit.kinds import Kind
from autoclave.rules.audit.model import Finding
from autoclave.rules.device_lifecycle import Actor
from autoclave.rules.instance_states import TaskState, VMState
from autoclave.rules.reclaim import BurnState, Reclaim
from autoclave.simulator.guests import Guests
from autoclave.testing.placement.faults import answer, before, lose_answer, refuse
from autoclave.testing.ports import GivenDomains
from autoclave.virt.domains import SimulatedDomains
from dbfixtures import make_arq

pytestmark = pytest.mark.thorough

ALL = Scope()
SMALL = {**FLAVOR, "disk": 0}
HOST_HAS = {"VCPU": 2, "MEMORY_MB": 512}


class HoldingsWorld(InstanceWorld):
    """The agent runs, and its host is audited from a controller, unless the host is looked at."""

    def __init__(self, tmp_path: Path, service: EmbeddedPlacement) -> None:
        super().__init__(tmp_path, service=service)
        self.looks_at_hosts = False
        self.raw = service.client_session()

    def insert(self, instance_uuid: str, **values: Any) -> None:
        super().insert(instance_uuid, **{"flavor": SMALL, **values})

    def audit(self, scope: Scope = ALL, *, meanwhile: Callable[[], object] = lambda: None) -> list[Finding]:
        """What is found beside what is known to return uncleaned."""
        view = HostView(HOST, self.sim.paths, frozenset(), SimulatedDomains(self.sim))
        hosts = [view] if self.looks_at_hosts else []
        auditor = Auditor(self.db, self.placement, hosts, sleep=lambda _: meanwhile())
        return [each for each in auditor.audit(scope, 5) if each.kind is not Kind.RETURNS_UNCLEANED]

    def the(self, kind: Kind, scope: Scope = ALL) -> Finding:
        found = self.audit(scope)
        assert [each.kind for each in found] == [kind]
        return found[0]

    def fix(self, finding: Finding) -> str:
        return Remedies(self.db, self.placement, "ann").fix([finding])[finding]

    @property
    def root(self) -> str:
        found = self.onlooker.find_provider(HOST)
        assert found is not None
        return found.uuid

    def held(self, consumer: str) -> dict[str, dict[str, int]]:
        return {provider: dict(each) for provider, each in self.onlooker.get_allocations(consumer).allocations.items()}

    def allocate(self, consumer: str, held: dict[str, dict[str, int]]) -> None:
        """Write an allocation as Autoclave does."""
        generation = self.onlooker.get_allocations(consumer).generation
        self.onlooker.put_allocations(ConsumerAllocations(consumer, held, generation, "project", "user"))

    def allocate_as_nova_does(self, consumer: str, held: dict[str, dict[str, int]]) -> None:
        """So old a microversion knows no type of consumers."""
        body = {
            "allocations": {provider: {"resources": amounts} for provider, amounts in held.items()},
            "project_id": "project",
            "user_id": "user",
            "consumer_generation": None,
        }
        answered = self.raw.put(f"/allocations/{consumer}", json=body, microversion="1.36")
        assert answered.status_code == 204

    def lose(self, *addresses: str) -> str:
        """An instance whose row and allocation are gone, and whose guest is not."""
        instance = self.create(*addresses)
        self.onlooker.delete_allocations(instance)
        self.forget(instance)
        return instance

    def take_back(self, *addresses: str, looked: bool = False, hosts: Sequence[HostView] | None = None) -> str:
        """What the last of them was told."""
        asked = [HostView(HOST, self.sim.paths, frozenset(), SimulatedDomains(self.sim))] if hosts is None else hosts
        cause = Cause(Actor.OPERATOR, "ann", reason="lost")
        done = TakingBack(self.db, self.placement, asked).take_back(HOST, addresses, cause, looked=looked)
        return done[addresses[-1]]

    def history(self, address: str) -> Sequence[EventRecord]:
        with self.db.read() as tx:
            return history.history(tx, self.row(address).uuid)

    def set_row(self, instance_uuid: str, **values: Any) -> None:
        with self.db.write() as tx:
            tx.execute(instances.update().where(instances.c.uuid == instance_uuid).values(**values))

    def forget(self, instance_uuid: str) -> None:
        """``DELETE FROM instances``."""
        with self.db.write() as tx:
            tx.execute(instances.delete().where(instances.c.uuid == instance_uuid))


def claim_of(address: str) -> sa.Update:
    """An update by hand of the row that says which instance has a function."""
    return attach_handles.update().where(attach_handles.c.identity == address)


@pytest.fixture
def world(tmp_path: Path, real_placement: EmbeddedPlacement) -> Iterator[HoldingsWorld]:
    made = HoldingsWorld(tmp_path, real_placement)
    made.start()
    yield made
    made.close()


def test_all_agree_on_instances_through_their_whole_lives(world: HoldingsWorld) -> None:
    asked = world.ask(GPU, NIC)
    assert world.audit() == []
    world.build(asked, GPU, NIC)
    assert world.instance(asked).vm_state is VMState.ACTIVE
    other = world.create(CARD)
    assert world.audit() == []
    world.delete(asked)
    assert world.audit() == []
    world.delete(other)
    assert world.audit() == []


def test_an_allocation_that_somebody_deleted_is_written_again(world: HoldingsWorld) -> None:
    instance = world.create(NIC)
    before = world.held(instance)
    world.onlooker.delete_allocations(instance)
    finding = world.the(Kind.INSTANCE_WITHOUT_ALLOCATION)
    assert finding.subject == HOST
    assert finding.seen == (
        f"instance {instance} has nothing allocated; it should have 512 MEMORY_MB, 2 VCPU of provider {HOST} "
        f"({world.root}) and 1 {NIC_CLASS} of provider {HOST}_{NIC.upper()} ({world.row(NIC).uuid})"
    )
    assert world.fix(finding) == f"allocated 512 MEMORY_MB, 2 VCPU and 1 {NIC_CLASS}"
    assert world.held(instance) == before
    assert world.audit() == []
    world.delete(instance)
    assert world.held(instance) == {}


def test_what_is_burned_stays_reserved_and_unallocated_while_its_instance_lives(world: HoldingsWorld) -> None:
    instance = world.create(GPU)
    world.onlooker.delete_allocations(instance)
    protected, lost = sorted(world.audit(), key=lambda each: each.kind.label)
    assert (protected.kind, lost.kind) == (Kind.FUNCTION_WITHOUT_ALLOCATION, Kind.INSTANCE_WITHOUT_ALLOCATION)
    assert protected.subject == f"{HOST}/{GPU}"
    assert world.fix(lost) == "allocated 512 MEMORY_MB, 2 VCPU"
    world.assert_promise()
    assert world.the(Kind.FUNCTION_WITHOUT_ALLOCATION).seen == protected.seen
    world.delete(instance)
    assert world.audit() == []
    world.assert_promise()


def test_only_what_is_lacking_is_written(world: HoldingsWorld) -> None:
    instance = world.create()
    world.allocate(instance, {world.root: {"VCPU": 1, "MEMORY_MB": 512}})
    finding = world.the(Kind.INSTANCE_WITHOUT_ALLOCATION, Scope(HOST))
    assert "lacks 1 VCPU" in finding.seen
    assert world.fix(finding) == "allocated 1 VCPU"
    assert world.held(instance) == {world.root: HOST_HAS}
    assert world.fix(finding) == "nothing: it has all again"


def test_a_function_that_was_given_to_another_meanwhile_is_not_allocated_twice(world: HoldingsWorld) -> None:
    first = world.create(NIC)
    world.onlooker.delete_allocations(first)
    second = world.create(NIC)
    assert world.instance(second).vm_state is VMState.ERROR
    world.allocate(second, {world.row(NIC).uuid: {NIC_CLASS: 1}})
    [finding] = [each for each in world.audit() if each.about == first]
    said = world.fix(finding)
    assert said.startswith(f"allocated 512 MEMORY_MB, 2 VCPU; not of provider {world.row(NIC).uuid}: ")
    assert world.held(first) == {world.root: HOST_HAS}


def test_a_placement_that_does_not_answer_the_fix_is_told(world: HoldingsWorld) -> None:
    instance = world.create()
    world.onlooker.delete_allocations(instance)
    finding = world.the(Kind.INSTANCE_WITHOUT_ALLOCATION)
    world.faults.add(refuse, method="PUT")
    assert world.fix(finding).startswith(f"nothing; perhaps of provider {world.root}, audit again: ")
    world.faults.add(refuse)
    assert world.fix(finding).startswith("nothing: ")
    assert world.held(instance) == {}


def test_an_allocation_whose_answer_was_lost_is_not_told_as_none(world: HoldingsWorld) -> None:
    instance = world.create()
    world.onlooker.delete_allocations(instance)
    finding = world.the(Kind.INSTANCE_WITHOUT_ALLOCATION)
    world.faults.add(lose_answer, method="PUT", times=1)
    assert f"perhaps of provider {world.root}, audit again: " in world.fix(finding)
    assert world.held(instance) == {world.root: HOST_HAS}
    assert world.audit() == []


def test_nothing_is_allocated_to_what_is_deleted_meanwhile(world: HoldingsWorld) -> None:
    instance = world.create()
    world.onlooker.delete_allocations(instance)
    finding = world.the(Kind.INSTANCE_WITHOUT_ALLOCATION)
    world.mark(instance, TaskState.DELETING)
    assert world.fix(finding) == "nothing: the instance changed meanwhile"
    assert world.held(instance) == {}


def test_an_allocation_that_outlives_its_instance_is_named_with_the_command_that_ends_it(world: HoldingsWorld) -> None:
    instance = world.create(NIC)
    world.delete(instance)
    held = {world.root: HOST_HAS, world.row(NIC).uuid: {NIC_CLASS: 1}}
    world.allocate(instance, held)
    for scope in (ALL, Scope(HOST), Scope(device=f"{HOST}/{NIC}")):
        finding = world.the(Kind.ALLOCATION_WITHOUT_INSTANCE, scope)
        assert finding.counts
        assert f"`openstack resource provider allocation delete {instance}`" in finding.remedy
    assert Remedies(world.db, world.placement, "ann").fix([finding]) == {}
    assert world.audit(Scope("host-2")) == []
    world.onlooker.delete_allocations(instance)
    assert world.audit() == []


def test_what_a_late_builder_leaves_with_an_instance_in_error_goes_with_that(world: HoldingsWorld) -> None:
    instance = world.ask(host=None)
    world.set_row(instance, vm_state=VMState.ERROR, task_state=None)
    finding = world.the(Kind.ALLOCATION_WITHOUT_INSTANCE)
    assert finding.seen == (
        f"instance {instance} is in error and on no host, and has 512 MEMORY_MB, 2 VCPU of provider {HOST} "
        f"({world.root}) allocated"
    )
    assert f"`openstack server delete {instance}`" in finding.remedy


def test_what_another_service_or_an_operator_holds_is_information(world: HoldingsWorld) -> None:
    foreign = str(uuid.uuid4())
    world.allocate_as_nova_does(foreign, {world.root: HOST_HAS})
    finding = world.the(Kind.ALLOCATION_OF_ANOTHER)
    assert (finding.about, finding.counts) == (foreign, False)


def test_what_an_accelerator_request_names_is_another_services_instance(world: HoldingsWorld) -> None:
    foreign = str(uuid.uuid4())
    world.allocate(foreign, {world.root: HOST_HAS})
    with world.db.write() as tx:
        make_arq(tx, instance_uuid=foreign)
    assert world.audit() == []


def test_an_allocation_of_a_host_that_the_instance_is_not_on_is_named_there(world: HoldingsWorld) -> None:
    instance = world.create()
    other = world.onlooker.create_provider(str(uuid.uuid4()), "host-2")
    with world.db.write() as tx:
        [known] = hosts.list_all(tx)
        values = {name: getattr(known, name) for name in ("hypervisor_type", "hypervisor_version", "vcpus")}
        values |= {"memory_mb": known.memory_mb, "local_gb": known.local_gb, "rp_uuid": other.uuid}
        hosts.report(tx, "host-2", values)
    world.set_row(instance, host="host-2")
    finding = world.the(Kind.ALLOCATION_ELSEWHERE, Scope(HOST))
    assert finding.seen.startswith(
        f"instance {instance} is on host-2, and has 512 MEMORY_MB, 2 VCPU of provider {HOST} "
    )
    assert f"allocation unset --provider {world.root} {instance}`" in finding.remedy
    # What it holds of the one is not taken for what it should hold of the other.
    assert world.the(Kind.INSTANCE_WITHOUT_ALLOCATION, Scope("host-2")).about == instance


def test_a_function_of_an_instance_that_is_not_there_is_free_again_by_the_remedy(
    world: HoldingsWorld,
) -> None:
    instance = world.lose(NIC)
    finding = world.the(Kind.FUNCTION_WITHOUT_INSTANCE)
    assert finding.subject == f"{HOST}/{NIC}"
    assert finding.seen.startswith(f"instance {instance} has {NIC} of provider {HOST}_{NIC.upper()} (")
    assert f"`autoclave function take-back {HOST}/{NIC}`" in finding.remedy
    with pytest.raises(Conflict, match=f"{NIC} of {HOST} is with domain .*{instance}.*, which runs"):
        world.take_back(NIC, looked=True)
    assert world.function(NIC).instance_uuid == instance
    Guests(world.sim).vanish(instance)
    assert world.take_back(NIC) == f"taken back from {instance}"
    assert world.audit() == []
    assert world.function(NIC).instance_uuid is None
    assert world.offered(NIC) == 1
    assert world.take_back(NIC) == "no instance has it"
    [event] = [each for each in world.history(NIC) if each.event == "take_back"]
    assert (event.actor, event.reason) == ("operator ann", f"taken back from instance {instance}: lost")


def test_what_is_burned_stays_burned_when_it_is_taken_back(world: HoldingsWorld) -> None:
    instance = world.lose(GPU)
    Guests(world.sim).vanish(instance)
    with world.db.write() as tx:  # a release that somebody wrote by hand while it was in use
        values = {"burn_confirmed": True, "release_pending": True}
        tx.execute(devices.update().where(devices.c.pci_address == GPU).values(**values))
    assert world.take_back(GPU) == f"taken back from {instance}; it stays burned until it is released"
    assert world.function(GPU).instance_uuid is None
    assert world.row(GPU).burn_state is BurnState.CONFIRMED
    assert world.offered(GPU) == 0
    assert world.audit() == []


def test_what_has_become_of_one_time_use_is_burned_when_it_is_taken_back(world: HoldingsWorld) -> None:
    instance = world.lose(NIC)
    Guests(world.sim).vanish(instance)
    with world.db.write() as tx:
        tx.execute(devices.update().where(devices.c.pci_address == NIC).values(reclaim=Reclaim.HOLD))
    world.take_back(NIC)
    assert (world.row(NIC).burned, world.row(NIC).device.burned_for) == (True, instance)
    assert world.offered(NIC) == 0


def test_nothing_that_is_taken_back_can_be_claimed_before_placement_knows_that_it_is_burned(
    world: HoldingsWorld,
) -> None:
    Guests(world.sim).vanish(world.lose(GPU))
    world.by_hand(0)
    world.faults.add(refuse)
    assert "; Placement will be told later: " in world.take_back(GPU)
    world.faults.clear()
    assert world.offered(GPU) == 1
    assert world.instance(world.create(GPU)).vm_state is VMState.ERROR
    assert world.function(GPU).instance_uuid is None


def test_a_host_that_cannot_be_asked_is_a_hindrance_unless_the_operator_has_looked(world: HoldingsWorld) -> None:
    instance = world.lose(NIC)
    with pytest.raises(Conflict, match="say --looked"):
        world.take_back(NIC, hosts=[])
    unasked = HostView(HOST, world.sim.paths, frozenset(), None)
    silent = HostView(HOST, world.sim.paths, frozenset(), GivenDomains(failure=HardwareError("no libvirtd")))
    for view, why in ((unasked, "there is no virsh"), (silent, "no libvirtd")):
        with pytest.raises(Conflict, match=why):
            world.take_back(NIC, hosts=[view])
    assert world.function(NIC).instance_uuid == instance
    assert world.take_back(NIC, hosts=[silent], looked=True) == f"taken back from {instance}"


def test_nothing_is_taken_back_from_an_instance_that_is_there_or_on_its_way(world: HoldingsWorld) -> None:
    instance, lost = world.create(NIC), world.lose(GPU)
    for each in (instance, lost):
        Guests(world.sim).vanish(each)
    with pytest.raises(Conflict, match="is on that host: delete the instance"):
        world.take_back(GPU, NIC)
    assert world.function(GPU).instance_uuid == lost  # all of them or none
    for busy in (TaskState.SCHEDULING, TaskState.SPAWNING, TaskState.DELETING):
        world.set_row(instance, host="host-2", task_state=busy)
        with pytest.raises(Conflict, match=f"which is {busy}"):
            world.take_back(NIC)
    world.set_row(instance, task_state=None)
    assert world.take_back(NIC) == f"taken back from {instance}"
    with pytest.raises(NotFound, match=r"no PCI function 0000:99:00\.0"):
        world.take_back("0000:99:00.0")


def test_a_claim_of_another_function_than_was_allocated_is_named_on_both_sides(world: HoldingsWorld) -> None:
    instance = world.create(NIC)
    with world.db.write() as tx:
        tx.execute(claim_of(NIC).values(instance_uuid=None))
        tx.execute(claim_of(VFS[0]).values(instance_uuid=instance))
    found = {each.kind: each for each in world.audit()}
    assert found.keys() == {Kind.INSTANCE_WITHOUT_ALLOCATION, Kind.ALLOCATION_WITHOUT_FUNCTION}
    assert found[Kind.ALLOCATION_WITHOUT_FUNCTION].subject == f"{HOST}/{NIC}"
    assert world.row(CARD).uuid in found[Kind.INSTANCE_WITHOUT_ALLOCATION].seen


def test_a_guest_with_a_function_that_its_instance_has_not_on_record_is_named(world: HoldingsWorld) -> None:
    world.looks_at_hosts = True
    instance = world.create(NIC)
    assert world.audit() == []
    with world.db.write() as tx:
        tx.execute(claim_of(NIC).values(instance_uuid=None))
    world.onlooker.delete_allocations(instance)
    [found] = [each for each in world.audit() if each.kind is Kind.GUEST_WITHOUT_CLAIM]
    assert (found.subject, found.about) == (f"{HOST}/{NIC}", instance)
    assert found.seen.endswith(f"({instance}) runs and has {NIC} (which no instance has on record)")
    held = (
        f"`openstack resource provider inventory set --amend --resource {NIC_CLASS}:reserved=1 {world.row(NIC).uuid}`"
    )
    assert held in found.remedy


def test_a_guest_that_is_made_or_ended_between_the_looks_is_no_finding(world: HoldingsWorld) -> None:
    world.looks_at_hosts = True
    instance = world.create(NIC)
    with world.db.write() as tx:
        tx.execute(claim_of(NIC).values(instance_uuid=None))
    found = world.audit(meanwhile=lambda: world.delete(instance) if world.find(instance) else None)
    assert Kind.GUEST_WITHOUT_CLAIM not in {each.kind for each in found}


def test_many_instances_are_given_again_with_two_readings_of_the_database(world: HoldingsWorld) -> None:
    for instance in [world.create() for _ in range(3)]:
        world.onlooker.delete_allocations(instance)
    found = world.audit()
    assert [each.kind for each in found] == [Kind.INSTANCE_WITHOUT_ALLOCATION] * 3
    statements: list[str] = []
    sa.event.listen(world.db._reader, "before_cursor_execute", lambda *arguments: statements.append(str(arguments[2])))
    done = Remedies(world.db, world.placement, "ann").fix(found)
    assert set(done.values()) == {"allocated 512 MEMORY_MB, 2 VCPU"}
    assert sum("FROM instances" in each for each in statements) == 2
    assert world.audit() == []


def test_an_instance_that_changes_between_the_looks_or_within_one_is_not_judged(world: HoldingsWorld) -> None:
    instance = world.create()
    world.onlooker.delete_allocations(instance)
    assert world.audit(meanwhile=lambda: world.mark(instance, TaskState.DELETING)) == []
    world.set_row(instance, task_state=None)

    def change() -> None:
        with world.db.write() as tx:
            found = instance_rows.get(tx, instance)
            assert found is not None
            assert instance_rows.swap(tx, found, expect_task=None)

    world.faults.add(before(change), path=f"/allocations/{instance}$", skip=1, times=1)  # in the second look
    finding = world.the(Kind.IN_MOTION)
    assert (finding.about, finding.counts) == (instance, False)


def test_a_root_provider_that_is_gone_is_told_and_so_is_what_goes_with_it(world: HoldingsWorld) -> None:
    instance = world.create()
    world.onlooker.delete_allocations(instance)
    with world.db.write() as tx:
        tx.execute(sa.text("UPDATE compute_hosts SET rp_uuid = 'gone'"))
    kinds = {each.kind: each.subject for each in world.audit()}
    assert kinds == {Kind.PROVIDER_MISSING: HOST, Kind.INSTANCE_WITHOUT_ALLOCATION: HOST}


def test_what_cannot_be_read_is_told_and_nothing_is_concluded(world: HoldingsWorld) -> None:
    world.create()
    world.faults.add(answer(500), path=f"/resource_providers/{world.root}/allocations$")
    finding = world.the(Kind.PLACEMENT_UNREADABLE)
    assert finding.subject in (HOST, "Placement")
    assert "not compared" in finding.seen


def test_what_agrees_is_asked_for_by_provider_and_not_by_consumer(world: HoldingsWorld) -> None:
    made = [world.create() for _ in range(3)]
    before = len(world.faults.calls)
    assert world.audit() == []
    paths = [call.path for call in world.faults.calls[before:]]
    assert not [path for path in paths if any(instance in path for instance in made)]
    assert len([path for path in paths if path.endswith(f"{world.root}/allocations")]) == 1
