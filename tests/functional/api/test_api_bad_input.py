"""Bad input, by name, at every endpoint: each is refused in words that say what is wrong."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api_world import REMOVE_OPS, World, fault, new_uuid, said
from falcon.testing import Result

SOME_UUID = "7c8a5f3b-2d4e-4a9c-b1e7-9f8d3c2a1b0e"
PLACES = {"device": "compute-1", "address": "0000:01:00.0", "spec": "k", "item": "k"}
"""What the placeholders are that are no uuids."""
GOOD_BODIES: dict[str, Any] = {
    "POST /v2/device_profiles": [{"name": "p", "groups": [{"resources:FPGA": "1"}]}],
    "POST /v2/accelerator_requests": {"device_profile_name": "one-drive"},
    "PATCH /v2/accelerator_requests": {SOME_UUID: REMOVE_OPS},
    "PATCH /v2/accelerator_requests/{uuid}": {SOME_UUID: REMOVE_OPS},
    "POST /v2/attributes": {"deployable_id": 1, "key": "k", "value": "v"},
    "PATCH /v2/deployables/{uuid}/program": [
        {"path": "/bitstream_id", "op": "replace", "value": [{"image_uuid": SOME_UUID}]}
    ],
    "POST /v2/devices/{uuid}/clean": {"reason": "r"},
    "POST /v2/devices/{uuid}/disable": {"reason": "r"},
    "POST /v2/devices/{uuid}/enable": {"reason": "r"},
    **{
        f"POST /autoclave/v1/devices/{place}/{action}": {"reason": "r"}
        for place in ("{device}", "{device}/{address}")
        for action in ("hold", "release", "accept", "forget", "take-back", "clean")
    },
    **{
        f"POST /autoclave/v1/burned/{place}/release": {"reason": "r"}
        for place in ("{provider}", "{provider}/{address}")
    },
    **{f"POST /autoclave/v1/hosts/{{host}}/{action}": {"reason": "r"} for action in ("maintenance", "resume")},
}
FLAVORS, SERVERS, IMAGES = "/compute/v2.1/flavors", "/compute/v2.1/servers", "/image/v2/images"
BOOT = {"uuid": SOME_UUID, "boot_index": 0, "source_type": "image", "destination_type": "local"}
NEW_SERVER = {
    "name": "vm1",
    "imageRef": SOME_UUID,
    "flavorRef": "1",
    "min_count": 1,
    "max_count": 1,
    "networks": "none",
    "block_device_mapping_v2": [BOOT],
    "description": "d",
    "tags": ["t"],
    "availability_zone": "nova",
    "host": "h1",
    "hypervisor_hostname": "h1",
    "config_drive": False,
}
NEW_FLAVOR = {"id": "1", "name": "f", "ram": 1, "vcpus": 1, "disk": 1, "swap": 1, "os-flavor-access:is_public": True}
GOOD_BODIES |= {
    f"POST {FLAVORS}": {"flavor": {**NEW_FLAVOR, "OS-FLV-EXT-DATA:ephemeral": 1, "description": "d"}},
    f"PUT {FLAVORS}/{{flavor}}": {"flavor": {"description": "d"}},
    f"POST {FLAVORS}/{{flavor}}/os-extra_specs": {"extra_specs": {"k": "v"}},
    f"PUT {FLAVORS}/{{flavor}}/os-extra_specs/{{spec}}": {"k": "v"},
    f"POST {SERVERS}": {"server": NEW_SERVER},
    f"PUT {SERVERS}/{{server}}": {"server": {"name": "n", "description": "d"}},
    f"POST {SERVERS}/{{server}}/action": {"rebuild": {"imageRef": SOME_UUID, "name": "n", "description": "d"}},
    f"POST {SERVERS}/{{server}}/metadata": {"metadata": {"k": "v"}},
    f"PUT {SERVERS}/{{server}}/metadata": {"metadata": {"k": "v"}},
    f"PUT {SERVERS}/{{server}}/metadata/{{item}}": {"meta": {"k": "v"}},
    "PUT /compute/v2.1/os-services/{service}": {"status": "disabled", "disabled_reason": "r", "forced_down": True},
    f"POST {IMAGES}": {"name": "n", "min_disk": 1, "min_ram": 1, "visibility": "shared", "protected": True, "tags": []},
    f"PATCH {IMAGES}/{{image}}": [{"op": "add", "path": "/name", "value": "n"}],
}
OPEN = {
    f"POST {FLAVORS}/{{flavor}}/os-extra_specs": ("extra_specs",),
    f"POST {SERVERS}/{{server}}/metadata": ("metadata",),
    f"PUT {SERVERS}/{{server}}/metadata": ("metadata",),
    f"POST {IMAGES}": (),
}
"""Where a body takes whatever keys there are, and values of text."""

NO_BODIES: list[Any] = [None, True, 7, "x", [], [[]], [7], [{}], [None], {"": {}}, {"nonsense": 1}, {SOME_UUID: []}]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(Path(tmp_path_factory.mktemp("bad-input")))
    made.add_device()
    made.add_profile()
    yield made
    made.close()


@pytest.fixture(scope="module")
def described(shared: World) -> dict[str, Any]:
    """The operations of the document by "METHOD path"."""
    paths = shared.http.simulate_get("/openapi.json").json["paths"]
    return {
        f"{method.upper()} {path}": operation
        for path, item in paths.items()
        for method, operation in item.items()
        if method not in ("parameters", "servers")
    }


def send(world: World, label: str, query: str = "", **request: Any) -> Result:
    method, template = label.split(" ")
    headers = {"OpenStack-API-Version": "accelerator latest, compute latest", **request.pop("headers", {})}
    path = re.sub(r"\{(\w+)\}", lambda hole: PLACES.get(hole[1], SOME_UUID), template)
    return world.http.simulate_request(method, path, query_string=query, headers=headers, **request)


def test_every_body_is_tried_below(described: dict[str, Any]) -> None:
    assert {label for label, operation in described.items() if takes_json(operation)} == GOOD_BODIES.keys()


def takes_json(operation: dict[str, Any]) -> bool:
    return any("json" in media_type for media_type in operation.get("requestBody", {}).get("content", ()))


@pytest.mark.parametrize("label", GOOD_BODIES)
class TestBodies:
    def test_one_that_is_too_large_is_413(self, shared: World, label: str) -> None:
        limit = shared.conf.api.max_request_body_size
        answer = send(shared, label, body=b" " * (limit + 1), headers={"Content-Type": "application/json"})
        assert answer.status_code == 413
        assert str(limit) in said(answer)

    @pytest.mark.parametrize("raw", [b"{", b"'", b"<a/>", b"\xff", b"reason=x"])
    def test_what_is_not_json_is_400(self, shared: World, label: str, raw: bytes) -> None:
        answer = send(shared, label, body=raw, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        assert "JSON" in said(answer) or "UTF-8" in said(answer)

    @pytest.mark.parametrize("depth", [33, 300, 960, 20_000])
    @pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
    def test_deep_nesting_is_400(self, shared: World, label: str, depth: int, opening: str, closing: str) -> None:
        raw = (opening * depth + "1" + closing * depth).encode()[: shared.conf.api.max_request_body_size]
        answer = send(shared, label, body=raw, headers={"Content-Type": "application/json"})
        assert answer.status_code == 400
        assert "nested more than 32 levels" in said(answer)

    @pytest.mark.parametrize("media_type", ["application/x-www-form-urlencoded", "text/plain", "application/xml"])
    def test_what_is_not_called_json_is_415(self, shared: World, label: str, media_type: str) -> None:
        answer = send(shared, label, body=json.dumps(GOOD_BODIES[label]), headers={"Content-Type": media_type})
        assert answer.status_code == 415
        assert "application/json" in said(answer)

    def test_wrong_types_and_empty_arrays_are_400(self, shared: World, label: str) -> None:
        for document in NO_BODIES:
            answer = send(shared, label, json=document) if document is not None else send(shared, label, body="null")
            assert answer.status_code in (400, 415), (document, answer.text)
            assert said(answer)

    def test_a_wrong_type_anywhere_in_it_is_400_and_its_place_is_named(self, shared: World, label: str) -> None:
        for place, document in spoiled(GOOD_BODIES[label], 7.5):
            answer = send(shared, label, json=document)
            assert answer.status_code == 400, (document, answer.text)
            assert place in said(answer)

    def test_an_unknown_field_is_400_and_named(self, shared: World, label: str) -> None:
        for place, document in extended(GOOD_BODIES[label], "nonsense"):
            if place == OPEN.get(label):
                continue
            answer = send(shared, label, json=document)
            assert answer.status_code == 400, (document, answer.text)
            assert "nonsense" in said(answer)


def spoiled(good: Any, bad: Any) -> Iterator[tuple[str, Any]]:
    """*good* with each of its values in turn replaced by *bad*, and what names the value."""
    if isinstance(good, list | dict):
        for key in range(len(good)) if isinstance(good, list) else good:
            copy = good.copy()
            copy[key] = bad
            yield str(key), copy
            for place, inner in spoiled(good[key], bad):
                yield place, {**good, key: inner} if isinstance(good, dict) else [inner]


def extended(good: Any, name: str) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """*good* with each of its objects in turn given a field *name*, and the place of that object."""
    if isinstance(good, dict):
        yield (), {**good, name: "x"}
        for key, value in good.items():
            yield from (((key, *place), {**good, key: inner}) for place, inner in extended(value, name))
    elif isinstance(good, list) and good:
        yield from (((0, *place), [inner, *good[1:]]) for place, inner in extended(good[0], name))


def test_an_unknown_argument_is_400_and_named_at_every_operation(shared: World, described: dict[str, Any]) -> None:
    for label in described:
        answer = send(shared, label, "nonsense=1", json=GOOD_BODIES.get(label))
        assert answer.status_code == 400, label
        assert "nonsense" in said(answer)


def test_an_argument_given_twice_is_400_and_named(shared: World, described: dict[str, Any]) -> None:
    for label, operation in described.items():
        for parameter in operation["parameters"]:
            if parameter["in"] != "query" or parameter["schema"].get("type") == "array":
                continue
            answer = send(shared, label, f"{parameter['name']}=1&{parameter['name']}=1")
            assert answer.status_code == 400, (label, parameter["name"])
            assert parameter["name"] in said(answer)


@pytest.mark.parametrize("version", ["2.99", "3.0", "1.0", "2", "-2.0", "newest", "2.٣", "2." + "9" * 300])
def test_an_unknown_microversion_is_406_at_every_operation(
    shared: World, described: dict[str, Any], version: str
) -> None:
    for label in described:
        for prefix, service, newest in (("/v2", "accelerator", "2.5"), ("/compute/v2.1", "compute", "2.96")):
            if label.split(" ")[1].startswith(prefix):
                asked = {"OpenStack-API-Version": f"{service} {version}".encode().decode("latin-1")}
                answer = send(shared, label, json=GOOD_BODIES.get(label), headers=asked)
                assert answer.status_code == 406, label
                assert newest in said(answer)


def test_another_media_type_is_406_wherever_json_is_spoken(shared: World, described: dict[str, Any]) -> None:
    for label in described.keys() - {"GET /metrics", f"GET {IMAGES}/{{image}}/file", f"PUT {IMAGES}/{{image}}/file"}:
        assert send(shared, label, headers={"Accept": "application/xml"}).status_code == 406, label


def test_a_method_that_is_not_there_is_405_and_the_others_are_named(shared: World, described: dict[str, Any]) -> None:
    paths = {label.split(" ")[1] for label in described}
    for path in paths:
        there = {method for method in ("GET", "POST", "PUT", "PATCH", "DELETE") if f"{method} {path}" in described}
        for method in {"GET", "POST", "PUT", "PATCH", "DELETE"} - there:
            answer = send(shared, f"{method} {path}")
            assert answer.status_code == 405, (method, path)
            assert set(answer.headers["Allow"].split(", ")) == there | {"OPTIONS"}
            assert method in said(answer)


def test_a_hundred_thousand_units_in_a_profile_group_are_too_many(shared: World) -> None:
    for count in (100_000, "100000"):
        answer = send(shared, "POST /v2/device_profiles", json=[{"name": "p", "groups": [{"resources:FPGA": count}]}])
        assert answer.status_code == 400
        assert "from 1 to 64" in fault(answer)


LONG = "n" * 256


@pytest.mark.parametrize(
    ("label", "document", "named"),
    [
        ("POST /v2/device_profiles", [{"name": LONG, "groups": [{"resources:FPGA": "1"}]}], "name"),
        ("POST /v2/device_profiles", [{"name": "p", "groups": [{f"resources:CUSTOM_{LONG.upper()}": "1"}]}], "CUSTOM_"),
        ("POST /v2/device_profiles", [{"name": "p", "groups": [{f"accel:{LONG}": "1"}]}], "accel:"),
        ("POST /v2/accelerator_requests", {"device_profile_name": LONG}, "device_profile_name"),
        ("POST /v2/attributes", {"deployable_id": 1, "key": LONG, "value": "v"}, "key"),
        (
            "PATCH /v2/accelerator_requests",
            {SOME_UUID: [{"path": path, "op": "add", "value": LONG} for path in ("/hostname", "/instance_uuid")]},
            "value",
        ),
        ("POST /autoclave/v1/devices/{device}/{address}/hold", {"reason": LONG * 4}, "reason"),
    ],
)
def test_a_name_of_256_characters_is_400_and_its_field_is_named(
    shared: World, label: str, document: Any, named: str
) -> None:
    answer = send(shared, label, json=document)
    assert answer.status_code == 400
    assert named in fault(answer)


@pytest.mark.parametrize("noun", ["devices", "deployables", "attributes", "device_profiles", "accelerator_requests"])
def test_a_name_of_256_characters_in_a_path_is_nobodys(shared: World, noun: str) -> None:
    assert shared.call("GET", f"/v2/{noun}/{LONG}").status_code in (400, 404)


def test_another_projects_requests_are_nobodys_by_whatever_method(shared: World) -> None:
    theirs = shared.add_arq(token="them:their-project:member")
    us = "we:our-project:member"
    for method, path, document in [
        ("GET", f"/v2/accelerator_requests/{theirs}", None),
        ("DELETE", f"/v2/accelerator_requests/{theirs}", None),
        ("DELETE", f"/v2/accelerator_requests?arqs={theirs}", None),
        ("PATCH", "/v2/accelerator_requests", {theirs: REMOVE_OPS}),
        ("PATCH", f"/v2/accelerator_requests/{theirs}", {theirs: REMOVE_OPS}),
        ("PATCH", "/v2/accelerator_requests", {theirs: shared.add_ops(some_device(shared), new_uuid())}),
    ]:
        answer = shared.call(method, path, document, token=us)
        assert answer.status_code == 404, (method, path)
        assert theirs in fault(answer)
    marked = shared.call("GET", f"/v2/accelerator_requests?marker={theirs}", token=us)
    assert marked.status_code == 400
    assert shared.call("GET", f"/v2/accelerator_requests/{theirs}").json["state"] == "Initial"


def some_device(world: World) -> Any:
    return world.device(world.call("GET", "/v2/devices").json["devices"][0]["uuid"])
