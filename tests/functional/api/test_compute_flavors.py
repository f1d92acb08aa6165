"""Flavors and their extra specs: what is kept, what is refused, and who sees which."""

from pathlib import Path
from typing import Any

import pytest
from api_world import World, new_uuid, said

pytestmark = pytest.mark.matrix

MEMBER = "mia:blue:member"


def names(world: World, query: str = "", token: str | None = None) -> list[str]:
    found, short = (
        world.compute("GET", f"{path}{query}", token=token).json["flavors"] for path in ("/flavors/detail", "/flavors")
    )
    assert [one["id"] for one in found] == [one["id"] for one in short]
    return sorted(one["name"] for one in found)


def test_a_flavor_has_all_that_it_was_given(world: World) -> None:
    wanted = {
        "id": "m1.gpu",
        "name": "gpu",
        "ram": 2048,
        "vcpus": 2,
        "disk": 0,
        "swap": 512,
        "OS-FLV-EXT-DATA:ephemeral": 3,
        "os-flavor-access:is_public": False,
        "rxtx_factor": 0.5,
        "description": "größe",
    }
    made = world.compute("POST", "/flavors", {"flavor": wanted}).json["flavor"]
    assert {name: made[name] for name in wanted} == wanted
    assert (made["extra_specs"], made["OS-FLV-DISABLED:disabled"]) == ({}, False)
    assert world.compute("GET", "/flavors/m1.gpu").json["flavor"] == made


def test_auto_and_null_are_ids_that_nobody_has_yet(world: World) -> None:
    ids = {world.add_flavor("a", id="auto"), world.add_flavor("b", id=None)}
    assert len(ids) == 2
    assert "auto" not in ids


@pytest.mark.parametrize("taken", [{"name": "small"}, {"id": "1"}], ids=str)
def test_a_name_or_an_id_that_is_taken_is_409(world: World, taken: dict[str, str]) -> None:
    world.add_flavor("small", id="1")
    wanted = {"id": "2", "name": "other", "ram": 1, "vcpus": 1, "disk": 1, **taken}
    answer = world.compute("POST", "/flavors", {"flavor": wanted})
    assert answer.status_code == 409
    assert "exists already" in said(answer)


def test_an_id_that_nobody_has_asked_for_is_not_blamed(world: World) -> None:
    world.add_flavor("small")
    answer = world.compute("POST", "/flavors", {"flavor": {"name": "small", "ram": 1, "vcpus": 1, "disk": 1}})
    assert (answer.status_code, said(answer)) == (409, "A flavor with the name small exists already.")


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"ram": 0}, "ram"),
        ({"vcpus": 0}, "vcpus"),
        ({"disk": -1}, "disk"),
        ({"ram": 2**31}, "ram"),
        ({"ram": "512"}, "ram"),
        ({"swap": ""}, "swap"),
        ({"id": "a/b"}, "id"),
        ({"name": ""}, "name"),
        ({"rxtx_factor": 0}, "rxtx_factor"),
        ({"description": "d" * 4097}, "description"),
    ],
    ids=str,
)
def test_a_flavor_that_cannot_be_is_400_and_its_field_is_named(
    world: World, values: dict[str, Any], named: str
) -> None:
    wanted = {"name": "f", "ram": 1, "vcpus": 1, "disk": 0, **values}
    answer = world.compute("POST", "/flavors", {"flavor": wanted})
    assert answer.status_code == 400
    assert named in said(answer)


def test_flavors_that_are_not_public_are_there_for_administrators_only(world: World) -> None:
    world.add_flavor("public")
    hidden = world.add_flavor("hidden", **{"os-flavor-access:is_public": False})
    assert names(world) == ["public"]
    assert names(world, "?is_public=None") == ["hidden", "public"]
    assert names(world, "?is_public=False") == ["hidden"]
    for query in ("", "?is_public=None", "?is_public=False"):
        assert names(world, query, MEMBER) == ["public"]
    assert world.compute("GET", f"/flavors/{hidden}/os-flavor-access").json == {"flavor_access": []}
    [public] = [one["id"] for one in world.compute("GET", "/flavors").json["flavors"]]
    answer = world.compute("GET", f"/flavors/{public}/os-flavor-access")
    assert (answer.status_code, "is public" in said(answer)) == (404, True)
    assert world.compute("GET", f"/flavors/{hidden}", token=MEMBER).status_code == 404
    assert world.compute("GET", f"/flavors/{hidden}/os-extra_specs", token=MEMBER).status_code == 404
    assert world.compute("GET", f"/flavors?marker={hidden}", token=MEMBER).status_code == 400
    answer = world.compute("POST", "/servers", world.new_server(flavorRef=hidden), token=MEMBER)
    assert answer.status_code == 400
    assert hidden in said(answer)


