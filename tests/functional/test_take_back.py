"""Taking functions back means the same on SQLite, PostgreSQL and MariaDB."""

import json
import uuid

import pytest

import burnedrows
from autoclave.db import history, pci
from autoclave.db.engine import Database
from autoclave.exceptions import NotFound
from autoclave.lifecycle.reclaim import take_back
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor, DeviceState
from autoclave.rules.reclaim import Reclaim

GPU = "0000:81:00.0"
CARD = ("0000:82:02.0", "0000:82:02.1")
ANN = Cause(Actor.OPERATOR, "ann")


def test_two_functions_of_a_card_are_taken_back_together_each_with_its_line(database: Database) -> None:
    rp_uuid, gone = str(uuid.uuid4()), str(uuid.uuid4())
    with database.write() as tx:
        burnedrows.insert(tx, rp_uuid, "host-1", "0000:82:00.0", CARD, reclaim=Reclaim.NONE)
        for _ in CARD:
            burnedrows.claim(tx, rp_uuid, gone)
    with pytest.raises(NotFound):
        take_back(database, "host-1", [CARD[0], "0000:99:00.0"], ANN)
    assert [each.instance_uuid for each in take_back(database, "host-1", CARD, ANN)] == [gone, gone]
    assert [each.instance_uuid for each in take_back(database, "host-1", CARD, ANN)] == [None, None]
    assert lines_of(database, rp_uuid) == list(CARD)
    with database.read() as tx:
        provider = pci.get(tx, rp_uuid)
        assert not pci.functions_of_instances(tx, [gone])
    assert provider is not None
    assert provider.device.device_state is DeviceState.AVAILABLE


def test_one_time_use_device_taken_back_is_spent(database: Database) -> None:
    rp_uuid, gone = str(uuid.uuid4()), str(uuid.uuid4())
    with database.write() as tx:
        burnedrows.insert(tx, rp_uuid, "host-1", GPU, [GPU])
        burnedrows.claim(tx, rp_uuid, gone)
    assert [each.instance_uuid for each in take_back(database, "host-1", [GPU], ANN)] == [gone]
    assert lines_of(database, rp_uuid) == [GPU]
    with database.read() as tx:
        provider = pci.get(tx, rp_uuid)
    assert provider is not None
    assert (provider.device.device_state, provider.device.burned_for) == (DeviceState.SPENT, gone)
    assert not provider.device.burn_confirmed


def lines_of(database: Database, rp_uuid: str) -> list[str]:
    """Return the functions that the history of a device shows as reclaimed."""
    with database.read() as tx:
        found = history.history(tx, rp_uuid)
    return [json.loads(each.evidence or "{}")["function"] for each in found if each.event == "take_back"]
