"""How clients find the API, and agree on a microversion."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from api_world import World, fault, new_uuid

pytestmark = pytest.mark.matrix

ROOTS = ["/", "/accelerator", "/accelerator/"]
VERSION_DOCUMENTS = ["/v2", "/v2/", "/accelerator/v2", "/accelerator/v2/"]

RESOURCES = ["devices", "deployables", "attributes", "device_profiles", "accelerator_requests"]


@pytest.fixture
def behind_a_proxy(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, {("api", "public_endpoint"): "https://cloud.example/"})
    yield made
    made.close()


@pytest.mark.parametrize("path", ROOTS)
def test_the_root_names_one_version_whose_link_can_be_followed(world: World, path: str) -> None:
    document = world.call("GET", path, version=None).json
    [version] = document["versions"]
    assert document["default_version"] == version
    assert (version["id"], version["min_version"], version["max_version"]) == ("v2", "2.0", "2.5")
    followed = world.call("GET", urlsplit(version["links"][0]["href"]).path, version=None)
    assert followed.json["id"] == "v2.0"


@pytest.mark.parametrize("path", VERSION_DOCUMENTS)
def test_the_version_document_is_flat_and_its_link_leads_to_itself(world: World, path: str) -> None:
    document = world.call("GET", path, version=None).json
    assert (document["id"], document["status"], document["max_version"]) == ("v2.0", "CURRENT", "2.5")
    followed = world.call("GET", urlsplit(document["links"][0]["href"]).path, version=None)
    assert followed.json == document


def test_both_mounts_serve_the_same_resources(world: World) -> None:
    device = world.add_device()
    for mount in ("/v2", "/accelerator/v2"):
        assert world.call("GET", f"{mount}/devices/{device.uuid}").json["uuid"] == device.uuid


@pytest.mark.parametrize("mount", ["", "/accelerator"])
@pytest.mark.parametrize("resource", RESOURCES)
def test_who_leaves_the_version_out_means_the_only_one_there_is(world: World, mount: str, resource: str) -> None:
    world.add_device()
    world.add_profile()
    world.add_arq()
    named = world.call("GET", f"/v2/{resource}", version="2.3")
    unnamed = world.call("GET", f"{mount}/{resource}", version="2.3")
    assert unnamed.json == named.json
    assert unnamed.headers["OpenStack-API-Version"] == "accelerator 2.3"
    [[row]] = [rows[:1] for rows in named.json.values()]
    for slash in ("", "/"):
        shown = world.call("GET", f"{mount}/{resource}/{row['uuid']}{slash}")
        assert shown.json == world.call("GET", f"/v2/{resource}/{row['uuid']}").json
        assert shown.headers["Vary"] == "OpenStack-API-Version"
    assert world.call("PUT", f"{mount}/{resource}").status_code == 405
    assert world.call("GET", f"{mount}/{resource}", version="2.9").status_code == 406


@pytest.mark.parametrize("path", ["/v1", "/v1/devices", "/v3/devices", "/v2/v2/devices", "/accelerator/v1", "/device"])
def test_another_version_is_not_there(world: World, path: str) -> None:
    assert world.call("GET", path).status_code == 404


@pytest.mark.parametrize("path", ["/", "/healthcheck", "/autoclave/v1/devices", "/identity"])
def test_what_is_not_the_accelerator_api_has_no_microversion(world: World, path: str) -> None:
    answer = world.call("GET", path, version="9.9")
    assert answer.status_code < 400
    assert "OpenStack-API-Version" not in answer.headers


def test_links_follow_the_host_that_was_asked(world: World) -> None:
    answer = world.http.simulate_get("/v2", headers={"Host": "127.0.0.9:7777"})
    assert answer.json["links"][0]["href"] == "http://127.0.0.9:7777/accelerator/v2/"


def test_links_are_built_from_public_endpoint_where_there_is_one(behind_a_proxy: World) -> None:
    assert behind_a_proxy.call("GET", "/v2").json["links"][0]["href"] == "https://cloud.example/accelerator/v2/"
    device = behind_a_proxy.add_device()
    shown = behind_a_proxy.call("GET", f"/v2/devices/{device.uuid}").json
    assert shown["links"] == [{"href": f"https://cloud.example/accelerator/v2/devices/{device.uuid}", "rel": "self"}]


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        (None, "2.0"),
        ("", "2.0"),
        ("accelerator 2.0", "2.0"),
        ("accelerator 2.3", "2.3"),
        ("accelerator latest", "2.5"),
        ("2.4", "2.4"),
        ("compute 2.79, accelerator 2.1", "2.1"),
    ],
)
def test_each_answer_says_which_version_was_served(world: World, asked: str | None, served: str) -> None:
    headers = {} if asked is None else {"OpenStack-API-Version": asked}
    answer = world.http.simulate_get("/v2/devices", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["OpenStack-API-Version"] == f"accelerator {served}"
    assert answer.headers["OpenStack-API-Minimum-Version"] == "2.0"
    assert answer.headers["OpenStack-API-Maximum-Version"] == "2.5"
    assert answer.headers["Vary"] == "OpenStack-API-Version"


@pytest.mark.parametrize("asked", ["accelerator 2.6", "accelerator 1.0", "accelerator 3.0", "2.99"])
def test_a_version_that_is_not_served_is_refused_with_the_range(world: World, asked: str) -> None:
    answer = world.http.simulate_get("/v2/devices", headers={"OpenStack-API-Version": asked})
    assert answer.status_code == 406
    assert "2.0 to 2.5" in fault(answer)
    assert answer.headers["OpenStack-API-Maximum-Version"] == "2.5"
    assert "OpenStack-API-Version" not in answer.headers


@pytest.mark.parametrize("asked", ["compute 2.1", "accelerator", "accelerator two", "accelerator 2", "2.x", ",", "²·³"])
def test_a_version_that_cannot_be_read_is_refused(world: World, asked: str) -> None:
    answer = world.http.simulate_get("/v2/devices", headers={"OpenStack-API-Version": asked.encode().decode("latin-1")})
    assert answer.status_code == 406
    assert "Invalid value for OpenStack-API-Version header" in fault(answer)


def test_an_error_carries_the_version_too(world: World) -> None:
    answer = world.call("GET", f"/v2/devices/{new_uuid()}", version="2.1")
    assert answer.status_code == 404
    assert answer.headers["OpenStack-API-Version"] == "accelerator 2.1"


def test_the_identity_documents_answer_as_keystone_would(world: World) -> None:
    [listed] = world.call("GET", "/identity").json["versions"]["values"]
    shown = world.call("GET", "/identity/v3").json["version"]
    assert shown == listed
    assert shown["id"].startswith("v3")
    assert world.call("GET", urlsplit(shown["links"][0]["href"]).path).json["version"] == shown
