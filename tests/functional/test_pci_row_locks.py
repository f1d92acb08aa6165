"""A claim and the agent's period at the same moment, on the engines that lock rows: neither overlooks the other."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from hostworld import GPU, GPU_CLASS, GPU_SPEC, HOST, HostWorld
from pciworld import ONE

import burnedrows
from autoclave.agent.compute.claims import ResourceTracker
from autoclave.db import pci
from autoclave.db.engine import Database
from autoclave.exceptions import ClaimRefused
from autoclave.placement.records import ConsumerAllocations

PLAIN = {name: value for name, value in GPU_SPEC.items() if name != "one_time_use"}
PATIENCE = 60.0


@pytest.fixture
def world(tmp_path: Path, row_locking_database: Database) -> Iterator[HostWorld]:
    """A host with a card that goes from one instance to the next as it is."""
    made = HostWorld(tmp_path, db=row_locking_database)
    made.specs = (PLAIN,)
    made.synced()
    yield made
    made.close()


@contextmanager
def asking_for_the_row(db: Database) -> Iterator[threading.Event]:
    """Set when somebody else than this thread asks for the lock of a provider's row, or writes it."""
    asked, ours = threading.Event(), threading.get_ident()

    def listen(_connection: Any, _cursor: Any, statement: str, *_more: Any) -> None:
        waits = "devices" in statement and (statement.startswith("UPDATE") or "FOR UPDATE" in statement)
        if waits and threading.get_ident() != ours:
            asked.set()

    sa.event.listen(db.writer_engine, "before_cursor_execute", listen)
    try:
        yield asked
    finally:
        sa.event.remove(db.writer_engine, "before_cursor_execute", listen)


def while_locked(world: HostWorld, first: Callable[[sa.Connection], None], second: Callable[[], None]) -> None:
    """Let *second* come while the transaction of *first* has the row, which ends when *second* asks for it."""
    with asking_for_the_row(world.db) as asked:
        thread = threading.Thread(target=second)
        with world.db.write() as tx:
            first(tx)
            thread.start()
            assert asked.wait(PATIENCE)
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_a_card_that_becomes_one_time_use_while_it_is_claimed_is_burned(world: HostWorld) -> None:
    world.specs = (GPU_SPEC,)
    tree = world.tree()

    def claim(tx: sa.Connection) -> None:
        burnedrows.claim(tx, world.row().uuid, ONE)

    while_locked(world, claim, lambda: tree.sync(starting=True))
    assert (world.function().instance_uuid, world.row().one_time_use) == (ONE, True)
    assert (world.row().burned, world.row().device.burned_for, world.reserved()) == (True, ONE, 1)


def test_a_card_whose_class_changes_while_it_is_claimed_is_not_given(world: HostWorld) -> None:
    tracker, row = ResourceTracker(world.ports, HOST), world.row()
    allocation = ConsumerAllocations(ONE, {row.uuid: {GPU_CLASS: 1}}, 1, "project", "user")
    refused: list[str] = []

    def claim() -> None:
        try:
            tracker.instance_claim(ONE, allocation, {"": [row.uuid]})
        except ClaimRefused as error:
            refused.append(str(error))

    def change(tx: sa.Connection) -> None:
        pci.get(tx, row.uuid, lock=True)
        burnedrows.describe(tx, row, {"resource_class": "CUSTOM_OTHER"})

    while_locked(world, change, claim)
    assert refused == [f"{GPU} of {HOST} is no {GPU_CLASS} for instances any more"]
    assert world.function().instance_uuid is None
