"""/v2/devices and /v2/deployables."""

import json
from urllib.parse import urlsplit

import pytest
from api_world import HOST, World, fault, new_uuid

from autoclave.rules.device_lifecycle import DeviceState

COMMON = {
    "uuid",
    "type",
    "vendor",
    "model",
    "std_board_info",
    "vendor_board_info",
    "hostname",
    "links",
    "created_at",
    "updated_at",
}


@pytest.mark.parametrize(
    ("version", "more"),
    [("2.0", set()), ("2.2", set()), ("2.3", {"status"}), ("2.4", {"status"}), ("2.5", {"status", "device_state"})],
)
def test_a_device_shows_what_its_version_has_and_nothing_else(world: World, version: str, more: set[str]) -> None:
    device = world.add_device()
    shown = world.call("GET", f"/v2/devices/{device.uuid}", version=version).json
    assert set(shown) == COMMON | more
    assert world.call("GET", "/v2/devices", version=version).json == {"devices": [shown]}


def test_a_device_is_shown_as_clients_of_cyborg_know_it(world: World) -> None:
    device = world.add_device()
    shown = world.call("GET", f"/v2/devices/{device.uuid}").json
    assert (shown["type"], shown["vendor"], shown["model"], shown["hostname"]) == ("NVME", "144d", "a808", HOST)
    assert (shown["status"], shown["device_state"]) == ("enabled", "available")
    assert json.loads(shown["std_board_info"])["pci_address"] == "0000:01:00.0"
    assert shown["created_at"].endswith("+00:00")
    path = urlsplit(shown["links"][0]["href"]).path
    assert path == f"/accelerator/v2/devices/{device.uuid}"
    assert world.call("GET", path).json == shown


def test_a_device_without_a_known_state_shows_none(world: World) -> None:
    device = world.add_device(device_state=None)
    assert world.call("GET", f"/v2/devices/{device.uuid}").json["device_state"] is None
    assert world.device(device.uuid).device_state is None


@pytest.mark.parametrize("key", ["nobody", pytest.param(new_uuid(), id="uuid"), "%00", "x" * 2000])
def test_a_device_that_is_not_there_is_404_whatever_it_was_called(world: World, key: str) -> None:
    assert world.call("GET", f"/v2/devices/{key}").status_code == 404


def test_a_uuid_in_capitals_is_the_same_device(world: World) -> None:
    device = world.add_device()
    assert world.call("GET", f"/v2/devices/{device.uuid.upper()}").json["uuid"] == device.uuid


def test_devices_are_filtered_and_paged(world: World) -> None:
    first = world.add_device("0000:01:00.0")
    second = world.add_device("0000:02:00.0", kind="QAT")
    third = world.add_device("0000:03:00.0", vendor="8086")

    def listed(arguments: str) -> list[str]:
        return [device["uuid"] for device in world.call("GET", f"/v2/devices{arguments}").json["devices"]]

    assert listed("") == [first.uuid, second.uuid, third.uuid]
    assert listed("?type=QAT") == [second.uuid]
    assert listed("?vendor=8086") == [third.uuid]
    assert listed("?type=NVME&hostname=compute-1") == [third.uuid, first.uuid], "a filtered list has the newest first"
    assert listed("?hostname=elsewhere") == []
    assert listed("?type=TOASTER") == []
    assert listed("?limit=2") == [first.uuid, second.uuid]
    assert listed(f"?limit=2&marker={second.uuid}") == [third.uuid]


def test_devices_cannot_be_made_or_deleted(world: World) -> None:
    device = world.add_device()
    for method in ("POST", "PUT", "DELETE"):
        assert world.call(method, f"/v2/devices/{device.uuid}").status_code == 405
    assert world.call("POST", "/v2/devices", {}).status_code == 405


# POST /v2/devices/{uuid}/clean


def test_a_device_in_error_is_handed_to_its_agent_with_its_version(world: World) -> None:
    device = world.add_device(device_state=DeviceState.ERROR, state_version=7)
    answer = world.call("POST", f"/v2/devices/{device.uuid}/clean")
    assert (answer.status_code, answer.content) == (202, b"")
    [asked] = world.agent.asked
    assert (asked.uuid, asked.state_version, asked.device_state) == (device.uuid, 7, "error")


def test_a_reason_to_clean_is_checked_before_anything_is_asked(world: World) -> None:
    device = world.add_device(device_state=DeviceState.ERROR)
    for body in ({"reason": 1}, {"why": "worn out"}, []):
        assert world.call("POST", f"/v2/devices/{device.uuid}/clean", body).status_code == 400
    assert world.agent.asked == []


def test_asking_twice_sends_the_same_version_twice_and_moves_nothing(world: World) -> None:
    device = world.add_device(device_state=DeviceState.ERROR)
    for _ in range(2):
        assert world.call("POST", f"/v2/devices/{device.uuid}/clean").status_code == 202
    assert [asked.state_version for asked in world.agent.asked] == [device.state_version] * 2
    assert world.device(device.uuid) == device


@pytest.mark.parametrize(
    ("state", "named"),
    [
        (DeviceState.AVAILABLE, "clean already"),
        (DeviceState.ALLOCATED, "its instance no longer exists, and the agent of host"),
        (DeviceState.PENDING_CLEANING, "will be cleaned"),
        (DeviceState.CLEANING, "being cleaned"),
        (None, "online-data-migrations"),
    ],
)
def test_a_device_that_is_not_in_error_is_not_cleaned(world: World, state: DeviceState | None, named: str) -> None:
    device = world.add_device(device_state=state)
    answer = world.call("POST", f"/v2/devices/{device.uuid}/clean")
    assert answer.status_code == 409
    assert named in fault(answer)
    assert world.agent.asked == []


