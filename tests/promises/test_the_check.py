"""The rehearsal itself: code that breaks a rule of the protocol is caught, so silence means something."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoclave.agent import cleanup
from autoclave.conductor import binding, unbinding
from autoclave.db import devices as device_rows
from autoclave.exceptions import PlacementConflict
from autoclave.lifecycle import holds, release, sweep
from autoclave.lifecycle import settle as settling
from autoclave.lifecycle.swap import swap
from autoclave.placement.fake import FakePlacement
from autoclave.rules.arq_states import ARQState
from autoclave.rules.device_states import DeviceState, Event
from autoclave.rules.reserved import must_be_reserved
from promises.test_promises import LENGTH, live
from promises.world import Broken

ENOUGH = 400
"""Histories within which a broken rule must have been seen."""


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


def blind_take_back(tx: Any, arq_uuid: str, reason: str, cause: Any, *, lease_owner: str | None = None) -> Any:
    """Whatever the request has become meanwhile, its device goes back to available."""
    arq, device = release._locked(tx, arq_uuid)
    if arq is None or device is None:
        return None
    release.arq_rows.swap(tx, arq_uuid, list(ARQState), ARQState.BIND_FAILED, release.UNLINKED)
    return swap(tx, device, Event.TAKE_BIND_BACK, cause) if device.device_state is DeviceState.ALLOCATED else device


def caught(file: Path) -> str:
    for seed in range(ENOUGH):
        try:
            live(seed, file, FakePlacement())
        except Broken as error:
            return str(error)
    return f"nothing in {ENOUGH} histories of {LENGTH} steps"


def test_a_settle_that_reads_the_row_before_the_generation_is_caught(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    everywhere(monkeypatch, row_before_generation)
    assert "never offered dirty" in caught(file)


def test_a_bind_taken_back_without_looking_at_its_request_is_caught(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(binding, "take_bind_back", blind_take_back)
    assert "never bound dirty" in caught(file)
