"""Each disagreement, made by hand, is named by an audit, and gone once its own remedy was followed."""

import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from agentworld import HOST, SANITIZING, SECRET, sanitizing_drive
from auditworld import AuditedWorld
from tenant import Tenant, conductor

from autoclave.audit.auditor import Scope
from autoclave.db import devices as device_rows
from autoclave.db.columns import utcnow
from autoclave.db.tables import agents, arqs, devices, dirty_serials
from autoclave.exceptions import HardwareError
from autoclave.lifecycle.operator import accept, hold, release
from autoclave.lifecycle.sweep import sweep
from autoclave.lifecycle.transitions import Cause
from autoclave.placement.embedded import EmbeddedPlacement
from autoclave.rules.audit.kinds import Kind
from autoclave.rules.device_lifecycle import Actor, ARQState, DeviceState
from autoclave.rules.pci_address import PCIAddress
from autoclave.testing.placement.faults import answer, refuse
from autoclave.testing.ports import GivenDomains
from autoclave.virt.domains import Domain
from dbfixtures import make_slot

pytestmark = pytest.mark.thorough

OPERATOR = Cause(Actor.OPERATOR, "ann", reason="by hand")
AGREE: set[Kind] = set()


@pytest.fixture
def world(tmp_path: Path, real_placement: EmbeddedPlacement) -> Iterator[AuditedWorld]:
    """The agent has offered the drive, and runs."""
    made = AuditedWorld(tmp_path, real_placement)
    made.start()
    yield made
    made.close()


def period(world: AuditedWorld) -> None:
    """The agent's next period."""
    [agent] = world._agents
    agent.period()


# The whole trip


def test_all_agree_on_a_drive_through_its_whole_life(world: AuditedWorld) -> None:
    world.assert_offered()
    assert world.disagreements() == AGREE
    tenant = Tenant(world)
    tenant.bind()
    world.sim.give_to_guest(SANITIZING)
    assert world.disagreements() == AGREE
    tenant.write()
    assert world.disagreements() == AGREE
    world.sim.give_back(SANITIZING)
    tenant.delete()
    tenant.give_up()
    world.casts.deliver()
    world.outcome()
    assert world.disagreements() == AGREE
    world.assert_offered()


def test_all_agree_when_every_service_is_down(world: AuditedWorld) -> None:
    [agent] = world._agents
    world.end(agent)
    assert world.disagreements() == AGREE


# Placement


def test_a_provider_that_was_deleted_is_made_again_by_the_agent(world: AuditedWorld) -> None:
    world.onlooker.delete_provider(world.provider().uuid)
    assert HOST in world.the(Kind.PROVIDER_MISSING).remedy
    period(world)
    assert world.disagreements() == AGREE
    world.assert_offered()


def test_a_name_that_another_provider_has_is_freed_by_deleting_that(world: AuditedWorld) -> None:
    root = world.provider().root
    world.onlooker.delete_provider(world.provider().uuid)
    foreign = world.onlooker.create_provider(str(uuid.uuid4()), f"{HOST}_{SANITIZING.upper()}", root)
    period(world)  # the agent cannot make its provider, and does not stop for that
    assert f"openstack resource provider delete {foreign.uuid}" in world.the(Kind.PROVIDER_OF_ANOTHER).remedy
    world.onlooker.delete_provider(foreign.uuid)
    period(world)
    assert world.disagreements() == AGREE


def test_the_trait_of_the_owner_is_put_back_by_the_agent(world: AuditedWorld) -> None:
    world.set_traits(lambda names: names - {"OWNER_CYBORG"})
    world.the(Kind.PROVIDER_NOT_OURS)
    period(world)
    assert world.disagreements() == AGREE


def test_traits_that_were_changed_are_put_right_by_the_agent_and_custom_ones_are_nobodys_business(
    world: AuditedWorld,
) -> None:
    world.onlooker.ensure_traits(["CUSTOM_RACK_7"])
    world.set_traits(lambda names: names | {"CUSTOM_RACK_7"})
    assert world.disagreements() == AGREE
    world.set_traits(lambda names: (names - {"HW_NVME_BES"}) | {"HW_NVME_CES"})
    seen = world.the(Kind.TRAITS_DIFFER).seen
    assert "lacks HW_NVME_BES" in seen
    assert "has HW_NVME_CES besides" in seen
    period(world)
    assert world.disagreements() == AGREE


