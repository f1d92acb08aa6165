"""Placement has of a device what its row demands, and is written when that is not so."""

import uuid
from typing import Any

import pytest

from autoclave.db import attributes, devices
from autoclave.db.devices import DeviceRecord
from autoclave.db.engine import Database
from autoclave.exceptions import PlacementConflict, PlacementNotFound, PlacementUnavailable, TraitsMissing
from autoclave.lifecycle.reserve import Settled, secure, settle
from autoclave.placement.provider_tree import ATTEMPTS
from autoclave.placement.records import ConsumerAllocations, Inventory
from autoclave.rules.device_lifecycle import DeviceState
from autoclave.rules.resource_names import OWNER_CYBORG
from autoclave.testing.placement import FakePlacement
from autoclave.testing.placement.faults import Faults, after, before, refuse
from dbfixtures import Slot, make_slot

CLASS, FORMER = "CUSTOM_NVME", "CUSTOM_FORMER"
TRAIT = "HW_NVME_CES"


def record(total: int, reserved: int) -> Inventory:
    return Inventory(total=total, reserved=reserved, min_unit=1, max_unit=total, step_size=1, allocation_ratio=1.0)


class Site:
    """One device. ``placement`` may be made to fail; ``onlooker`` sees it as it is."""

    def __init__(self, database: Database) -> None:
        self.db = database
        service = FakePlacement()
        self.faults = Faults(service)
        self.placement, self.onlooker = self.faults.client(), service.client()
        self.root = self.onlooker.create_provider(str(uuid.uuid4()), "host-1").uuid
        self.onlooker.ensure_resource_class(CLASS)
        self.onlooker.ensure_resource_class(FORMER)
        self.device, self.rp_uuid = self.add()

    def add(self, accelerators: int = 1, traits: tuple[str, ...] = (OWNER_CYBORG, TRAIT), **values: Any) -> Any:
        with self.db.write() as tx:
            slot: Slot = make_slot(tx, release_pending=True, release_number=1, **values)
            devices.set_accelerators(tx, slot.deployable, accelerators)
            attributes.replace(tx, slot.deployable.id, {"trait0": TRAIT})
        made = self.onlooker.create_provider(slot.deployable.rp_uuid, slot.deployable.name, self.root)
        self.onlooker.put_traits(made.uuid, made.generation, traits)
        return slot.device.uuid, made.uuid

    def settle(self, device_uuid: str | None = None) -> Settled:
        return settle(self.db, self.placement, device_uuid or self.device)

    def update(self, **values: Any) -> None:
        with self.db.write() as tx:
            device = devices.get(tx, self.device)
            assert device is not None
            devices.update(tx, device, values)

    @property
    def row(self) -> DeviceRecord:
        with self.db.read() as tx:
            found = devices.get(tx, self.device)
        assert found is not None
        return found

    @property
    def records(self) -> Any:
        return self.onlooker.get_inventories(self.rp_uuid).records

    @property
    def generation(self) -> int:
        return self.onlooker.get_inventories(self.rp_uuid).generation

    def write(self, **records: Inventory) -> None:
        """What another service or an operator does."""
        self.onlooker.put_inventories(self.rp_uuid, self.generation, records)


@pytest.fixture
def site(database: Database) -> Site:
    """An available device that is owed its offer."""
    return Site(database)


def test_an_owed_offer_is_made_and_paid(site: Site) -> None:
    assert site.settle() is Settled.LOWERED
    assert site.records == {CLASS: record(1, 0)}
    assert not site.row.release_pending
    generation = site.generation
    assert site.settle() is Settled.UNCHANGED
    assert site.generation == generation


@pytest.mark.parametrize("missing", [OWNER_CYBORG, TRAIT])
def test_a_device_without_one_of_its_traits_is_not_offered(site: Site, missing: str) -> None:
    present = site.onlooker.get_traits(site.rp_uuid)
    site.onlooker.put_traits(site.rp_uuid, present.generation, present.names - {missing})
    with pytest.raises(TraitsMissing, match=missing):
        site.settle()
    assert site.records == {}
    assert site.row.release_pending
    secure(site.db, site.placement, site.device)  # nobody who binds waits for that


def test_a_withheld_device_needs_no_traits(site: Site) -> None:
    site.onlooker.put_traits(site.rp_uuid, site.generation, [])
    site.update(device_state=DeviceState.ERROR)
    assert site.settle() is Settled.RAISED
    assert site.records == {CLASS: record(1, 1)}


def test_securing_tells_that_placement_does_not_answer(site: Site) -> None:
    site.faults.add(refuse)
    with pytest.raises(PlacementUnavailable):
        secure(site.db, site.placement, site.device)


