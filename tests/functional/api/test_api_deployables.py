"""/v2/deployables/…/program, and filters of deployables and devices."""

from typing import Any

import pytest
from api_world import World, fault, new_uuid

from autoclave.rules.device_lifecycle import DeviceState

pytestmark = pytest.mark.matrix

IMAGE = "7c8a5f3b-2d4e-4a9c-b1e7-9f8d3c2a1b0e"


def program(**changes: Any) -> list[dict[str, Any]]:
    return [{"path": "/bitstream_id", "op": "replace", "value": [{"image_uuid": IMAGE}], **changes}]


def path_of(world: World) -> str:
    return f"/v2/deployables/{world.provider(world.add_device()).uuid}"


@pytest.mark.parametrize("path", ["/bitstream_id", "/program"])
def test_no_driver_programs_and_the_answer_says_so(world: World, path: str) -> None:
    answer = world.call("PATCH", f"{path_of(world)}/program", program(path=path))
    assert answer.status_code == 400
    assert "nvme_driver does not support programming" in fault(answer)


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ([], "exactly one"),
        ({}, "exactly one"),
        (program() * 2, "exactly one"),
        (program(path="/name"), "/bitstream_id"),
        (program(op="add"), "replace"),
        (program(value=[]), "image_uuid"),
        (program(value=[{"image_uuid": IMAGE}] * 2), "exactly one image"),
        (program(value=[{"image_uuid": "x"}]), "uuid"),
        (program(value=[{}]), "image_uuid"),
        (program(value=IMAGE), "image_uuid"),
        (program(more=1), "more"),
    ],
)
def test_the_whole_body_is_checked_first(world: World, document: Any, named: str) -> None:
    answer = world.call("PATCH", f"{path_of(world)}/program", document)
    assert answer.status_code == 400
    assert named in fault(answer)
    assert "programming" not in fault(answer)


def test_what_is_not_there_is_not_programmed(world: World) -> None:
    assert world.call("PATCH", f"/v2/deployables/{new_uuid()}/program", program()).status_code == 404
    assert world.call("PATCH", "/v2/deployables/x/program", program()).status_code == 400


def test_a_deployable_itself_takes_no_patch(world: World) -> None:
    path = path_of(world)
    assert world.call("PATCH", path, program()).status_code == 405
    assert world.call("GET", f"{path}/program").status_code == 405


# Filters


@pytest.fixture
def fleet(world: World) -> dict[str, str]:
    """Names of three devices by uuid, of device and of deployable."""
    named = {}
    changes: dict[str, dict[str, Any]] = {
        "first": {},
        "second": {"model": "0a54", "device_state": DeviceState.ERROR},
        "third": {},
    }
    for number, (name, columns) in enumerate(changes.items(), 1):
        device = world.add_device(f"0000:0{number}:00.0", **columns)
        named |= {device.uuid: name, world.provider(device).uuid: name}
    return named


def filtered(*pairs: tuple[str, str]) -> str:
    return "&".join(f"filters.field={field}&filters.value={value}" for field, value in pairs)


RESOURCES = ["devices", "deployables"]


def listed(world: World, fleet: dict[str, str], resource: str, arguments: str) -> list[str]:
    answer = world.call("GET", f"/v2/{resource}?{arguments}")
    assert answer.status_code == 200, answer.text
    return [fleet[one["uuid"]] for one in answer.json[resource]]


@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize(
    ("pairs", "found"),
    [
        ([("name", "compute-1_0000:02:00.0")], ["second"]),
        ([("name", "nobody")], []),
        ([("board", "0a54")], ["second"]),
        ([("board", "a808")], ["third", "first"]),
        ([("availability", "available")], ["third", "first"]),
        ([("availability", "error"), ("board", "a808")], []),
        ([("availability", "toaster")], []),
        ([("interface_type", "PCI")], ["third", "second", "first"]),
        ([("interface_type", "MDEV")], []),
        ([("interface_type", "toaster")], []),
        ([("instance_uuid", new_uuid())], []),
        ([("parent_uuid", new_uuid())], []),
        ([("root_uuid", new_uuid())], []),
        ([("sort_key", "created_at")], ["third", "second", "first"]),
        ([("sort_dir", "asc")], ["first", "second", "third"]),
        ([("limit", "2")], ["third", "second"]),
        ([("limit", "1"), ("sort_dir", "asc"), ("board", "a808")], ["first"]),
    ],
)
def test_a_filter_leaves_what_it_names_the_newest_first(
    world: World, fleet: dict[str, str], resource: str, pairs: list[tuple[str, str]], found: list[str]
) -> None:
    assert listed(world, fleet, resource, filtered(*pairs)) == found


@pytest.mark.parametrize("resource", RESOURCES)
def test_what_an_instance_has_is_found_by_it(world: World, fleet: dict[str, str], resource: str) -> None:
    world.add_profile()
    uuid = next(uuid for uuid, name in fleet.items() if name == "third")
    instance = new_uuid()
    assert world.bind(world.add_arq(), world.device(uuid), instance).status_code == 202
    assert listed(world, fleet, resource, filtered(("instance_uuid", instance))) == ["third"]


@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize("direction", ["asc", "desc"])
@pytest.mark.parametrize("key", ["created_at", "updated_at", "uuid"])
def test_the_pages_of_a_sorted_list_make_the_whole(
    world: World, fleet: dict[str, str], resource: str, key: str, direction: str
) -> None:
    pairs = [("sort_key", key), ("sort_dir", direction)]
    whole = world.call("GET", f"/v2/{resource}?{filtered(*pairs)}").json[resource]
    pages: list[Any] = []
    while len(pages) < 3:
        marker = [("marker", pages[-1]["uuid"])] if pages else []
        pages += world.call("GET", f"/v2/{resource}?{filtered(*pairs, ('limit', '1'), *marker)}").json[resource]
    assert pages == whole
    if key == "uuid":
        assert [one["uuid"] for one in whole] == sorted((one["uuid"] for one in whole), reverse=direction == "desc")


def test_rows_that_are_alike_are_paged_too(world: World, fleet: dict[str, str]) -> None:
    pairs = [("sort_key", "hostname"), ("sort_dir", "desc")]
    last = next(uuid for uuid, name in fleet.items() if name == "second")
    assert listed(world, fleet, "devices", filtered(*pairs)) == ["third", "second", "first"]
    assert listed(world, fleet, "devices", filtered(*pairs, ("marker", last))) == ["first"]


@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (filtered(("colour", "red")), "colour"),
        (filtered(("uuid", "x")), "uuid"),
        ("filters.field=name", "filters.value"),
        ("filters.value=x", "filters.field"),
        (filtered(("name", "a"), ("name", "b")), "more than once"),
        (filtered(("name", "%00")), "control"),
        (filtered(("limit", "0")), "limit"),
        (filtered(("marker", "nobody")), "marker"),
        (filtered(("sort_key", "std_board_info")), "sort_key"),
        (filtered(("sort_key", "id")), "sort_key"),
        (filtered(("sort_dir", "down")), "sort_dir"),
        (f"limit=1&{filtered(('limit', '1'))}", "limit"),
        ("filters=name", "filters"),
    ],
)
def test_a_filter_that_is_not_understood_is_400(world: World, resource: str, arguments: str, named: str) -> None:
    answer = world.call("GET", f"/v2/{resource}?{arguments}")
    assert answer.status_code == 400
    assert named in fault(answer)
