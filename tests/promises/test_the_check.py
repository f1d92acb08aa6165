"""The rehearsal itself: code that breaks a rule of the protocol is caught, so silence means something."""

from collections.abc import Callable
from typing import Any

import pytest

from autoclave.agent import cleanup
from autoclave.conductor import binding, unbinding
from autoclave.db import devices as device_rows
from autoclave.exceptions import PlacementConflict
from autoclave.lifecycle import holds, release, sweep
from autoclave.lifecycle import settle as settling
from autoclave.lifecycle.swap import swap
from autoclave.rules.device_states import Event
from autoclave.rules.reserved import must_be_reserved
from promises.test_stories import slow_lowering_meets_a_new_tenant, zombie_binder_meets_a_new_tenant
from promises.world import Broken, World


def everywhere(monkeypatch: pytest.MonkeyPatch, settle: Callable[..., Any]) -> None:
    for module in (binding, unbinding, release, sweep, holds, cleanup):
        monkeypatch.setattr(module, "settle", settle)


def row_before_generation(db: Any, placement: Any, device_uuid: str) -> None:
    """The row is read first: news between it and the generation are overwritten."""
    for _ in range(settling.ATTEMPTS):
        with db.read() as tx:
            row = device_rows.get(tx, device_uuid)
            [deployable] = device_rows.deployables_of(tx, [row.id])
        present = placement.get_inventories(deployable.rp_uuid)
        must = must_be_reserved(row.offer)
        if not must and not row.release_pending:
            return
        record = settling.whole_record(1, 1 if must else 0)
        try:
            placement.put_inventories(deployable.rp_uuid, present.generation, {deployable.resource_class: record})
        except PlacementConflict:
            continue
        if not must:
            settling._clear_debt(db, device_uuid, row.state_version, row.release_number)
        return


def blind_request(tx: Any, arq_uuid: str, reason: str, cause: Any, *, lease_owner: str | None = None) -> Any:
    """The request is gone, and yet its device is taken back."""
    [device] = device_rows.list_all(tx)
    return swap(tx, device, Event.TAKE_BIND_BACK, cause)


def test_a_settle_that_reads_the_row_before_the_generation_is_caught(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    everywhere(monkeypatch, row_before_generation)
    with pytest.raises(Broken, match="never offered dirty"):
        slow_lowering_meets_a_new_tenant(world, "GET inventories")


def test_a_bind_taken_back_without_looking_at_its_request_is_caught(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "take_bind_back", blind_request)
    with pytest.raises(Broken, match="never bound dirty"):
        zombie_binder_meets_a_new_tenant(world)