def test_a_provider_that_was_renamed_gets_its_name_back(world: AuditedWorld) -> None:
    provider = world.provider()
    world.rename(provider.uuid, "by-hand")
    told = world.the(Kind.PROVIDER_RENAMED).remedy
    assert told == f"`openstack resource provider set --name {provider.name} {provider.uuid}`."
    world.rename(provider.uuid, provider.name)
    assert world.disagreements() == AGREE


def test_a_root_that_was_renamed_and_made_anew_gets_its_name_back(world: AuditedWorld) -> None:
    former = world.provider().root
    world.rename(former, "by-hand")
    assert world.disagreements() == {Kind.ROOT_MISSING}
    new = world.onlooker.create_provider(str(uuid.uuid4()), HOST)
    assert f"--name {HOST} {former}" in world.the(Kind.PROVIDER_MOVED).remedy
    world.onlooker.delete_provider(new.uuid)
    world.rename(former, HOST)
    assert world.disagreements() == AGREE


def test_an_inventory_that_was_deleted_is_made_again_by_the_agent(world: AuditedWorld) -> None:
    provider = world.provider()
    world.onlooker.put_inventories(provider.uuid, world.onlooker.get_provider(provider.uuid).generation, {})
    world.the(Kind.INVENTORY_MISSING)
    period(world)
    assert world.disagreements() == AGREE


@pytest.mark.parametrize(
    "values", [{"allocation_ratio": 2.0}, {"total": 3}, {"min_unit": 2, "max_unit": 2, "total": 2}]
)
def test_a_record_that_offers_more_or_less_than_there_is_is_made_whole_by_the_agent(
    world: AuditedWorld, values: dict[str, float]
) -> None:
    world.set_inventory(**values)
    finding = world.the(Kind.INVENTORY_DIFFERS)
    assert all(f"{name}={value}" in finding.seen for name, value in values.items())
    period(world)
    assert world.disagreements() == AGREE
    world.assert_offered()


def test_a_second_class_by_which_the_drive_is_offered_is_deleted(world: AuditedWorld) -> None:
    world.set_inventory("CUSTOM_BY_HAND")
    provider = world.provider().uuid
    told = world.the(Kind.FOREIGN_INVENTORY).remedy
    assert told == f"`openstack resource provider inventory delete {provider} --resource-class CUSTOM_BY_HAND`."
    world.set_inventories_but("CUSTOM_BY_HAND")
    assert world.disagreements() == AGREE


def test_a_drive_that_must_not_be_offered_is_reserved_by_the_fix(world: AuditedWorld) -> None:
    hold(world.ports, world.device().uuid, OPERATOR)
    world.set_inventory(reserved=0)
    assert "while it is held" in world.the(Kind.RESERVED_TOO_LOW).seen
    assert world.fix() == {Kind.RESERVED_TOO_LOW: "reserved=total"}
    assert world.inventory().reserved == 1
    assert world.disagreements() == AGREE


def test_a_fix_that_placement_does_not_hear_of_says_so(world: AuditedWorld) -> None:
    hold(world.ports, world.device().uuid, OPERATOR)
    world.set_inventory(reserved=0)
    world.faults.add(answer(503, "down"), method="PUT", times=None)
    [done] = world.fix().values()
    assert "does not answer" in done
    world.the(Kind.RESERVED_TOO_LOW)


def test_what_was_reserved_by_hand_is_released_or_held_for_good(world: AuditedWorld) -> None:
    world.set_inventory(reserved=1)
    assert f"autoclave device release {HOST}/{SANITIZING}" in world.the(Kind.RESERVED_BY_HAND).remedy
    assert world.fix() == {}
    hold(world.ports, world.device().uuid, OPERATOR)
    assert world.disagreements() == AGREE
    release(world.ports, world.device().uuid, OPERATOR)
    world.assert_offered()
    world.set_inventory(reserved=1)
    release(world.ports, world.device().uuid, OPERATOR)
    assert world.disagreements() == AGREE
    world.assert_offered()


def test_a_debt_that_placement_did_not_hear_of_is_paid_by_any_sweep(world: AuditedWorld) -> None:
    hold(world.ports, world.device().uuid, OPERATOR)
    fault = world.faults.add(refuse, method="PUT")
    release(world.ports, world.device().uuid, OPERATOR)
    fault.times = fault.struck
    world.the(Kind.DEBT_UNPAID)
    sweep(world.ports, world.context, "conductor-1")
    assert world.disagreements() == AGREE
    world.assert_offered()


