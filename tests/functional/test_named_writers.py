"""No log line names another writer in Placement while a write of our own may be on its way."""

import logging
from dataclasses import replace

import pytest
from agentworld import AgentWorld
from hostworld import HostWorld

import burnedrows
from autoclave.db import devices as device_rows
from autoclave.db import pci
from autoclave.lifecycle.operator import disable, release
from autoclave.lifecycle.reserve import Settled, settle
from autoclave.testing.placement.faults import after, before, refuse
from burnedrows import OPERATOR

ACCUSATION = "Something other than Autoclave lowered it"


def write_reserved(world: AgentWorld, reserved: int) -> None:
    """Write ``reserved`` past Autoclave."""
    provider = world.provider()
    present = world.onlooker.get_inventories(provider.uuid)
    records = {name: replace(record, reserved=reserved) for name, record in present.records.items()}
    world.onlooker.put_inventories(provider.uuid, present.generation, records)


def verified(world: AgentWorld, caplog: pytest.LogCaptureFixture) -> None:
    """Let the agent look at everything twice, and forget what it said."""
    world.start()
    world._agents[-1].period()
    caplog.clear()


def test_a_release_finished_in_between_is_no_hold(one_drive: AgentWorld, caplog: pytest.LogCaptureFixture) -> None:
    """Another process lowers ``reserved`` and ends the debt between our readings of inventory and row."""
    one_drive.start()
    uuid = one_drive.device().uuid
    write_reserved(one_drive, 1)
    one_drive.faults.add(refuse, times=1)
    assert not release(one_drive.ports, uuid, OPERATOR)
    one_drive.faults.clear()
    finish = after(lambda: settle(one_drive.db, one_drive.onlooker, uuid))
    one_drive.faults.add(finish, "GET", r"/inventories$", times=1)
    caplog.clear()

    assert settle(one_drive.db, one_drive.placement, uuid) is Settled.UNCHANGED

    one_drive.assert_offered()
    assert "operator's hold" not in caplog.text


def test_a_hold_that_stands_is_named(one_drive: AgentWorld, caplog: pytest.LogCaptureFixture) -> None:
    one_drive.start()
    write_reserved(one_drive, 1)

    assert settle(one_drive.db, one_drive.placement, one_drive.device().uuid) is Settled.OPERATORS_HOLD
    assert "taken for an operator's hold" in caplog.text


@pytest.mark.parametrize("in_between", [False, True])
def test_a_disable_on_its_way_is_no_other_writer(
    one_drive: AgentWorld, caplog: pytest.LogCaptureFixture, in_between: bool
) -> None:
    """The row is disabled, and a slow Placement has not got the write when the agent's period looks."""
    verified(one_drive, caplog)
    uuid = one_drive.device().uuid

    def commit() -> None:
        with one_drive.db.write() as tx:
            device = device_rows.get(tx, uuid, lock=True)
            assert device is not None
            device_rows.update(tx, device, {"status": "maintaining"})

    if in_between:
        write_reserved(one_drive, 0)  # moves the generation: the agent has to look again
        one_drive.faults.add(before(commit), "GET", r"/inventories$", times=1)
    else:
        commit()
    with caplog.at_level(logging.WARNING):
        one_drive._agents[-1].period()

    one_drive._agents[-1].period()
    assert one_drive.inventory().reserved == 1
    assert not [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_release_on_its_way_is_no_other_writer(one_drive: AgentWorld, caplog: pytest.LogCaptureFixture) -> None:
    """The agent reads the row, then the device is cleaned and offered, then the agent reads the inventory."""
    verified(one_drive, caplog)
    disable(one_drive.ports, one_drive.device().uuid, OPERATOR)
    one_drive._agents[-1].period()
    one_drive._agents[-1].period()
    write_reserved(one_drive, 1)  # moves the generation: the agent has to look again
    uuid = one_drive.device().uuid

    def enable() -> None:
        with one_drive.db.write() as tx:
            device = device_rows.get(tx, uuid, lock=True)
            assert device is not None
            owed = {"release_pending": True, "release_number": device.release_number + 1}
            device_rows.update(tx, device, {"status": "enabled", **owed})
        settle(one_drive.db, one_drive.onlooker, uuid)

    one_drive.faults.add(before(enable), "GET", r"/inventories$", times=1)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        one_drive._agents[-1].period()

    one_drive.assert_offered()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_second_writer_is_named_on_evidence(one_drive: AgentWorld, caplog: pytest.LogCaptureFixture) -> None:
    """The same row was seen with all of it reserved before."""
    verified(one_drive, caplog)
    disable(one_drive.ports, one_drive.device().uuid, OPERATOR)
    one_drive._agents[-1].period()
    one_drive._agents[-1].period()
    write_reserved(one_drive, 0)

    one_drive._agents[-1].period()

    assert one_drive.inventory().reserved == 1
    assert ACCUSATION in caplog.text


def test_a_claim_on_its_way_is_no_other_writer(host_world: HostWorld, caplog: pytest.LogCaptureFixture) -> None:
    """An instance has claimed the function, and Placement has not got the write when the period looks."""
    tree = host_world.synced()
    with host_world.db.write() as tx:
        provider = pci.get(tx, host_world.row().uuid)
        assert provider is not None
        instance = "11111111-1111-4111-8111-111111111111"
        burnedrows.claim(tx, provider.uuid, instance)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        tree.sync()
    assert host_world.reserved() == 1
    assert not [record.getMessage() for record in caplog.records if "reserved=" in record.getMessage()]

    tree.sync()
    host_world.by_hand(0)
    tree.sync()
    assert host_world.reserved() == 1
    assert ACCUSATION in caplog.text
