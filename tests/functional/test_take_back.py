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

CARD = ("0000:82:02.0", "0000:82:02.1")
ANN = Cause(Actor.OPERATOR, "ann")


def test_two_functions_of_a_card_are_taken_back_together_each_with_its_line(database: Database) -> None:
    rp_uuid, gone = str(uuid.uuid4()), str(uuid.uuid4())
    with database.write() as tx:
        burnedrows.insert(tx, rp_uuid, "host-1", "0000:82:00.0", CARD)
        for _ in CARD:
            burnedrows.claim(tx, rp_uuid, gone)
    with pytest.raises(NotFound):
        take_back(database, "host-1", [CARD[0], "0000:99:00.0"], ANN)
    assert [each.instance_uuid for each in take_back(database, "host-1", CARD, ANN)] == [gone, gone]
    assert [each.instance_uuid for each in take_back(database, "host-1", CARD, ANN)] == [None, None]
    with database.read() as tx:
        provider = pci.get(tx, rp_uuid)
        told = [(each.event, json.loads(each.evidence or "{}")) for each in history.history(tx, rp_uuid)]
        assert not pci.functions_of_instances(tx, [gone])
    assert provider is not None
    assert (provider.device.device_state, provider.device.burned_for) == (DeviceState.SPENT, gone)
    assert not provider.device.burn_confirmed
    assert [evidence["function"] for event, evidence in told if event == "take_back"] == list(CARD)
