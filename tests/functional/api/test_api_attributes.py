"""/v2/attributes: what is said of a deployable, by discovery and by operators."""

import json
from typing import Any

import pytest
from api_world import World, fault, new_uuid

from autoclave.db.devices import DeployableRecord

pytestmark = pytest.mark.matrix

PATH = "/v2/attributes"


@pytest.fixture
def deployable(world: World) -> DeployableRecord:
    return world.provider(world.add_device())


def body(deployable: DeployableRecord, **changes: Any) -> dict[str, Any]:
    return {"deployable_id": deployable.id, "key": "rack", "value": "A7", **changes}


def test_discoverys_words_are_listed_and_shown(world: World, deployable: DeployableRecord) -> None:
    listed = world.call("GET", PATH).json["attributes"]
    assert [(one["key"], one["value"]) for one in listed] == [
        ("rc", "CUSTOM_NVME_144D_A808"),
        ("trait0", "HW_NVME_CES"),
    ]
    shown = world.call("GET", f"{PATH}/{listed[0]['uuid']}").json
    assert shown == listed[0]
    assert set(shown) == {"uuid", "deployable_id", "key", "value", "links", "created_at", "updated_at"}
    assert shown["links"][0]["href"].endswith(f"/accelerator/v2/attributes/{shown['uuid']}")


def test_an_operators_word_is_added_shown_and_deleted(world: World, deployable: DeployableRecord) -> None:
    made = world.call("POST", PATH, body(deployable))
    assert made.status_code == 201
    assert (made.json["deployable_id"], made.json["key"], made.json["value"]) == (deployable.id, "rack", "A7")
    assert made.json["updated_at"] is None
    assert world.call("GET", f"{PATH}/{made.json['uuid']}").json == made.json
    shown = world.call("GET", f"/v2/deployables/{deployable.uuid}").json
    assert json.loads(shown["attributes_list"])[-1] == {"rack": "A7"}
    gone = world.call("DELETE", f"{PATH}/{made.json['uuid']}")
    assert (gone.status_code, gone.content) == (204, b"")
    assert world.call("GET", f"{PATH}/{made.json['uuid']}").status_code == 404
    assert world.call("DELETE", f"{PATH}/{made.json['uuid']}").status_code == 404


def test_an_attribute_from_get_can_be_posted_back(world: World, deployable: DeployableRecord) -> None:
    """The read-only fields of an answer are ignored, and the service chooses the uuid."""
    shown = world.call("POST", PATH, body(deployable)).json
    assert world.call("DELETE", f"{PATH}/{shown['uuid']}").status_code == 204
    again = world.call("POST", PATH, shown)
    assert (again.status_code, again.json["key"], again.json["value"]) == (201, "rack", "A7")
    assert again.json["uuid"] != shown["uuid"]


def test_a_deployable_is_named_by_its_id_or_as_clients_show_it(world: World, deployable: DeployableRecord) -> None:
    spellings = [deployable.id, str(deployable.id), deployable.uuid, deployable.uuid.upper()]
    for number, spelling in enumerate(spellings):
        made = world.call("POST", PATH, body(deployable, deployable_id=spelling, key=f"k{number}"))
        assert (made.status_code, made.json["deployable_id"]) == (201, deployable.id)


def test_the_envelope_of_openstacksdk_may_stand_around_it(world: World, deployable: DeployableRecord) -> None:
    assert world.call("POST", PATH, {"attribute": body(deployable)}).json["key"] == "rack"