def test_an_allocation_that_an_instance_left_behind_is_named_with_its_consumer(world: AuditedWorld) -> None:
    orphan = str(uuid.uuid4())
    world.allocate(orphan)
    assert f"allocation delete {orphan}" in world.the(Kind.ALLOCATION_WITHOUT_REQUEST).remedy
    world.onlooker.delete_allocations(orphan)
    assert world.disagreements() == AGREE


def test_an_instance_whose_allocation_was_deleted_keeps_its_drive(world: AuditedWorld) -> None:
    tenant = Tenant(world)
    tenant.bind()
    tenant.give_up()
    assert tenant.instance in world.the(Kind.REQUEST_WITHOUT_ALLOCATION).seen
    tenant.delete()
    world.casts.deliver()
    world.outcome()
    assert world.disagreements() == AGREE


def test_a_provider_of_ours_that_no_row_has_is_taken_over_by_the_agent_into_error_if_it_was_reserved(
    world: AuditedWorld,
) -> None:
    provider = world.provider()
    with world.db.write() as tx:
        device_rows.delete(tx, world.device())
    assert f"provider {provider.uuid} ({provider.name}) is offered" in world.the(Kind.PROVIDER_WITHOUT_DEVICE).seen
    world.set_inventory(reserved=1)
    assert "is not offered" in world.the(Kind.PROVIDER_WITHOUT_DEVICE).seen
    period(world)
    assert world.disagreements() == AGREE
    world.assert_withheld()


def test_a_placement_that_does_not_answer_is_a_finding_and_nothing_is_concluded_from_it(world: AuditedWorld) -> None:
    world.faults.add(refuse, method="GET", times=None)
    assert "1 devices were not compared" in world.the(Kind.PLACEMENT_UNREADABLE).seen


def test_what_is_seen_only_once_placement_answers_again_is_told_when_it_stands(world: AuditedWorld) -> None:
    world.set_inventory(reserved=1)
    world.faults.add(refuse, method="GET", times=1)
    world.the(Kind.RESERVED_BY_HAND)


def test_a_provider_that_cannot_be_read_hides_no_other(world: AuditedWorld) -> None:
    world.faults.add(answer(500, "broken"), method="GET", path=r"/traits$", times=None)
    finding = world.the(Kind.PLACEMENT_UNREADABLE)
    assert finding.subject == f"{HOST}/{SANITIZING}"


# What is on its way is no disagreement


def test_what_is_put_right_between_two_looks_is_not_told(world: AuditedWorld) -> None:
    world.onlooker.delete_provider(world.provider().uuid)
    assert world.disagreements(meanwhile=lambda: period(world)) == AGREE


def test_an_allocation_whose_bind_follows_is_not_told(world: AuditedWorld) -> None:
    tenant = Tenant(world)
    assert world.disagreements(meanwhile=tenant.bind) == AGREE


def test_a_bind_between_its_claim_and_its_word_to_placement_is_not_told_within_its_lease(world: AuditedWorld) -> None:
    tenant = Tenant(world)
    tenant.bind()
    world.execute(arqs.update().values(state=ARQState.BIND_STARTED, lease_expires_at=utcnow() + timedelta(seconds=100)))
    world.set_inventory(reserved=0)
    assert world.disagreements() == AGREE
    assert Kind.RESERVED_TOO_LOW in world.disagreements(later=timedelta(seconds=101))


def test_a_device_that_changes_while_it_is_looked_at_is_not_judged_and_that_is_told(world: AuditedWorld) -> None:
    hold(world.ports, world.device().uuid, OPERATOR)
    world.set_inventory(reserved=0)

    def moves(app: object, environ: object, start: object) -> object:
        world.set_row(release_number=world.device().release_number + 1)
        return app(environ, start)  # type: ignore[operator]

    world.faults.add(moves, method="GET", path="allocations", times=None)  # type: ignore[arg-type]
    found = world.audit()
    assert {each.kind for each in found} == {Kind.IN_MOTION}


# The database


def test_a_drive_that_nobody_holds_is_cleaned_by_the_agent(world: AuditedWorld) -> None:
    world.bind()
    world.the(Kind.ALLOCATED_WITHOUT_REQUEST)
    period(world)
    world.outcome()
    assert world.disagreements() == AGREE


def test_a_bound_drive_that_a_hand_made_available_goes_to_error_by_the_fix(world: AuditedWorld) -> None:
    tenant = Tenant(world)
    tenant.bind()
    tenant.write()
    world.set_row(device_state=DeviceState.AVAILABLE, release_pending=True)
    sweep(world.ports, world.context, "conductor-1")
    assert Kind.REQUEST_WITHOUT_DEVICE in world.disagreements()
    assert "error, reserved=total" in world.fix().values()
    world.assert_withheld()
    tenant.delete()
    tenant.give_up()
    world.clean()
    assert world.disagreements() == AGREE
    assert not world.sim.find(SANITIZING, SECRET)


