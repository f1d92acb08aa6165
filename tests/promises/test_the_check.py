"""The rehearsal itself: code that breaks a rule of the protocol is caught, so silence means something."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from autoclave.agent import cleaning, device_tree, discovery, recovery
from autoclave.agent.cleaning import Cleanup
from autoclave.conductor import binding
from autoclave.conductor import orphans as conductor_orphans
from autoclave.db import arqs as arq_rows
from autoclave.db import devices as device_rows
from autoclave.db import handles, orphans
from autoclave.db.tables import devices
from autoclave.drivers import nvme_inspection
from autoclave.drivers.nvme import NVMeDriver
from autoclave.exceptions import PlacementConflict
from autoclave.hardware.erase import zero
from autoclave.hardware.erase.sanitize import Sanitizer
from autoclave.hardware.erase.zero import first_nonzero
from autoclave.lifecycle import operator, requests, reserve, sweep
from autoclave.lifecycle import reserve as settling
from autoclave.lifecycle import transitions as swapping
from autoclave.lifecycle.guests_seen import GuestsSeen
from autoclave.lifecycle.transitions import swap
from autoclave.objects.base import RequestContext
from autoclave.placement.client import PlacementClient as Placement
from autoclave.placement.provider_tree import ATTEMPTS, whole_record
from autoclave.rules.device_lifecycle import ARQState, DeviceState, Event, must_be_reserved
from autoclave.testing.placement import FakePlacement
from promises import rehearsal
from promises.checks import Broken
from promises.gates import GatedDatabase
from promises.history import recover
from promises.host import CARD
from promises.rehearsal import rehearse
from promises.simulated import FORMATTED, SANITIZED, ZEROED
from promises.test_stories import (
    Tenant,
    nova_of_another_region_meets_a_long_build,
    restored_nova_meets_a_running_guest,
    restoring_nova_meets_a_long_build,
    slow_lowering_meets_a_new_tenant,
    slow_lowering_meets_a_raise_to_what_is,
    slow_payer_meets_a_new_debt,
    zombie_binder_meets_a_new_tenant,
)
from promises.world import World


def everywhere(monkeypatch: pytest.MonkeyPatch, settle: Callable[..., Any]) -> None:
    for module in (settling, binding, requests, sweep, operator, reserve, cleaning, recovery, device_tree):
        monkeypatch.setattr(module, "settle", settle)


def row_before_generation(db: Any, placement: Any, device_uuid: str, _fresh: Any = None) -> None:
    """The row is read first: news between it and the generation are overwritten."""
    for _ in range(ATTEMPTS):
        with db.read() as tx:
            row = device_rows.get(tx, device_uuid)
            [deployable] = device_rows.deployables_of(tx, [row.id])
        present = placement.get_inventories(deployable.rp_uuid)
        must = must_be_reserved(row.offer)
        total = deployable.num_accelerators
        if not must and not row.release_pending and present.records:
            return
        record = whole_record(total, total if must else 0)
        try:
            placement.put_inventories(deployable.rp_uuid, present.generation, {deployable.resource_class: record})
        except PlacementConflict:
            continue
        if not must:
            settling._clear_debt(db, row)
        return


def any_request(tx: Any, arq_uuid: str, reason: str, cause: Any, **_conditions: Any) -> Any:
    """The request is gone, and yet its device is taken back."""
    device = device_rows.list_all(tx)[0]
    return swap(tx, device, Event.TAKE_BIND_BACK, cause)


def any_debt(db: Any, row: Any) -> None:
    """A debt is cleared though the device has moved on since it was paid."""
    with db.write() as tx:
        tx.execute(devices.update().where(devices.c.uuid == row.uuid).values(release_pending=False))


def any_version(self: Cleanup, context: RequestContext, device_uuid: str, _state_version: int) -> bool:
    """A message is obeyed whatever has become of the device since it was sent."""
    with self._ports.db.read() as tx:
        device = device_rows.get(tx, device_uuid)
    event = Event.CLEAN_AGAIN if device.device_state is DeviceState.ERROR else Event.REQUEST_CLEANING
    return self.begin(context, device, event, "asked for")


def lowered_first(self: Cleanup, *args: Any) -> None:
    """The device is offered, and then made available."""
    _context, device, event = args[:3]
    if event is Event.CLEANED:
        with self._ports.db.read() as tx:
            [deployable] = device_rows.deployables_of(tx, [device.id])
        present = self._ports.placement.get_inventories(deployable.rp_uuid)
        record = {deployable.resource_class: whole_record(1, 0)}
        self._ports.placement.put_inventories(deployable.rp_uuid, present.generation, record)
    finish(self, *args)


def any_generation(self: Placement, uuid: str, _generation: int, records: Any) -> int:
    """An inventory is written over whatever has been written since it was read."""
    return put_inventories(self, uuid, self.get_inventories(uuid).generation, records)


def only_changes(self: Placement, uuid: str, generation: int, records: Any) -> int:
    """An inventory is not written if it reads as it should; so a slower writer is not defeated."""
    if self.get_inventories(uuid).records == records:
        return generation
    return put_inventories(self, uuid, generation, records)


def only_binds(tx: Any, now: Any) -> Any:
    """The sweeper leaves unbinds alone whose conductor is dead."""
    return [arq for arq in expired(tx, now) if arq.state is ARQState.BIND_STARTED]


bound = orphans.bound
finish, put_inventories, expired = Cleanup._finish, Placement.put_inventories, arq_rows.expired


def row_first(monkeypatch: pytest.MonkeyPatch) -> None:
    everywhere(monkeypatch, row_before_generation)


def obey_late_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cleanup, "request", any_version)
    monkeypatch.setattr(swapping, "_NOBODY_HOLDS_IT", frozenset())


def on_hosts(*drivers: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Only hosts on which a rule matters, so that few histories find it broken."""
    return lambda m: m.setattr(rehearsal, "HOSTS", tuple((driver,) for driver in drivers))


