"""Taking functions back means the same on SQLite, PostgreSQL and MariaDB."""

import json
import uuid

import pytest

from autoclave.db import history, pci
from autoclave.db.engine import Database
from autoclave.db.tables import pci_functions, pci_providers
from autoclave.exceptions import NotFound
from autoclave.lifecycle.reclaim import take_back
from autoclave.lifecycle.transitions import Cause
from autoclave.rules.device_lifecycle import Actor

CARD = ("0000:82:02.0", "0000:82:02.1")
ANN = Cause(Actor.OPERATOR, "ann")


def test_two_functions_of_a_card_are_taken_back_together_each_with_its_line(database: Database) -> None:
    rp_uuid, gone = str(uuid.uuid4()), str(uuid.uuid4())
    kind = {"dev_type": "type-VF", "vendor_id": "8086", "product_id": "154c", "managed": True}
    with database.write() as tx:
        card = {"hostname": "host-1", "address": "0000:82:00.0", "resource_class": "CUSTOM_VF", "traits": "[]"}
        made = tx.execute(pci_providers.insert().values(uuid=rp_uuid, total=2, one_time_use=True, **card))
        key = made.inserted_primary_key[0]
        rows = [{"provider_id": key, "hostname": "host-1", "address": each, "instance_uuid": gone} for each in CARD]
        tx.execute(pci_functions.insert(), [{**row, **kind} for row in rows])
    with pytest.raises(NotFound):
        take_back(database, "host-1", [CARD[0], "0000:99:00.0"], ANN)
    assert [each.instance_uuid for each in take_back(database, "host-1", CARD, ANN)] == [gone, gone]
    assert [each.instance_uuid for each in take_back(database, "host-1", CARD, ANN)] == [None, None]
    with database.read() as tx:
        provider = pci.get(tx, rp_uuid)
        told = [json.loads(each.evidence or "{}")["function"] for each in history.history(tx, rp_uuid)]
        assert not pci.functions_of_instances(tx, [gone])
    assert provider is not None
    assert (provider.burned, provider.burned_for, provider.burn_confirmed) == (True, gone, False)
    assert told == list(CARD)