def test_a_request_that_is_bound_to_nothing_is_named(world: AuditedWorld) -> None:
    tenant = Tenant(world)
    tenant.bind()
    world.execute(arqs.update().values(device_id=None))
    assert {Kind.REQUEST_WITHOUT_DEVICE, Kind.ALLOCATED_WITHOUT_REQUEST} <= world.disagreements()


def test_a_bind_that_nobody_ends_is_ended_by_a_conductors_sweep(world: AuditedWorld) -> None:
    tenant = Tenant(world)
    tenant.bind()
    world.execute(arqs.update().values(state=ARQState.BIND_STARTED, lease_expires_at=utcnow() - timedelta(seconds=100)))
    assert tenant.arqs[0] in world.the(Kind.LEASE_EXPIRED).seen
    conductor(world).sweep()
    tenant.give_up()
    assert world.disagreements() == AGREE


def test_an_available_drive_in_the_ledger_of_dirty_drives_goes_to_error_by_the_fix(world: AuditedWorld) -> None:
    device = world.device()
    row = {"serial": device.serial, "drive_model": device.drive_model, "device_uuid": str(uuid.uuid4())}
    world.execute(dirty_serials.insert().values(**row))
    world.the(Kind.KNOWN_DIRTY)
    assert world.fix() == {Kind.KNOWN_DIRTY: "error, reserved=total"}
    world.assert_withheld()
    assert "known-dirty" in (world.device().state_reason or "")
    assert world.disagreements() == AGREE
    world.clean()
    assert world.disagreements() == AGREE


def test_a_drive_that_is_on_record_in_two_slots_is_named_at_both(world: AuditedWorld) -> None:
    device = world.device()
    with world.db.write() as tx:
        other = make_slot(tx, hostname="host-2", serial=device.serial, drive_model=device.drive_model, missing=True)
    assert Kind.DRIVE_IN_TWO_ROWS not in world.disagreements()
    world.set_row(other.device.pci_address, missing=False)
    found = [each for each in world.audit() if each.kind is Kind.DRIVE_IN_TWO_ROWS]
    assert {each.subject for each in found} == {f"{HOST}/{SANITIZING}", f"host-2/{other.device.pci_address}"}


def test_a_row_without_a_state_is_named(world: AuditedWorld) -> None:
    world.set_row(device_state=None)
    assert world.disagreements() == {Kind.STATE_UNKNOWN, Kind.RESERVED_TOO_LOW}
    world.set_row(device_state=DeviceState.AVAILABLE)


def test_an_agent_that_was_not_seen_for_long_or_never_is_named(world: AuditedWorld) -> None:
    assert "ago" in world.the(Kind.AGENT_SILENT, later=timedelta(minutes=6)).seen
    period(world)
    assert world.disagreements() == AGREE
    world.execute(agents.delete())
    assert "never" in world.the(Kind.AGENT_SILENT).seen


def test_what_somebody_wants_is_information(world: AuditedWorld) -> None:
    hold(world.ports, world.device().uuid, OPERATOR)
    world.execute(sa.update(devices).values(excluded_reason="no"))
    [found] = [each for each in world.audit() if each.kind is Kind.DEVICE_HELD]
    assert (found.seen, found.counts) == ("by hand", False)
    assert world.disagreements() == AGREE


# The host


def test_another_drive_in_the_slot_goes_to_error_by_the_fix(world: AuditedWorld) -> None:
    [agent] = world._agents
    world.end(agent)
    world.sim.insert(SANITIZING, sanitizing_drive(serial="OTHER"))
    assert "OTHER, on record" in world.the(Kind.OTHER_DRIVE).seen
    assert world.disagreements(on_the_host=False) == AGREE
    assert world.fix() == {Kind.OTHER_DRIVE: "error, reserved=total"}
    world.assert_withheld()
    world.start()
    assert world.disagreements() == AGREE
    accept(world.ports, world.device().uuid, OPERATOR)
    world.clean()
    assert world.disagreements() == AGREE
    world.assert_offered()


def test_a_slot_that_is_empty_is_noted_by_the_agent(world: AuditedWorld) -> None:
    world.sim.pull(SANITIZING)
    world.the(Kind.SLOT_EMPTY)
    period(world)
    assert world.disagreements() == AGREE
    assert world.device().missing