def ignore_global_data_erased(m: pytest.MonkeyPatch) -> None:
    """What was written since a sanitize is not found."""
    on_hosts(SANITIZED)(m)

    def unjudged(self: Sanitizer, ended: Any, *, said: str) -> None:
        judge(self, replace(ended, global_data_erased=True), said=said)

    m.setattr(Sanitizer, "_judge", unjudged)


def ignore_read_back(m: pytest.MonkeyPatch) -> None:
    """What is read back is not looked at."""
    on_hosts(ZEROED)(m)
    m.setattr(zero, "first_nonzero", lambda disk, **how: first_nonzero(disk, **how) and None)


def ignore_late_users(m: pytest.MonkeyPatch) -> None:
    """What has opened a drive during its erase is not looked for."""
    on_hosts(ZEROED, FORMATTED, SANITIZED)(m)
    m.setattr(NVMeDriver, "_check_is_unused", lambda _self, _controller: None)


def ignore_users(m: pytest.MonkeyPatch) -> None:
    """Discovery looks for no programs that have a drive open."""
    on_hosts(ZEROED, FORMATTED, SANITIZED)(m)
    m.setattr(nvme_inspection, "holders", lambda _paths, _controller: [])


def forget_with_the_entry(m: pytest.MonkeyPatch) -> None:
    """A device goes from the records with its entry."""

    def forget(tx: Any, known: Any, cause: Any, reason: str) -> None:
        tx.execute(devices.update().where(devices.c.id == known.id).values(held=False, missing=True))

    m.setattr(discovery, "lose", forget)


def give_what_is_in_use(m: pytest.MonkeyPatch) -> None:
    """A handle that a request has is given to the next as well."""
    m.setattr(rehearsal, "HOSTS", ((CARD,),))

    def free(tx: Any, deployable_id: int) -> Any:
        return [use.handle for use in handles.of_deployables(tx, [deployable_id]).get(deployable_id, [])]

    m.setattr(handles, "free", free)


judge = Sanitizer._judge

MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "a settle reads the row before the generation": row_first,
    "a bind is taken back without looking at its request": lambda m: m.setattr(binding, "take_bind_back", any_request),
    "a late message is obeyed": obey_late_messages,
    "reserved is lowered before the device is available": lambda m: m.setattr(Cleanup, "_finish", lowered_first),
    "an unbind is not settled": lambda m: m.setattr(binding.Unbinder, "_secure", lambda _self, _arq: None),
    "a dead unbind is not finished": lambda m: m.setattr(arq_rows, "expired", only_binds),
    "what was written since a sanitize is not found": ignore_global_data_erased,
    "what is read back after zeroing does not matter": ignore_read_back,
    "users are not looked for after an erase": ignore_late_users,
    "users are not looked for by discovery": ignore_users,
    "a hold ends with the entry of its device": forget_with_the_entry,
    "a handle is given to two": give_what_is_in_use,
}
"""Rules of the protocol, each broken."""


SEEDS = 400
"""So many histories find each of them; most need a few dozen."""


@pytest.mark.thorough
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("rule", MUTANTS)
def test_random_histories_catch_a_broken_rule(
    rule: str, tmp_path: Path, db: GatedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    MUTANTS[rule](monkeypatch)
    with pytest.raises(Broken):
        rehearse(range(SEEDS), tmp_path, db, FakePlacement)


def test_a_settle_that_reads_the_row_before_the_generation_is_caught(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    everywhere(monkeypatch, row_before_generation)
    with pytest.raises(Broken, match="never offered dirty"):
        slow_lowering_meets_a_new_tenant(world, "GET inventories")


def test_a_bind_taken_back_without_looking_at_its_request_is_caught(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "take_bind_back", any_request)
    with pytest.raises(Broken, match="never bound dirty"):
        zombie_binder_meets_a_new_tenant(world)


def test_an_equal_inventory_that_is_not_written_is_caught(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placement, "put_inventories", only_changes)
    with pytest.raises(Broken, match="never offered dirty"):
        slow_lowering_meets_a_raise_to_what_is(world)


def test_a_debt_cleared_unpaid_is_caught(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settling, "_clear_debt", any_debt)
    slow_payer_meets_a_new_debt(world)
    with pytest.raises(Broken, match="never lost for good"):
        recover(world)


def test_an_inventory_written_at_any_generation_is_caught(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Placement, "put_inventories", any_generation)
    with pytest.raises(Broken, match="never offered dirty"):
        slow_lowering_meets_a_new_tenant(world, "GET inventories", times=2)


def nobody_has_it(_self: GuestsSeen, requests: Any) -> dict[str, None]:
    """A conductor takes Nova's word for it that no guest is left."""
    return dict.fromkeys(each.uuid for each in requests)


def at_first_sight(tx: Any) -> Any:
    """One lookup that finds a server deleted is enough."""
    return [replace(each, orphan_since=each.orphan_since or datetime.min) for each in bound(tx)]


def any_version_of_it(_tx: Any, _request: Any) -> bool:
    return True


def test_a_drive_given_back_without_a_look_at_the_guests_is_caught(
    two_drives: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuestsSeen, "of", nobody_has_it)
    with pytest.raises(Broken, match="while a guest has it"):
        restored_nova_meets_a_running_guest(two_drives)


def test_a_drive_given_back_after_one_lookup_is_caught(two_drives: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orphans, "bound", at_first_sight)
    monkeypatch.setattr(orphans, "is_still", any_version_of_it)
    with pytest.raises(Broken, match="never bound dirty"):
        restoring_nova_meets_a_long_build(two_drives)


def test_a_drive_given_back_by_a_nova_that_shows_nothing_is_caught(
    two_drives: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conductor_orphans._Witnesses, "seen", lambda _self: True)
    with pytest.raises(Broken, match="never bound dirty"):
        nova_of_another_region_meets_a_long_build(two_drives)


def test_a_vanished_server_that_no_conductor_looks_for_is_caught(
    two_drives: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conductor_orphans.Orphans, "look", lambda _self: None)
    tenant = Tenant(two_drives)
    tenant.bind()
    tenant.write()
    two_drives.vanish(tenant.instance)
    with pytest.raises(Broken, match="never lost for good"):
        recover(two_drives)