def test_attributes_are_filtered_and_paged(world: World, deployable: DeployableRecord) -> None:
    other = world.provider(world.add_device("0000:02:00.0"))
    for one in (deployable, other):
        world.call("POST", PATH, body(one))

    def listed(arguments: str) -> list[tuple[int, str]]:
        found = world.call("GET", f"{PATH}?{arguments}").json["attributes"]
        return [(one["deployable_id"], one["key"]) for one in found]

    assert listed(f"deployable_id={other.id}") == [(other.id, "rc"), (other.id, "trait0"), (other.id, "rack")]
    assert listed(f"deployable_id={other.uuid}&key=rack") == [(other.id, "rack")]
    assert listed("key=rack") == [(deployable.id, "rack"), (other.id, "rack")]
    assert listed("key=nothing") == []
    assert listed(f"deployable_id={new_uuid()}") == []
    assert listed("deployable_id=77") == []
    first = world.call("GET", f"{PATH}?key=rack&limit=1").json["attributes"][0]
    assert listed(f"key=rack&limit=1&marker={first['uuid']}") == [(other.id, "rack")]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"deployable_id": None}, "deployable_id"),
        ({"deployable_id": "x"}, "deployable_id"),
        ({"deployable_id": "1\n"}, "deployable_id"),
        ({"deployable_id": 0}, "deployable_id"),
        ({"deployable_id": "0"}, "deployable_id"),
        ({"deployable_id": 2**31}, "deployable_id"),
        ({"deployable_id": "9999999999"}, "deployable_id"),
        ({"deployable_id": True}, "deployable_id"),
        ({"key": ""}, "1 to 255"),
        ({"key": "k" * 256}, "1 to 255"),
        ({"key": "a\tb"}, "control"),
        ({"key": "a\n"}, "control"),
        ({"key": 7}, "key"),
        ({"value": 7}, "value"),
        ({"value": "v" * 4097}, "value"),
    ],
)
def test_what_an_attribute_cannot_be_is_400_and_named(
    world: World, deployable: DeployableRecord, changes: dict[str, Any], named: str
) -> None:
    before = world.call("GET", PATH).json
    for document in (body(deployable, **changes), {"attribute": body(deployable, **changes)}):
        answer = world.call("POST", PATH, document)
        assert answer.status_code == 400
        assert named in fault(answer)
    assert world.call("GET", PATH).json == before


@pytest.mark.parametrize("name", ["deployable_id", "key", "value"])
def test_what_is_left_out_is_named(world: World, deployable: DeployableRecord, name: str) -> None:
    document = {key: value for key, value in body(deployable).items() if key != name}
    answer = world.call("POST", PATH, document)
    assert answer.status_code == 400
    assert name in fault(answer)


@pytest.mark.parametrize("nobody", [77, "77", pytest.param(new_uuid(), id="uuid")])
def test_a_deployable_that_there_is_not_has_no_attributes(world: World, nobody: Any) -> None:
    answer = world.call("POST", PATH, {"deployable_id": nobody, "key": "k", "value": "v"})
    assert answer.status_code == 404
    assert str(nobody) in fault(answer)


def test_a_key_is_there_once(world: World, deployable: DeployableRecord) -> None:
    assert world.call("POST", PATH, body(deployable)).status_code == 201
    answer = world.call("POST", PATH, body(deployable, value="B1"))
    assert answer.status_code == 409
    assert "rack" in fault(answer)


@pytest.mark.parametrize("key", ["rc", "RC", "trait0", "trait7", "Trait1", "trait", "traits"])
def test_nobody_speaks_for_discovery(world: World, deployable: DeployableRecord, key: str) -> None:
    answer = world.call("POST", PATH, body(deployable, key=key, value="CUSTOM_FAST"))
    assert answer.status_code == 400
    assert "openstack resource provider trait set" in fault(answer)


def test_nobody_unsays_what_discovery_said(world: World, deployable: DeployableRecord) -> None:
    for said in world.call("GET", PATH).json["attributes"]:
        answer = world.call("DELETE", f"{PATH}/{said['uuid']}")
        assert answer.status_code == 409
        assert said["key"] in fault(answer)
    assert len(world.call("GET", PATH).json["attributes"]) == 2


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_an_attribute_that_is_not_there_is_404_and_no_uuid_is_400(world: World, method: str) -> None:
    assert world.call(method, f"{PATH}/{new_uuid()}").status_code == 404
    assert world.call(method, f"{PATH}/rack").status_code == 400


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_an_attribute_cannot_be_changed(world: World, method: str) -> None:
    assert world.call(method, f"{PATH}/{new_uuid()}", {}).status_code == 405
