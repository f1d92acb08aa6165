"""Whatever a caller sends, the service is not what fails."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from api_world import REMOVE_OPS, World
from falcon.testing import Result
from hypothesis import given, settings
from hypothesis import strategies as st

from autoclave.rules.device_lifecycle import DeviceState


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(Path(tmp_path_factory.mktemp("anything")))
    made.add_device()
    made.add_device("0000:02:00.0", device_state=DeviceState.ERROR)
    made.add_profile()
    made.add_arq()
    made.add_host()
    made.add_image(id=SOME_IMAGE)
    made.add_flavor(id="1")
    made.add_server(imageRef=SOME_IMAGE, flavorRef="1")
    yield made
    made.close()


SOME_IMAGE = "9d0e5f3b-2d4e-4a9c-b1e7-9f8d3c2a1b0e"
SOME_UUID = "7c8a5f3b-2d4e-4a9c-b1e7-9f8d3c2a1b0e"
TEXT = st.text(max_size=20) | st.sampled_from(["", "\x00", "\ud800", "%", "١", "a" * 300, SOME_UUID, "one-drive"])
KEYS = (
    TEXT
    | st.sampled_from(
        ["name", "groups", "uuid", "description", "device_profile_name", "path", "op", "value", "/hostname", "reason"]
    )
    | st.sampled_from(["resources:FPGA", "trait:CUSTOM_A", "accel:x", SOME_UUID])
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
GOOD: dict[str, tuple[str, Any]] = {
    "/v2/device_profiles": ("POST", [{"name": "p", "description": "d", "groups": [{"resources:FPGA": "1"}]}]),
    "/v2/accelerator_requests": ("POST", {"device_profile_name": "one-drive"}),
    "/v2/attributes": ("POST", {"deployable_id": 1, "key": "rack", "value": "A7"}),
    "/accelerator/v2/accelerator_requests": ("PATCH", {SOME_UUID: REMOVE_OPS}),
    f"/v2/devices/{SOME_UUID}/enable": ("POST", {"reason": "x"}),
    "/autoclave/v1/devices/compute-1/0000:01:00.0/hold": ("POST", {"reason": "x"}),
    "/compute/v2.1/flavors": ("POST", {"flavor": {"id": None, "name": "f", "ram": 1, "vcpus": 1, "disk": 0}}),
    "/compute/v2.1/flavors/1": ("PUT", {"flavor": {"description": "d"}}),
    "/compute/v2.1/flavors/1/os-extra_specs": ("POST", {"extra_specs": {"trait:CUSTOM_A": "required"}}),
    "/compute/v2.1/servers": (
        "POST",
        {
            "server": {
                "name": "vm",
                "imageRef": SOME_IMAGE,
                "flavorRef": "1",
                "networks": "none",
                "metadata": {"k": "v"},
                "tags": ["t"],
                "availability_zone": "nova:compute-1",
                "max_count": 2,
            }
        },
    ),
    f"/compute/v2.1/servers/{SOME_UUID}/action": ("POST", {"rebuild": {"imageRef": SOME_IMAGE}}),
    f"/compute/v2.1/servers/{SOME_UUID}/metadata": ("POST", {"metadata": {"k": "v"}}),
    "/image/v2/images": ("POST", {"name": "i", "tags": [], "trait:HW_X": "required", "min_disk": 1}),
    f"/image/v2/images/{SOME_IMAGE}": ("PATCH", [{"op": "add", "path": "/trait:HW_X", "value": "required"}]),
}


@st.composite
def nearly_good(draw: st.DrawFn, document: Any) -> Any:
    """*document* with one part of it, at some depth, replaced by anything."""
    if draw(st.booleans()) or not isinstance(document, list | dict) or not document:
        return draw(JSON)
    keys = range(len(document)) if isinstance(document, list) else sorted(document)
    key = draw(st.sampled_from(list(keys)))
    copy = document.copy()
    copy[key] = draw(nearly_good(document[key]))
    return copy


def is_fit(answer: Result) -> bool:
    return answer.status_code < 500 and "Traceback" not in answer.text


@given(data=st.data(), path=st.sampled_from(sorted(GOOD)))
@settings(max_examples=150)
def test_no_body_makes_the_service_fail(shared: World, data: st.DataObject, path: str) -> None:
    method, document = GOOD[path]
    body = json.dumps(data.draw(nearly_good(document)))
    answer = shared.http.simulate_request(method, path, body=body, headers={"Content-Type": "application/json"})
    assert is_fit(answer), answer.text


@given(raw=st.binary(max_size=50), path=st.sampled_from(sorted(GOOD)))
@settings(max_examples=50)
def test_no_bytes_make_the_service_fail(shared: World, raw: bytes, path: str) -> None:
    answer = shared.http.simulate_request(GOOD[path][0], path, body=raw)
    assert is_fit(answer), answer.text


LISTS = [
    "/v2/devices",
    "/v2/deployables",
    "/v2/attributes",
    "/v2/device_profiles",
    "/v2/accelerator_requests",
    "/autoclave/v1/devices",
    "/compute/v2.1/flavors",
    "/compute/v2.1/servers",
    "/compute/v2.1/servers/detail",
    "/compute/v2.1/os-services",
    "/compute/v2.1/os-hypervisors",
    "/image/v2/images",
]
NAMES = ["limit", "marker", "type", "vendor", "hostname", "name", "instance", "bind_state", "device_state"]
NAMES += ["filters.field", "filters.value", "deployable_id", "key"]
NAMES += ["status", "uuid", "host", "is_public", "id"]


@given(
    path=st.sampled_from(LISTS),
    arguments=st.lists(st.tuples(st.sampled_from(NAMES) | TEXT, st.integers().map(str) | TEXT), max_size=3),
)
@settings(max_examples=100)
def test_no_question_makes_the_service_fail(shared: World, path: str, arguments: list[tuple[str, str]]) -> None:
    query = "&".join("=".join(quote(part, errors="replace") for part in pair) for pair in arguments)
    assert is_fit(shared.http.simulate_get(path, query_string=query))


@given(path=st.sampled_from(LISTS), key=TEXT, method=st.sampled_from(["GET", "DELETE", "PATCH", "POST"]))
@settings(max_examples=100)
def test_no_name_makes_the_service_fail(shared: World, path: str, key: str, method: str) -> None:
    name = quote(key.replace("/", ""), safe="", errors="replace")
    of_servers = ("/action", "/metadata", "/metadata/k")
    for below in ("", "/clean", "/disable", "/program", "/history", "/file", *of_servers):
        assert is_fit(shared.http.simulate_request(method, f"{path}/{name}{below}"))


@given(version=st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=30))
@settings(max_examples=50)
def test_no_version_makes_the_service_fail(shared: World, version: str) -> None:
    answer = shared.http.simulate_get("/v2", headers={"OpenStack-API-Version": f"accelerator {version}"})
    assert answer.status_code in (200, 406)
