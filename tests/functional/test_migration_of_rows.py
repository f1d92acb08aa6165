"""Rows of the first revision come through the second one whole, and nothing is made up for them."""

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from autoclave.db import schema
from autoclave.db.engine import Database, current_revision
from oldrows import address, column, insert, old_device

pytestmark = pytest.mark.matrix


@pytest.fixture
def empty(empty_url: str) -> Iterator[Database]:
    found = Database(empty_url)
    yield found
    found.dispose()


def test_devices_of_the_first_revision_are_kept_without_a_state_and_in_their_slots(empty: Database) -> None:
    schema.upgrade(empty, "0001_base")
    with empty.write() as tx:
        old_device(tx, 1, address("0A"))
        old_device(tx, 2, address("0b"))
        old_device(tx, 3, address("0a"), hostname="host-2")
        old_device(tx, 4, address("0a"))
        old_device(tx, 5, None)
        old_device(tx, 6, '{"bus": 7}')
        old_device(tx, 7, "[]")
    assert schema.upgrade(empty) == "0001_base"
    assert column(empty, "devices", "pci_address") == [
        "0000:0a:00.0",
        "0000:0b:00.0",
        "0000:0a:00.0",
        "unknown-4",
        "unknown-5",
        "unknown-6",
        "unknown-7",
    ]
    assert column(empty, "devices", "device_state") == [None] * 7
    assert column(empty, "devices", "state_version") == [1] * 7
    assert [bool(flag) for flag in column(empty, "devices", "release_pending")] == [False] * 7
    assert column(empty, "deployables", "device_id") == [1, 2, 3, 4, 5, 6, 7]


def test_what_hangs_on_a_device_survives_the_copying_of_its_table(empty: Database) -> None:
    schema.upgrade(empty, "0001_base")
    with empty.write() as tx:
        old_device(tx, 1, address("0a"))
    schema.upgrade(empty)
    assert column(empty, "attributes", "value") == ["CUSTOM_SSD"]
    assert column(empty, "controlpath_ids", "cpid_info") == [address("0a")]
    with empty.write() as tx:
        assert current_revision(empty) == schema.head()
        tx.execute(sa.text("DELETE FROM deployables"))
    assert column(empty, "attributes", "value") == [], "the reference still cascades"


def test_handles_are_told_apart_by_the_address_in_them(empty: Database) -> None:
    schema.upgrade(empty, "0001_base")
    with empty.write() as tx:
        old_device(tx, 1, address("0a"))
        for number, info in enumerate([address("0a"), address("0a"), '{"vgpu_mark": "x"}'], start=1):
            insert(
                tx, "attach_handles", id=number, uuid=f"h-{number}", deployable_id=1, attach_type="PCI",
                attach_info=info,
            )  # fmt: skip
    schema.upgrade(empty)
    assert column(empty, "attach_handles", "identity") == ["0000:0a:00.0", "h-2", "h-3"]


def test_a_request_that_holds_a_device_still_holds_it(empty: Database) -> None:
    schema.upgrade(empty, "0001_base")
    states = ["Initial", "BindStarted", "Bound", "BindFailed", "Unbound", "Deleting"]
    with empty.write() as tx:
        old_device(tx, 7, address("0a"))
        insert(tx, "device_profiles", id=1, uuid="p", name="p", profile_json="{}")
        for number, state in enumerate(states, start=1):
            insert(
                tx, "extended_accelerator_requests", id=number, uuid=f"arq-{number}", state=state, deployable_id=7,
                device_profile_id=1, device_profile_group_id=0,
            )  # fmt: skip
    schema.upgrade(empty)
    found = dict(zip(states, column(empty, "extended_accelerator_requests", "device_id"), strict=True))
    assert found == {"Initial": None, "BindStarted": 7, "Bound": 7, "BindFailed": None, "Unbound": None, "Deleting": 7}
    assert not any(column(empty, "extended_accelerator_requests", "delete_when_unbound"))


def test_a_service_of_the_release_before_may_still_insert_requests(database: Database) -> None:
    with database.write() as tx:
        insert(tx, "device_profiles", id=1, uuid="p", name="p", profile_json="{}")
        insert(
            tx, "extended_accelerator_requests", uuid="arq", state="Initial", device_profile_id=1,
            device_profile_group_id=0,
        )  # fmt: skip
    assert not any(column(database, "extended_accelerator_requests", "delete_when_unbound"))


def test_drives_on_record_get_the_one_spelling(empty: Database) -> None:
    """Earlier versions stored an escape character as it was; a dirty drive must still be recognised."""
    schema.upgrade(empty, "0006_compute")
    with empty.write() as tx:
        for number, serial in enumerate(["S1", "S\x1b[31m2", "S\x1b[31m3"], start=1):
            device = {"type": "NVME", "vendor": "144d", "model": "a808", "hostname": "host-1", "status": "enabled"}
            slot = {"pci_address": f"0000:4{number}:00.0", "serial": serial, "drive_model": "M\xfc"}
            insert(tx, "devices", id=number, uuid=f"device-{number}", **device, **slot)
            insert(tx, "dirty_serials", id=number, serial=serial, drive_model="M", device_uuid=f"device-{number}")
        insert(tx, "dirty_serials", id=4, serial=r"S\x1b[31m3", drive_model="M", device_uuid="device-3")
    schema.upgrade(empty)
    assert column(empty, "devices", "serial") == ["S1", r"S\x1b[31m2", r"S\x1b[31m3"]
    assert column(empty, "devices", "drive_model") == [r"M\xc3\xbc"] * 3
    assert column(empty, "devices", "found_serial") == [None] * 3
    assert column(empty, "dirty_serials", "serial") == ["S1", r"S\x1b[31m2", r"S\x1b[31m3"]