def test_flavors_are_filtered_by_what_they_have_at_least(world: World) -> None:
    world.add_flavor("small")
    world.add_flavor("big", ram=4096, disk=10)
    assert names(world, "?minRam=1024") == ["big"]
    assert names(world, "?minDisk=2") == ["big"]
    assert names(world, "?minDisk=11") == []
    assert world.compute("GET", "/flavors?minRam=x").status_code == 400


def test_a_full_page_says_where_the_next_one_is(world: World) -> None:
    for flavorid in ("a b", "c"):
        world.add_flavor(flavorid, id=flavorid)
    for path in ("/flavors", "/flavors/detail"):
        page = world.compute("GET", f"{path}?limit=1&minRam=1").json
        [link] = page["flavors_links"]
        assert ([one["id"] for one in page["flavors"]], link["rel"]) == (["a b"], "next")
        following = world.compute("GET", link["href"].partition("/compute/v2.1")[2]).json["flavors"]
        assert [one["id"] for one in following] == ["c"]
        assert set(world.compute("GET", path).json) == {"flavors"}
        assert len(world.compute("GET", f"{path}?limit=0").json["flavors"]) == 2


def test_extra_specs_are_added_to_those_there_are(world: World) -> None:
    flavor = world.add_flavor()
    path = f"/flavors/{flavor}/os-extra_specs"
    assert world.compute("POST", path, {"extra_specs": {"a:b": "1"}}).json == {"extra_specs": {"a:b": "1"}}
    world.compute("POST", path, {"extra_specs": {"trait1:CUSTOM_X": "required"}})
    assert world.compute("GET", path).json == {"extra_specs": {"a:b": "1", "trait1:CUSTOM_X": "required"}}
    assert world.compute("GET", f"{path}/a:b").json == {"a:b": "1"}
    assert world.compute("PUT", f"{path}/a:b", {"a:b": "2"}).json == {"a:b": "2"}
    assert world.compute("PUT", f"{path}/a:b", {"other": "2"}).status_code == 400
    assert world.compute("DELETE", f"{path}/a:b").status_code == 200
    assert world.compute("DELETE", f"{path}/a:b").status_code == 404
    assert world.compute("GET", f"/flavors/{flavor}").json["flavor"]["extra_specs"] == {"trait1:CUSTOM_X": "required"}


@pytest.mark.parametrize(
    "specs",
    [{}, {"a": 1}, {"a": None}, {"ü": "1"}, {"a" * 256: "1"}, {"a": "v" * 256}, {f"k{n}": "v" for n in range(129)}],
    ids=["none", "number", "null", "umlaut", "long-key", "long-value", "many"],
)
def test_extra_specs_that_cannot_be_are_400(world: World, specs: dict[str, Any]) -> None:
    path = f"/flavors/{world.add_flavor()}/os-extra_specs"
    assert world.compute("POST", path, {"extra_specs": specs}).status_code == 400


REFUSED_BY_NOVA = {
    "resources:CUSTOM_X": "../../x",
    "resources_a:VCPU": "",
    "resources:NO_SUCH_CLASS": "1",
    "trait:HW_NVME_CES": "0",
    "trait2:CUSTOM_X": "Required",
    "trait:HW_NO_SUCH_TRAIT": "required",
    "trait:custom_x": "required",
    "group_policy": "any",
    "pci_passthrough:alias": "gpu",
    "pci_passthrough:aliases": "gpu:1",
    "accel:device_profiles": "p",
    "hide_hypervisor_id": "perhaps",
}


@pytest.mark.parametrize("key", REFUSED_BY_NOVA)
@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_specs_refused_by_nova_are_400_from_2_86_on(world: World, method: str, key: str) -> None:
    path = f"/compute/v2.1/flavors/{world.add_flavor()}/os-extra_specs"
    spec = {key: REFUSED_BY_NOVA[key]}
    way = (path, {"extra_specs": spec}) if method == "POST" else (f"{path}/{key}", spec)

    def send(version: str) -> Any:
        headers = {"OpenStack-API-Version": f"compute {version}"}
        return world.http.simulate_request(method, way[0], json=way[1], headers=headers)

    refused = send("2.86")
    assert refused.status_code == 400
    assert repr(key) in said(refused)
    assert send("2.96").status_code == 400
    assert world.http.simulate_get(path).json == {"extra_specs": {}}
    assert send("2.85").status_code == 200


def test_specs_allowed_by_nova_are_taken(world: World) -> None:
    specs = {
        "resources:CUSTOM_X": "-1",
        "resources_a:VCPU": "2",
        "trait:HW_NVME_CES": "required",
        "trait2:CUSTOM_X": "forbidden",
        "group_policy": "isolate",
        "pci_passthrough:alias": "gpu:1 , big nic:2",
        "accel:device_profile": "",
        "hide_hypervisor_id": "on",
        "resourceful": "x",
        "hw:numa_nodes": "2",
        "mine:resources": "x",
    }
    path = f"/flavors/{world.add_flavor()}/os-extra_specs"
    assert world.compute("POST", path, {"extra_specs": specs}).status_code == 200


