"""A device that served an instance once is not offered until the operator has released it."""

import pytest
from pciworld import CLASS, GPU, HOST, ONE, TWO, PCIWorld

import burnedrows
from autoclave.db import history, pci
from autoclave.db.columns import utcnow
from autoclave.db.engine import Database
from autoclave.db.pci import Addition, AdditionKind
from autoclave.exceptions import Conflict, NotFound, PlacementConflict, PlacementNotFound, PlacementUnavailable
from autoclave.lifecycle import claims
from autoclave.lifecycle.pci_inventory import withdraw
from autoclave.lifecycle.reserve import Settled
from autoclave.lifecycle.transitions import Cause, swap
from autoclave.placement.records import ConsumerAllocations, Inventory
from autoclave.rules.device_lifecycle import Actor, Event
from autoclave.rules.reclaim import BurnState, Reclaim
from autoclave.testing.placement.faults import after, before, lose_answer, refuse
from burnedrows import OPERATOR, ask_release

pytestmark = pytest.mark.matrix


def test_a_new_device_is_offered_with_a_whole_record(pci_world: PCIWorld, gpu: str) -> None:
    assert pci_world.inventory(gpu) == Inventory(1, 0, 1, 1, 1, 1.0)
    assert pci_world.settle(gpu) is Settled.UNCHANGED