def test_raising_writes_over_an_equal_value(site: Site) -> None:
    """A slower writer with older news loses."""
    site.update(device_state=DeviceState.ALLOCATED)
    site.settle()
    generation = site.generation
    assert site.settle() is Settled.RAISED
    assert (site.generation, site.records) == (generation + 1, {CLASS: record(1, 1)})


def test_a_device_that_is_bound_while_it_is_settled_is_not_offered(site: Site) -> None:
    site.faults.add(
        before(lambda: (site.update(device_state=DeviceState.ALLOCATED), site.write(**{CLASS: record(1, 1)}))),
        method="PUT",
        path="/inventories$",
        times=1,
    )
    assert site.settle() is Settled.RAISED
    assert site.records == {CLASS: record(1, 1)}


def test_a_hold_by_an_operator_is_left_alone(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.settle()
    site.write(**{CLASS: record(1, 1)})
    generation = site.generation
    assert site.settle() is Settled.OPERATORS_HOLD
    assert (site.generation, site.records) == (generation, {CLASS: record(1, 1)})
    assert f"Device {site.device}" in caplog.text
    assert "Placement has reserved=1" in caplog.text


def test_a_hold_survives_a_record_that_another_has_written(site: Site) -> None:
    site.settle()
    site.write(**{CLASS: Inventory(1, 1, 1, 1, 1, 2.0)})
    assert site.settle() is Settled.OPERATORS_HOLD
    assert site.records == {CLASS: record(1, 1)}


def test_what_is_partly_reserved_stays_so_with_a_whole_record(site: Site) -> None:
    site.device, site.rp_uuid = site.add(accelerators=4)
    assert site.settle() is Settled.LOWERED
    site.write(**{CLASS: record(8, 3)})
    assert site.settle() is Settled.UNCHANGED
    assert site.records == {CLASS: record(4, 3)}
    site.write(**{CLASS: record(8, 6)})
    assert site.settle() is Settled.OPERATORS_HOLD
    assert site.records == {CLASS: record(4, 4)}


def test_a_lost_inventory_is_written_again_without_a_debt(site: Site) -> None:
    site.settle()
    site.write()
    assert site.settle() is Settled.LOWERED
    assert site.records == {CLASS: record(1, 0)}


def test_a_debt_that_is_made_meanwhile_is_not_paid(site: Site) -> None:
    """Else an offer that was withdrawn and owed anew would be lost."""
    site.faults.add(
        after(lambda: site.update(release_number=site.row.release_number + 1)), method="PUT", path="/inventories$"
    )
    assert site.settle() is Settled.LOWERED
    assert site.row.release_pending


def test_a_debt_of_a_later_version_is_not_paid(site: Site) -> None:
    site.faults.add(
        after(lambda: site.update(state_version=site.row.state_version + 1)), method="PUT", path="/inventories$"
    )
    assert site.settle() is Settled.LOWERED
    assert site.row.release_pending


def test_the_debt_of_one_device_is_not_paid_for_another(site: Site) -> None:
    other, _ = site.add()
    site.settle(other)
    assert site.row.release_pending


def test_a_former_class_goes_unless_it_is_allocated(site: Site) -> None:
    site.settle()
    site.write(**{FORMER: record(1, 0)})
    consumer = str(uuid.uuid4())
    claim = ConsumerAllocations(consumer, {site.rp_uuid: {FORMER: 1}}, None, "project", "user")
    site.onlooker.put_allocations(claim)
    assert site.settle() is Settled.LOWERED
    assert site.records == {CLASS: record(1, 0), FORMER: record(1, 1)}
    site.onlooker.delete_allocations(consumer)
    assert site.settle() is Settled.UNCHANGED
    assert site.records == {CLASS: record(1, 0)}


def test_a_generation_that_moves_each_time_is_told(site: Site) -> None:
    numbers = iter(range(1, 100))
    site.faults.add(
        before(lambda: site.write(**{CLASS: record(99, next(numbers))})), method="PUT", path="/inventories$"
    )
    with pytest.raises(PlacementConflict, match=f"{site.rp_uuid} could not be written in {ATTEMPTS} attempts"):
        site.settle()
    assert len([call for call in site.faults.calls if call.method == "PUT"]) == ATTEMPTS
    assert site.row.release_pending


def test_a_device_that_is_not_on_record_is_gone(site: Site) -> None:
    assert site.settle(str(uuid.uuid4())) is Settled.GONE


def test_a_device_without_its_provider_is_not_found(site: Site) -> None:
    site.onlooker.delete_provider(site.rp_uuid)
    with pytest.raises(PlacementNotFound):
        site.settle()
    assert site.row.release_pending