def test_a_flavor_never_gets_more_extra_specs_than_fit(world: World) -> None:
    path = f"/flavors/{world.add_flavor()}/os-extra_specs"
    assert world.compute("POST", path, {"extra_specs": {f"k{n}": "v" for n in range(128)}}).status_code == 200
    answer = world.compute("POST", path, {"extra_specs": {"one-more": "v"}})
    assert answer.status_code == 400
    assert "the maximum is 128" in said(answer)
    answer = world.compute("POST", path, {"extra_specs": {f"k{n}": "\U0001f4a3" * 255 for n in range(30)}})
    assert answer.status_code == 400
    assert "bytes" in said(answer)


def test_a_server_keeps_the_flavor_that_it_was_made_by(world: World) -> None:
    world.add_host()
    flavor = world.add_flavor("gpu")
    world.compute("POST", f"/flavors/{flavor}/os-extra_specs", {"extra_specs": {"a": "1"}})
    server = world.add_server(flavorRef=flavor)
    world.compute("POST", f"/flavors/{flavor}/os-extra_specs", {"extra_specs": {"a": "2"}})
    world.compute("DELETE", f"/flavors/{flavor}")
    kept = world.compute("GET", f"/servers/{server}").json["server"]["flavor"]
    assert (kept["original_name"], kept["extra_specs"]) == ("gpu", {"a": "1"})


@pytest.mark.parametrize("key", ["nobody", "small", "%00", "%ED%A0%80", "a" * 300])
def test_a_flavor_that_is_not_there_is_404_whatever_its_id(world: World, key: str) -> None:
    world.add_flavor("small")
    for method, path, body in [
        ("GET", f"/flavors/{key}", None),
        ("DELETE", f"/flavors/{key}", None),
        ("PUT", f"/flavors/{key}", {"flavor": {"description": None}}),
        ("POST", f"/flavors/{key}/os-extra_specs", {"extra_specs": {"k": "v"}}),
    ]:
        assert world.compute(method, path, body).status_code == 404, (method, path)


def test_versions_that_clients_ask_for_are_all_taken_and_told(world: World) -> None:
    for headers, told in [
        ({}, "2.1"),
        ({"OpenStack-API-Version": "compute 2.61"}, "2.61"),
        ({"X-OpenStack-Nova-API-Version": "2.37"}, "2.37"),
        ({"X-OpenStack-Nova-API-Version": "latest"}, "2.96"),
        ({"OpenStack-API-Version": "compute 2.90", "X-OpenStack-Nova-API-Version": "2.1"}, "2.90"),
    ]:
        answer = world.http.simulate_get("/compute/v2.1/flavors", headers=headers)
        assert answer.status_code == 200
        assert answer.headers["OpenStack-API-Version"] == f"compute {told}"
        assert answer.headers["X-OpenStack-Nova-API-Version"] == told
        assert "X-OpenStack-Nova-API-Version" in answer.headers["Vary"]
    refused = world.http.simulate_get("/compute/v2.1/flavors", headers={"X-OpenStack-Nova-API-Version": "2.97"})
    assert refused.status_code == 406
    assert "2.1 to 2.96" in refused.json["notAcceptable"]["message"]


def test_errors_of_each_api_have_the_shape_that_its_clients_know(world: World) -> None:
    compute = world.compute("GET", f"/servers/{new_uuid()}")
    assert set(compute.json["itemNotFound"]) == {"code", "message"}
    image = world.http.simulate_get(f"/image/v2/images/{new_uuid()}")
    assert (image.json["code"], image.json["title"]) == (404, "Not Found")
    assert "error_message" in world.http.simulate_get("/v2/nothing").json
    assert "itemNotFound" in world.compute("GET", "/nothing").json
    assert "badMethod" in world.compute("DELETE", "/flavors").json
    assert "forbidden" in world.compute("POST", "/flavors", {}, token=MEMBER).json


def test_who_may_not_list_extra_specs_sees_them_nowhere(tmp_path: Path) -> None:
    rules = tmp_path / "policy.yaml"
    rules.write_text('"os_compute_api:os-flavor-extra-specs:index": "rule:admin_api"\n')
    config = tmp_path / "autoclave.conf"
    config.write_text(f"[oslo_policy]\npolicy_file = {rules}\n")
    world = World(tmp_path, config_files=(str(config),))
    world.add_host()
    flavor = world.add_flavor("f")
    world.compute("POST", f"/flavors/{flavor}/os-extra_specs", {"extra_specs": {"a:b": "c"}})
    server = world.add_server(flavorRef=flavor, token=MEMBER)
    for token, sees in ((MEMBER, False), (None, True)):
        shown = [
            world.compute("GET", f"/flavors/{flavor}", token=token).json["flavor"],
            *world.compute("GET", "/flavors/detail", token=token).json["flavors"],
            world.compute("GET", f"/servers/{server}", token=token).json["server"]["flavor"],
        ]
        assert [one.get("extra_specs") for one in shown] == [{"a:b": "c"} if sees else None] * 3
    world.close()
