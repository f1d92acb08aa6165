"""Disagreements about the PCI functions of flavors, made by hand, are named by an audit and gone once put right."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from auditworld import AuditedWorld

from autoclave.audit.auditor import Scope
from autoclave.db.agents import AgentRecord, register
from autoclave.db.columns import utcnow
from autoclave.db.tables import instances
from autoclave.lifecycle import operator
from autoclave.lifecycle.ports import Ports
from autoclave.placement.embedded import EmbeddedPlacement
from autoclave.placement.records import Inventory
from autoclave.rules.audit.kinds import Kind
from autoclave.rules.audit.model import Finding
from autoclave.rules.reclaim import Reclaim
from autoclave.testing.placement.faults import refuse
from burnedrows import CLASS, OPERATOR, NoCleaners, OneTimeUse, describe
from computerows import make_instance

RACK = "rack_7"
ADDRESS = "0000:81:00.0"
OF_THE_RACK = Scope(RACK)


@pytest.fixture
def world(tmp_path: Path, real_placement: EmbeddedPlacement) -> Iterator[AuditedWorld]:
    made = AuditedWorld(tmp_path, real_placement)
    made.start()
    with made.db.write() as tx:
        register(tx, AgentRecord(RACK, "run", "1.2", utcnow(), utcnow()))
    yield made
    made.close()


class Lending(OneTimeUse):
    """The instances have rows, which go with them."""

    def use(self, rp_uuid: str, instance: str | None = None) -> str:
        with self.db.write() as tx:
            made = make_instance(tx, host=self.host, task_state=None)
        return super().use(rp_uuid, made.uuid)

    def delete(self, instance: str) -> None:
        super().delete(instance)
        with self.db.write() as tx:
            tx.execute(instances.delete().where(instances.c.uuid == instance))


@pytest.fixture
def devices(world: AuditedWorld) -> OneTimeUse:
    return Lending(world.db, world.onlooker, RACK)


STRANGER = "77777777-7777-4777-8777-777777777777"


def lower(devices: OneTimeUse, rp_uuid: str) -> None:
    generation = devices.placement.get_inventories(rp_uuid).generation
    devices.placement.put_inventories(rp_uuid, generation, {CLASS: Inventory(1, 0, 1, 1, 1, 1.0)})


def found(world: AuditedWorld, scope: Scope = OF_THE_RACK) -> list[Finding]:
    return world.audit(scope)


def test_all_agree_on_a_device_of_one_time_use_through_its_whole_life(world: AuditedWorld, devices: OneTimeUse) -> None:
    rp_uuid = devices.add()
    assert found(world) == []
    instance = devices.use(rp_uuid)
    assert found(world) == []
    devices.delete(instance)
    assert found(world) == []
    devices.settle(rp_uuid)
    assert found(world) == []


def test_a_burned_device_that_placement_would_offer_is_reserved_by_the_fix(
    world: AuditedWorld, devices: OneTimeUse
) -> None:
    rp_uuid = devices.add()
    devices.delete(devices.use(rp_uuid))
    lower(devices, rp_uuid)
    assert devices.offered(rp_uuid)
    [finding] = found(world)
    assert (finding.kind, finding.subject) == (Kind.RESERVED_TOO_LOW, f"{RACK}/{ADDRESS}")
    assert finding.seen == "reserved=0 of 1, while it is burned and not yet seen idle"
    assert world.remedies.fix([finding]) == {finding: "reserved=total"}
    assert not devices.offered(rp_uuid)
    assert found(world) == []


def test_a_fix_that_placement_does_not_hear_of_says_so(world: AuditedWorld, devices: OneTimeUse) -> None:
    rp_uuid = devices.add()
    devices.use(rp_uuid)
    lower(devices, rp_uuid)
    [finding] = found(world)
    assert finding.seen.endswith("burned and in use")
    world.faults.add(refuse)
    assert world.remedies.fix([finding]) == {finding: "Placement does not answer and will be told later"}


def test_a_fix_does_not_burn_again_what_was_released_meanwhile(world: AuditedWorld, devices: OneTimeUse) -> None:
    rp_uuid = devices.add()
    devices.delete(devices.use(rp_uuid))
    lower(devices, rp_uuid)
    [finding] = found(world)
    operator.release_spent(Ports(world.db, world.onlooker, NoCleaners()), rp_uuid, OPERATOR)
    assert world.remedies.fix([finding]) == {finding: "nothing: it was released meanwhile"}


def test_a_release_that_the_agent_has_not_noted_and_a_hold_are_information(
    world: AuditedWorld, devices: OneTimeUse
) -> None:
    released, held = devices.burned(), devices.add("0000:82:00.0")
    lower(devices, released)
    devices.hold(held)
    kinds = {each.subject: each.kind for each in found(world)}
    assert kinds == {f"{RACK}/{ADDRESS}": Kind.RELEASE_UNFINISHED, f"{RACK}/0000:82:00.0": Kind.FUNCTION_HELD}
    assert world.disagreements(scope=Scope(RACK)) == set()
    [hold] = found(world, Scope(device=f"{RACK}/0000:82:00.0"))
    assert hold.remedy.endswith(f"--resource {CLASS}:reserved=0 {held}`.")


def test_a_device_that_is_not_of_one_time_use_is_named_as_returning_uncleaned(
    world: AuditedWorld, devices: OneTimeUse
) -> None:
    rp_uuid = devices.add()
    with world.db.write() as tx:
        describe(tx, devices.row(rp_uuid), {"reclaim": Reclaim.NONE})
    [finding] = found(world)
    assert (finding.kind, finding.subject, finding.seen, finding.counts) == (
        Kind.RETURNS_UNCLEANED,
        RACK,
        ADDRESS,
        False,
    )


def test_a_device_that_changes_while_it_is_looked_at_is_not_judged(world: AuditedWorld, devices: OneTimeUse) -> None:
    rp_uuid = devices.add()
    devices.delete(devices.use(rp_uuid))
    lower(devices, rp_uuid)

    def settle() -> None:
        devices.settle(rp_uuid)

    assert world.audit(Scope(RACK), meanwhile=settle) == []


def test_an_agent_that_serves_nothing_but_functions_is_missed_when_it_is_silent(
    world: AuditedWorld, devices: OneTimeUse
) -> None:
    devices.add()
    with world.db.write() as tx:
        register(tx, AgentRecord(RACK, "run", "1.2", utcnow(), utcnow().replace(year=2020)))
    assert [each.kind for each in found(world)] == [Kind.AGENT_SILENT]


def test_a_provider_that_has_taken_the_name_of_a_functions_is_named(world: AuditedWorld, devices: OneTimeUse) -> None:
    """The agent cannot make its own beside it, so that waiting for the agent is no remedy."""
    rp_uuid = devices.add()
    devices.delete(devices.use(rp_uuid))
    ours = devices.placement.get_provider(rp_uuid)
    devices.placement.delete_provider(rp_uuid)
    assert [each.kind for each in found(world)] == [Kind.PROVIDER_MISSING]
    strange = devices.placement.create_provider(STRANGER, ours.name, ours.parent)
    [finding] = found(world)
    assert (finding.kind, finding.subject) == (Kind.PROVIDER_OF_ANOTHER, f"{RACK}/{ADDRESS}")
    assert finding.seen == f"{ours.name} is provider {STRANGER} in Placement, {rp_uuid} in the database"
    assert f"openstack resource provider delete {strange.uuid}" in finding.remedy