def test_an_available_drive_that_another_driver_has_goes_to_error_by_the_fix(world: AuditedWorld) -> None:
    world.sim.give_to_guest(SANITIZING)
    assert "vfio-pci" in world.the(Kind.DRIVER_DIFFERS).seen
    world.fix()
    world.assert_withheld()
    assert world.disagreements() == AGREE
    world.sim.give_back(SANITIZING)
    world.clean()
    world.assert_offered()


def test_an_available_drive_that_no_driver_has_is_named(world: AuditedWorld) -> None:
    function = world.sim.paths.sysfs / "bus/pci/devices" / SANITIZING
    (function / "driver").unlink()
    assert f"echo {SANITIZING} >" in world.the(Kind.NO_DRIVER).remedy
    assert world.fix() == {}


def test_an_available_drive_that_the_host_mounts_goes_to_error_by_the_fix(world: AuditedWorld) -> None:
    table = world.sim.paths.proc / "self/mountinfo"
    before = table.read_text()
    table.write_text(f"{before}99 1 259:99 / /srv/data rw - ext4 /dev/nvme0n1 rw\n")
    assert "is mounted on /srv/data" in world.the(Kind.USED_BY_HOST).seen
    world.fix()
    table.write_text(before)
    world.assert_withheld()
    assert world.disagreements() == AGREE
    world.clean()
    world.assert_offered()


def test_an_available_drive_that_is_reached_by_a_second_path_goes_to_error_by_the_fix(world: AuditedWorld) -> None:
    [subsystem] = (world.sim.paths.sysfs / "class/nvme-subsystem").iterdir()
    second = subsystem / "nvme9"
    second.mkdir()
    (second / "state").write_text("live\n")
    assert "nvme9" in world.the(Kind.SECOND_PATH).seen
    assert world.fix() == {Kind.SECOND_PATH: "error, reserved=total"}
    assert world.disagreements() == AGREE


def test_a_slot_that_cannot_be_read_is_a_finding_and_nothing_is_concluded_from_it(world: AuditedWorld) -> None:
    vendor = world.sim.paths.sysfs / "bus/pci/devices" / SANITIZING / "vendor"
    vendor.write_text("0xffff\n")
    assert "nothing but ones" in world.the(Kind.HOST_UNREADABLE).seen
    assert world.fix() == {}


def test_a_guest_that_is_off_is_information(world: AuditedWorld) -> None:
    Tenant(world).bind()
    assert Kind.GUEST_NOT_RUNNING in {each.kind for each in world.audit()}
    world.sim.give_to_guest(SANITIZING)
    assert Kind.GUEST_NOT_RUNNING not in {each.kind for each in world.audit()}


# libvirt


def given(uuid: str) -> GivenDomains:
    return GivenDomains([Domain(uuid, "web-1", True, frozenset({PCIAddress.parse(SANITIZING)}))])


def test_a_guest_that_has_an_available_drive_takes_it_to_error_by_the_fix(world: AuditedWorld) -> None:
    world.guests = given(str(uuid.uuid4()))
    assert "domain web-1" in world.the(Kind.GUEST_WITHOUT_REQUEST).seen
    world.fix()
    world.assert_withheld()
    world.guests = GivenDomains()
    assert world.disagreements() == AGREE


def test_the_guest_of_the_request_is_expected(world: AuditedWorld) -> None:
    tenant = Tenant(world)
    tenant.bind()
    world.guests = given(tenant.instance)
    assert world.disagreements() == AGREE


def test_a_libvirt_that_does_not_answer_is_a_finding_and_the_drives_are_looked_at_all_the_same(
    world: AuditedWorld,
) -> None:
    world.guests = GivenDomains(failure=HardwareError("no libvirtd"))
    world.sim.give_to_guest(SANITIZING)
    assert world.disagreements() == {Kind.LIBVIRT_UNREADABLE, Kind.DRIVER_DIFFERS}


# Scope


def test_what_is_not_asked_for_is_not_told(world: AuditedWorld) -> None:
    with world.db.write() as tx:
        make_slot(tx, hostname="host-2")
    world.set_inventory(reserved=1)
    slot = f"{HOST}/{SANITIZING}"
    assert {each.subject for each in world.audit() if each.counts} > {slot}
    for scope in (Scope(device=slot), Scope(device=world.device().uuid), Scope(host=HOST)):
        assert {each.subject for each in world.audit(scope) if each.counts} == {slot}
    assert slot not in {each.subject for each in world.audit(Scope(host="host-2"))}