def test_an_unchanged_device_costs_one_request(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.faults.clear()
    pci_world.settle(gpu)
    assert [call.method for call in pci_world.faults.calls] == ["GET"]


def test_a_claimed_device_is_reserved_and_stays_so_when_its_instance_is_gone(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.use_up(gpu)
    assert pci_world.reserved(gpu) == 1
    row = pci_world.row(gpu)
    assert (row.burned, row.device.burn_confirmed, row.device.burned_for) == (True, True, ONE)
    assert pci_world.settle(gpu) is Settled.UNCHANGED
    assert not pci_world.offered(gpu)


def test_raising_writes_over_an_equal_value_so_that_a_slower_writer_loses(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.allocate(gpu)
    pci_world.claim(gpu)
    pci_world.lower(gpu, 1)
    generation = pci_world.onlooker.get_inventories(gpu).generation
    assert pci_world.settle(gpu) is Settled.RAISED
    assert pci_world.onlooker.get_inventories(gpu).generation > generation


def test_a_device_in_use_that_somebody_lowered_is_burned_again(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.allocate(gpu)
    pci_world.claim(gpu)
    pci_world.settle(gpu)
    pci_world.lower(gpu)
    assert pci_world.settle(gpu) is Settled.RAISED
    assert pci_world.reserved(gpu) == 1
    assert not pci_world.row(gpu).device.burn_confirmed


def test_what_was_lowered_before_the_device_was_seen_idle_is_no_release(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.allocate(gpu)
    pci_world.claim(gpu)
    pci_world.settle(gpu)
    pci_world.free()
    pci_world.lower(gpu)  # while the allocation stands
    pci_world.deallocate()
    assert pci_world.settle(gpu) is Settled.RAISED
    assert pci_world.row(gpu).burned
    assert not pci_world.offered(gpu)


def test_what_placement_has_a_user_of_is_not_confirmed(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.allocate(gpu)
    pci_world.claim(gpu)
    pci_world.settle(gpu)
    pci_world.free()
    assert pci_world.settle(gpu) is Settled.UNCHANGED
    assert not pci_world.row(gpu).device.burn_confirmed


def test_the_operators_release_by_hand_ends_the_burn(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.use_up(gpu)
    pci_world.lower(gpu)
    assert pci_world.settle(gpu) is Settled.LOWERED
    row = pci_world.row(gpu)
    device = row.device
    assert (row.burned, device.burn_confirmed, device.release_pending, device.burned_for) == (False, False, False, None)
    assert pci_world.offered(gpu)
    pci_world.use_up(gpu, TWO)
    assert not pci_world.offered(gpu)


def amend_total(world: PCIWorld, rp_uuid: str, total: int) -> None:
    """Another writes the whole record with a total of its own, and leaves ``reserved`` as it reads it."""
    present = world.onlooker.get_inventories(rp_uuid)
    record = Inventory(total, present.records[CLASS].reserved, 1, total, 1, 1.0)
    world.onlooker.put_inventories(rp_uuid, present.generation, {CLASS: record})


def test_a_raised_total_is_no_release(pci_world: PCIWorld, gpu: str, caplog: pytest.LogCaptureFixture) -> None:
    """``reserved`` below a total that another wrote says nothing about the device."""
    pci_world.use_up(gpu)
    amend_total(pci_world, gpu, 2)
    assert pci_world.offered(gpu)  # until it is settled
    assert pci_world.settle(gpu) is Settled.UNCHANGED
    assert pci_world.row(gpu).burn_state is BurnState.CONFIRMED
    assert pci_world.inventory(gpu) == Inventory(1, 1, 1, 1, 1, 1.0)
    assert "total=2 and reserved=1" in caplog.text
    assert "is still burned" in caplog.text


def test_a_raised_total_and_a_release_is_a_release(pci_world: PCIWorld, gpu: str) -> None:
    """Whatever else of the record is changed, reserved=0 is the operator's release."""
    pci_world.use_up(gpu)
    amend_total(pci_world, gpu, 2)
    pci_world.lower(gpu)
    assert pci_world.settle(gpu) is Settled.LOWERED
    assert pci_world.inventory(gpu) == Inventory(1, 0, 1, 1, 1, 1.0)


def test_a_raised_total_before_the_burn_is_confirmed(pci_world: PCIWorld, gpu: str) -> None:
    """The burn is confirmed with the record put back in the same write."""
    pci_world.allocate(gpu)
    pci_world.claim(gpu)
    pci_world.settle(gpu)
    pci_world.free()
    pci_world.deallocate()
    amend_total(pci_world, gpu, 3)
    assert pci_world.settle(gpu) is Settled.CONFIRMED
    assert pci_world.inventory(gpu) == Inventory(1, 1, 1, 1, 1, 1.0)


def test_a_hold_survives_another_total(pci_world: PCIWorld, gpu: str) -> None:
    """An operator's hold in Placement is ``reserved`` of all that we offer."""
    pci_world.lower(gpu, 1)
    amend_total(pci_world, gpu, 2)
    assert pci_world.settle(gpu) is Settled.OPERATORS_HOLD
    assert not pci_world.offered(gpu)


def test_lowered_while_the_burn_is_being_confirmed_is_no_release(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.allocate(gpu)
    pci_world.claim(gpu)
    pci_world.settle(gpu)
    pci_world.free()
    pci_world.deallocate()
    pci_world.faults.add(after(lambda: pci_world.lower(gpu)), path="/usages$", times=1)
    assert pci_world.settle(gpu) is Settled.RAISED
    assert pci_world.settle(gpu) is Settled.CONFIRMED
    assert pci_world.reserved(gpu) == 1


def test_a_burned_device_is_not_offered_when_its_provider_is_made_again(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.use_up(gpu)
    pci_world.onlooker.delete_provider(gpu)
    with pytest.raises(PlacementNotFound):
        pci_world.settle(gpu)
    pci_world.make(gpu)
    assert pci_world.settle(gpu) is Settled.RAISED
    assert pci_world.reserved(gpu) == 1
    pci_world.lower(gpu)
    assert pci_world.settle(gpu) is Settled.LOWERED


def test_a_burned_device_is_not_offered_when_its_inventory_was_deleted(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.use_up(gpu)
    pci_world.onlooker.put_inventories(gpu, pci_world.onlooker.get_inventories(gpu).generation, {})
    assert pci_world.settle(gpu) is Settled.RAISED
    assert pci_world.reserved(gpu) == 1


def test_the_flag_taken_away_from_a_burned_device_releases_nothing(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.use_up(gpu)
    with pci_world.db.write() as tx:
        burnedrows.describe(tx, pci_world.row(gpu), {"reclaim": Reclaim.NONE})
    assert pci_world.settle(gpu) is Settled.UNCHANGED
    assert not pci_world.offered(gpu)


def test_a_device_that_another_holds_in_placement_stays_held(pci_world: PCIWorld) -> None:
    rp_uuid = pci_world.add()
    generation = pci_world.onlooker.get_inventories(rp_uuid).generation
    with pci_world.db.read() as tx:
        assert pci.get(tx, rp_uuid) is not None
    pci_world.service.client().ensure_resource_class(CLASS)
    pci_world.onlooker.put_inventories(rp_uuid, generation, {CLASS: Inventory(1, 1, 1, 1, 1, 1.0)})
    assert pci_world.settle(rp_uuid) is Settled.OPERATORS_HOLD
    assert pci_world.reserved(rp_uuid) == 1


def test_a_hold_survives_a_change_of_class(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.lower(gpu, 1)
    with pci_world.db.write() as tx:
        burnedrows.describe(tx, pci_world.row(gpu), {"resource_class": "CUSTOM_GPU"})
    assert pci_world.settle(gpu) is Settled.OPERATORS_HOLD
    assert pci_world.onlooker.get_inventories(gpu).records == {"CUSTOM_GPU": Inventory(1, 1, 1, 1, 1, 1.0)}


def test_a_hold_survives_another_total_and_another_class(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.lower(gpu, 1)
    amend_total(pci_world, gpu, 2)
    with pci_world.db.write() as tx:
        burnedrows.describe(tx, pci_world.row(gpu), {"resource_class": "CUSTOM_GPU"})
    assert pci_world.settle(gpu) is Settled.OPERATORS_HOLD
    assert pci_world.onlooker.get_inventories(gpu).records == {"CUSTOM_GPU": Inventory(1, 1, 1, 1, 1, 1.0)}


def test_a_class_that_is_allocated_is_left_until_it_is_given_back(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.allocate(gpu)
    with pci_world.db.write() as tx:
        burnedrows.describe(tx, pci_world.row(gpu), {"resource_class": "CUSTOM_GPU"})
    assert pci_world.settle(gpu) is Settled.UNCHANGED
    assert set(pci_world.onlooker.get_inventories(gpu).records) == {CLASS}
    pci_world.deallocate()
    pci_world.settle(gpu)
    assert set(pci_world.onlooker.get_inventories(gpu).records) == {"CUSTOM_GPU"}


def test_a_burned_device_is_raised_although_somebody_uses_a_class_of_his_own_there(
    pci_world: PCIWorld, gpu: str
) -> None:
    pci_world.use_up(gpu)
    client = pci_world.onlooker
    client.ensure_resource_class("CUSTOM_FOREIGN")
    present = client.get_inventories(gpu)
    foreign = Inventory(4, 0, 1, 4, 1, 1.0)
    client.put_inventories(gpu, present.generation, {"CUSTOM_FOREIGN": foreign})
    client.put_allocations(ConsumerAllocations(TWO, {gpu: {"CUSTOM_FOREIGN": 1}}, None, "project", "user"))
    assert pci_world.settle(gpu) is Settled.RAISED
    records = client.get_inventories(gpu).records
    assert (records[CLASS].reserved, records["CUSTOM_FOREIGN"].reserved) == (1, 4)


def test_what_provider_config_added_is_kept(pci_world: PCIWorld, gpu: str) -> None:
    with pci_world.db.write() as tx:
        pci.remember(tx, HOST, frozenset({Addition(gpu, AdditionKind.INVENTORY, "CUSTOM_LICENCE")}))
    client = pci_world.onlooker
    client.ensure_resource_class("CUSTOM_LICENCE")
    present = client.get_inventories(gpu)
    licence = Inventory(8, 0, 1, 8, 1, 1.0)
    client.put_inventories(gpu, present.generation, {**present.records, "CUSTOM_LICENCE": licence})
    pci_world.use_up(gpu)
    assert client.get_inventories(gpu).records["CUSTOM_LICENCE"] == licence


def test_a_raise_whose_answer_is_lost_may_be_repeated(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.allocate(gpu)
    pci_world.claim(gpu)
    pci_world.faults.add(lose_answer, method="PUT", path="/inventories$", times=1)
    with pytest.raises(PlacementUnavailable):
        pci_world.settle(gpu)
    assert pci_world.settle(gpu) is Settled.RAISED
    assert pci_world.reserved(gpu) == 1


def test_a_generation_that_moves_every_time_is_told(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.allocate(gpu)
    pci_world.claim(gpu)
    pci_world.faults.add(before(lambda: pci_world.lower(gpu)), method="PUT", path="/inventories$")
    with pytest.raises(PlacementConflict, match="the next period retries"):
        pci_world.settle(gpu)


def test_a_claim_while_a_release_is_lowered_wins(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.use_up(gpu)

    def claimed_at_once() -> None:
        pci_world.allocate(gpu, TWO)
        pci_world.claim(gpu, TWO)

    pci_world.faults.add(after(claimed_at_once), method="PUT", path="/inventories$", times=1)
    ask_release(pci_world.db, pci_world.placement, gpu, OPERATOR)
    row = pci_world.row(gpu)
    assert (row.burned, row.device.release_pending, row.device.burned_for) == (True, False, TWO)
    assert pci_world.settle(gpu) is Settled.RAISED


# The operator's word


def test_a_release_by_word_offers_the_device_again(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.use_up(gpu)
    assert ask_release(pci_world.db, pci_world.placement, gpu, OPERATOR) is Settled.LOWERED
    assert pci_world.offered(gpu)
    assert not pci_world.row(gpu).burned


def test_a_release_by_word_is_kept_while_placement_is_away(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.use_up(gpu)
    pci_world.faults.add(refuse, path="/inventories$")
    with pytest.raises(PlacementUnavailable):
        ask_release(pci_world.db, pci_world.placement, gpu, OPERATOR)
    assert not pci_world.offered(gpu)
    pci_world.faults.clear()
    assert pci_world.settle(gpu) is Settled.LOWERED
    assert pci_world.offered(gpu)


def test_a_device_in_use_is_not_released(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.allocate(gpu)
    pci_world.claim(gpu)
    pci_world.settle(gpu)
    with pytest.raises(Conflict, match=f"{GPU} of host {HOST} is in use by instance {ONE}"):
        ask_release(pci_world.db, pci_world.placement, gpu, OPERATOR)
    pci_world.free()
    with pytest.raises(Conflict, match="in use"):  # its allocation stands
        ask_release(pci_world.db, pci_world.placement, gpu, OPERATOR)


def test_only_what_is_burned_is_released(pci_world: PCIWorld, gpu: str) -> None:
    with pytest.raises(Conflict, match="is not burned"):
        ask_release(pci_world.db, pci_world.placement, gpu, OPERATOR)
    with pytest.raises(NotFound):
        ask_release(pci_world.db, pci_world.placement, ONE, OPERATOR)


def test_a_release_names_whom_the_device_was_burned_by(pci_world: PCIWorld, gpu: str) -> None:
    """Who has cleaned it after one instance does not speak for the next one."""
    pci_world.use_up(gpu)
    with pytest.raises(Conflict, match=f"{GPU} of host {HOST} was burned by instance {ONE}, not by {TWO}"):
        ask_release(pci_world.db, pci_world.placement, gpu, OPERATOR, burned_for=TWO)
    assert pci_world.row(gpu).burn_state is BurnState.CONFIRMED
    assert ask_release(pci_world.db, pci_world.placement, gpu, OPERATOR, burned_for=ONE) is Settled.LOWERED


def test_a_device_that_an_unknown_consumer_still_has_is_not_released(pci_world: PCIWorld, gpu: str) -> None:
    claims.burn_for_unknown(pci_world.db, pci_world.row(gpu), [ONE], utcnow(), Cause(Actor.AGENT, HOST))
    pci_world.allocate(gpu)
    with pytest.raises(Conflict, match=f"{GPU} of host {HOST} is in use by an instance: delete that first"):
        ask_release(pci_world.db, pci_world.placement, gpu, OPERATOR)


def test_a_release_without_a_provider_in_placement_is_kept(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.use_up(gpu)
    pci_world.onlooker.delete_provider(gpu)
    with pytest.raises(PlacementNotFound):
        ask_release(pci_world.db, pci_world.placement, gpu, OPERATOR)
    assert pci_world.row(gpu).burn_state is BurnState.RELEASED
    pci_world.make(gpu)
    assert pci_world.settle(gpu) is Settled.LOWERED


def test_a_release_that_is_asked_for_twice_is_one(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.use_up(gpu)
    pci_world.faults.add(refuse, path="/inventories$")
    for _ in range(2):
        with pytest.raises(PlacementUnavailable):
            ask_release(pci_world.db, pci_world.placement, gpu, OPERATOR)
    with pci_world.db.read() as tx:
        assert [each.event for each in history.history(tx, gpu)].count("release") == 1


def test_a_released_device_that_is_missing_is_not_offered(pci_world: PCIWorld, gpu: str) -> None:
    pci_world.use_up(gpu)
    with pci_world.db.write() as tx:
        burnedrows.describe(tx, pci_world.row(gpu), {"missing": True})
    assert ask_release(pci_world.db, pci_world.placement, gpu, OPERATOR) is Settled.RAISED
    assert not pci_world.offered(gpu)
    with pci_world.db.write() as tx:
        burnedrows.describe(tx, pci_world.row(gpu), {"missing": False})
    assert pci_world.settle(gpu) is Settled.LOWERED


def test_a_released_device_is_offered_while_one_of_its_functions_is_missing(pci_world: PCIWorld) -> None:
    card = pci_world.add("0000:82:00.0", total=2)
    pci_world.settle(card)
    pci_world.use_up(card)
    with pci_world.db.write() as tx:
        pci.describe_function(tx, pci.functions_of(tx, pci_world.row(card))[0], {"missing": True})
    assert ask_release(pci_world.db, pci_world.placement, card, OPERATOR) is Settled.LOWERED
    assert pci_world.inventory(card) == Inventory(2, 0, 1, 2, 1, 1.0)


def test_what_an_operator_has_partly_reserved_stays_so(pci_world: PCIWorld) -> None:
    card = pci_world.add("0000:82:00.0", total=4, reclaim=Reclaim.NONE)
    pci_world.settle(card)
    pci_world.lower(card, 3)
    amend_total(pci_world, card, 8)
    assert pci_world.settle(card) is Settled.UNCHANGED
    assert pci_world.inventory(card) == Inventory(4, 3, 1, 4, 1, 1.0)


def test_a_row_that_moves_on_while_placement_is_read_is_judged_anew(pci_world: PCIWorld, gpu: str) -> None:
    """An inventory that was read before a burn was confirmed tells of no release."""
    pci_world.allocate(gpu)
    pci_world.claim(gpu)
    pci_world.settle(gpu)
    pci_world.free()
    pci_world.deallocate()
    pci_world.lower(gpu)

    def confirm_meanwhile() -> None:
        with pci_world.db.write() as tx:
            swap(tx, pci_world.row(gpu).device, Event.CONFIRM, OPERATOR, {"burn_confirmed": True})
        pci_world.lower(gpu, 1)

    pci_world.faults.add(after(confirm_meanwhile), method="GET", path="/inventories$", times=1)
    assert pci_world.settle(gpu) is Settled.UNCHANGED
    assert pci_world.row(gpu).burn_state is BurnState.CONFIRMED
    assert not pci_world.offered(gpu)


# The rows, on each engine


def test_a_function_is_given_to_one_instance(database: Database) -> None:
    with database.write() as tx:
        burnedrows.insert(tx, ONE, HOST, GPU, [GPU])
        provider = pci.get(tx, ONE, lock=True)
        assert provider is not None
        [found] = pci.functions_of(tx, provider)
        assert pci.claim(tx, [found.id], ONE)
        assert not pci.claim(tx, [found.id], TWO)
        renewed = pci.get(tx, ONE, lock=True)
        assert renewed is not None
        assert not withdraw(tx, renewed), "an instance has it"
        assert [each.instance_uuid for each in pci.functions_of_instances(tx, [ONE, TWO])] == [ONE]
        [held] = pci.functions_of(tx, provider)
        assert not pci.free(tx, found), "it was free then"
        assert pci.free(tx, held)
        assert withdraw(tx, renewed)
        assert pci.providers(tx) == []


def test_a_hold_after_the_release_of_a_withheld_device_stays(pci_world: PCIWorld, gpu: str) -> None:
    """A doubt had the device reserved, and ended; before it was lowered, an instance burned the device.

    The release ends both. What an operator reserves in Placement afterwards is a hold, and nothing that the doubt left.
    """
    pci_world.allocate(gpu)
    for reason in ("it has no power", None):
        with pci_world.db.write() as tx:
            burnedrows.describe(tx, pci_world.row(gpu), {"unreadable_reason": reason})
        if reason is not None:
            assert pci_world.settle(gpu) is Settled.RAISED
    assert pci_world.row(gpu).device.withheld
    pci_world.claim(gpu)
    pci_world.free()
    pci_world.deallocate()
    assert pci_world.settle(gpu) is Settled.CONFIRMED
    ask_release(pci_world.db, pci_world.placement, gpu, OPERATOR)
    assert (pci_world.offered(gpu), pci_world.row(gpu).burn_state) == (True, BurnState.NOT_BURNED)
    pci_world.lower(gpu, reserved=1)
    pci_world.settle(gpu)
    assert pci_world.reserved(gpu) == 1