def test_a_device_that_an_instance_has_is_not_cleaned_and_the_instance_is_blamed(world: World) -> None:
    device = world.add_device()
    world.add_profile()
    assert world.bind(world.add_arq(), device, new_uuid()).status_code == 202
    assert "is allocated: an instance has it" in fault(world.call("POST", f"/v2/devices/{device.uuid}/clean"))


def test_a_device_in_error_that_a_request_still_holds_is_not_cleaned_under_its_guest(world: World) -> None:
    device = world.add_device()
    world.add_profile()
    arq = world.add_arq()
    assert world.bind(arq, device, new_uuid()).status_code == 202
    world.change(device.uuid, device_state=DeviceState.ERROR)
    answer = world.call("POST", f"/v2/devices/{device.uuid}/clean")
    assert answer.status_code == 409
    assert arq in fault(answer)
    assert world.agent.asked == []


def test_replaced_drive_is_not_cleaned_before_it_is_accepted(world: World) -> None:
    device = world.add_device(device_state=DeviceState.ERROR, found_serial="S2", found_drive_model="Model 2")
    answer = world.call("POST", f"/v2/devices/{device.uuid}/clean")
    assert answer.status_code == 409
    assert "S2" in fault(answer)
    assert f"autoclave device accept {HOST}/0000:01:00.0" in fault(answer)
    assert world.agent.asked == []

    assert world.call("POST", f"/autoclave/v1/devices/{device.uuid}/accept", {}).status_code == 200
    assert world.call("POST", f"/v2/devices/{device.uuid}/clean").status_code == 202


def test_drive_that_was_away_is_cleaned_without_being_accepted(world: World) -> None:
    device = world.add_device()
    found = {"found_serial": device.serial, "found_drive_model": device.drive_model}
    world.change(device.uuid, device_state=DeviceState.ERROR, **found)
    assert world.call("POST", f"/v2/devices/{device.uuid}/clean").status_code == 202


def test_a_type_that_is_not_cleaned_is_refused(world: World) -> None:
    device = world.add_device(kind="GPU", device_state=DeviceState.ERROR)
    answer = world.call("POST", f"/v2/devices/{device.uuid}/clean")
    assert answer.status_code == 400
    assert "does not support cleaning" in fault(answer)


def test_an_agent_that_cannot_clean_is_named(world: World) -> None:
    device = world.add_device(device_state=DeviceState.ERROR, hostname="old-host")
    old = world.transport.serve("autoclave-agent", "old-host", world.agent, "1.0")
    old.start()
    answer = world.call("POST", f"/v2/devices/{device.uuid}/clean")
    assert answer.status_code == 400
    assert "old-host" in fault(answer)
    assert "RPC 1.0, not 1.1" in fault(answer)
    assert world.agent.asked == []


def test_a_device_that_is_not_there_cannot_be_cleaned(world: World) -> None:
    assert world.call("POST", f"/v2/devices/{new_uuid()}/clean").status_code == 404


@pytest.mark.parametrize("version", [None, "2.0", "2.4"])
def test_before_2_5_there_is_no_cleaning(world: World, version: str | None) -> None:
    device = world.add_device(device_state=DeviceState.ERROR)
    assert world.call("POST", f"/v2/devices/{device.uuid}/clean", version=version).status_code == 405
    assert world.agent.asked == []


# /v2/deployables


def test_a_deployable_shows_its_provider_class_and_traits(world: World) -> None:
    device = world.add_device()
    provider = world.provider(device)
    [listed] = world.call("GET", "/v2/deployables").json["deployables"]
    assert listed["rp_uuid"] == provider.rp_uuid
    assert listed["device_id"] == device.id
    assert json.loads(listed["attributes_list"]) == [{"rc": "CUSTOM_NVME_144D_A808"}, {"trait0": "HW_NVME_CES"}]
    assert world.call("GET", f"/v2/deployables/{listed['uuid']}").json == listed
    assert [link["rel"] for link in listed["links"]] == ["self", "bookmark"]
    assert world.call("GET", f"/v2/deployables/{new_uuid()}").status_code == 404


def test_deployables_keep_their_own_attributes_and_are_paged(world: World) -> None:
    for slot in range(1, 4):
        world.add_device(f"0000:0{slot}:00.0", kind="QAT" if slot == 2 else "NVME")
    every = world.call("GET", "/v2/deployables").json["deployables"]
    classes = [json.loads(one["attributes_list"])[0]["rc"] for one in every]
    assert classes == ["CUSTOM_NVME_144D_A808", "CUSTOM_QAT", "CUSTOM_NVME_144D_A808"]
    paged = world.call("GET", f"/v2/deployables?limit=1&marker={every[0]['uuid']}").json["deployables"]
    assert paged == [every[1]]


def test_lists_cost_the_same_number_of_statements_however_long_they_are(world: World) -> None:
    import sqlalchemy as sa

    statements: list[str] = []
    with world.db.read() as tx:
        engine = tx.engine

    def note(_connection: object, _cursor: object, statement: str, *_rest: object) -> None:
        statements.append(statement)

    sa.event.listen(engine, "before_cursor_execute", note)

    def cost(path: str) -> int:
        statements.clear()
        assert world.call("GET", path).status_code == 200
        return len(statements)

    paths = ["/v2/devices", "/v2/deployables", "/autoclave/v1/devices", "/v2/accelerator_requests", "/metrics"]
    world.add_profile()
    device = world.add_device("0000:01:00.0")
    world.bind(world.add_arq(), device, new_uuid())
    world.add_device("0000:02:00.0")
    few = {path: cost(path) for path in paths}
    for slot in range(3, 9):
        device = world.add_device(f"0000:0{slot}:00.0")
        world.bind(world.add_arq(), device, new_uuid())
    assert {path: cost(path) for path in paths} == few
