"""/v2/device_profiles."""

from typing import Any

import pytest
from api_world import World, fault, new_uuid

pytestmark = pytest.mark.matrix

PATH = "/v2/device_profiles"
GROUP = {"resources:CUSTOM_NVME_144D_A808": "1"}


def profile(**changes: Any) -> list[dict[str, Any]]:
    return [{"name": "p", "groups": [GROUP], **changes}]


def test_a_profile_is_made_bare_listed_in_an_envelope_and_shown_wrapped(world: World) -> None:
    made = world.call("POST", PATH, profile(description="one drive"))
    assert made.status_code == 201
    assert made.json["groups"] == [GROUP]
    assert made.json["description"] == "one drive"
    assert made.json["updated_at"] is None
    assert made.json["links"][0]["href"].endswith(f"/accelerator/v2/device_profiles/{made.json['uuid']}")
    assert world.call("GET", PATH).json == {"device_profiles": [made.json]}
    assert world.call("GET", f"{PATH}/{made.json['uuid']}").json == {"device_profile": made.json}


def test_a_profile_keeps_the_uuid_it_was_given(world: World) -> None:
    given = new_uuid()
    assert world.call("POST", PATH, profile(uuid=given.upper())).json["uuid"] == given


def test_a_profile_from_get_can_be_posted_back(world: World) -> None:
    """A profile is copied to another cloud, or made anew, by what GET showed."""
    shown = world.call("POST", PATH, profile(description="one drive")).json
    assert world.call("DELETE", f"{PATH}/{shown['uuid']}").status_code == 204
    again = world.call("POST", PATH, [shown])
    assert again.status_code == 201
    fields = ("uuid", "name", "description", "groups")
    assert [again.json[name] for name in fields] == [shown[name] for name in fields]


def test_a_whole_number_is_stored_as_text(world: World) -> None:
    made = world.call("POST", PATH, profile(groups=[{"resources:FPGA": 2, "trait:CUSTOM_X": "required"}]))
    assert made.json["groups"] == [{"resources:FPGA": "2", "trait:CUSTOM_X": "required"}]


@pytest.mark.parametrize("trait", ["HW_NVME_CES", "OWNER_CYBORG", "CUSTOM_ANYTHING"])
def test_standard_traits_may_be_asked_for(world: World, trait: str) -> None:
    assert world.call("POST", PATH, profile(groups=[{**GROUP, f"trait:{trait}": "forbidden"}])).status_code == 201


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"name": "p", "groups": [GROUP]}, "exactly one"),
        (profile() * 2, "exactly one"),
        ([{"groups": [GROUP]}], "name"),
        ([{"name": "p"}], "groups"),
        (profile(name=""), "1 to 255"),
        (profile(name="x" * 256), "1 to 255"),
        (profile(name="a b"), "letters"),
        (profile(name="a\n"), "letters"),
        (profile(name="é"), "letters"),
        (profile(uuid="7"), "uuid"),
        (profile(uuid=new_uuid() + "\n"), "uuid"),
        (profile(description=7), "description"),
        (profile(colour="red"), "colour"),
        (profile(groups=[]), "1 to 16"),
        (profile(groups=[GROUP] * 17), "1 to 16"),
        (profile(groups=[{}]), "groups"),
        (profile(groups=["x"]), "groups"),
        (profile(groups=[{**GROUP, "traits:CUSTOM_A": "required"}]), "traits:CUSTOM_A"),
        (profile(groups=[{**GROUP, "trait:": "required"}]), "trait:"),
        (profile(groups=[{**GROUP, "trait:HW_NVME_CSE": "required"}]), "HW_NVME_CSE"),
        (profile(groups=[{**GROUP, "trait:CUSTOM_a": "required"}]), "CUSTOM_a"),
        (profile(groups=[{**GROUP, "trait:CUSTOM_A": "maybe"}]), "forbidden"),
        (profile(groups=[{**GROUP, "trait:CUSTOM_A": ["required"]}]), "forbidden"),
        (profile(groups=[{"resources:VCPU": "1"}]), "VCPU"),
        (profile(groups=[{"resources:CUSTOM_a": "1"}]), "CUSTOM_a"),
        (profile(groups=[{"resources:CUSTOM_" + "A" * 300: "1"}]), "CUSTOM_"),
        (profile(groups=[{"resources:FPGA": "0"}]), "1 to 64"),
        (profile(groups=[{"resources:FPGA": "-1"}]), "1 to 64"),
        (profile(groups=[{"resources:FPGA": 65}]), "1 to 64"),
        (profile(groups=[{"resources:FPGA": "٣"}]), "1 to 64"),
        (profile(groups=[{"resources:FPGA": True}]), "1 to 64"),
        (profile(groups=[{"resources:FPGA": 1.5}]), "1 to 64"),
        (profile(groups=[{"resources:FPGA": "1\n"}]), "1 to 64"),
        (profile(groups=[{"resources:FPGA": None}]), "1 to 64"),
        (profile(groups=[{"trait:CUSTOM_A": "required"}]), "requests no device"),
        (profile(groups=[{"resources:FPGA": 64}] * 5), "320"),
        (profile(groups=[{**GROUP, "accel:bitstream_id": 7}]), "accel:bitstream_id"),
        (profile(groups=[{**GROUP, "accel:bitstream_id": "x" * 256}]), "255"),
        (
            profile(groups=[{**GROUP, **{f"accel:{n}{'k' * 250}": "v" * 255 for n in range(120)}}]),
            "60000",
        ),
    ],
)
def test_what_a_profile_cannot_be_is_400_and_named(world: World, body: Any, named: str) -> None:
    answer = world.call("POST", PATH, body)
    assert answer.status_code == 400, answer.text
    assert named in fault(answer)
    assert world.call("GET", PATH).json == {"device_profiles": []}


def test_a_name_or_uuid_is_taken_once(world: World) -> None:
    taken = world.add_profile("p")
    answer = world.call("POST", PATH, profile())
    assert (answer.status_code, fault(answer)) == (409, "A device profile with the name p exists already.")
    answer = world.call("POST", PATH, profile(name="q", uuid=taken))
    assert answer.status_code == 409
    assert taken in fault(answer)


def test_profiles_are_found_by_several_names_and_paged(world: World) -> None:
    uuids = [world.add_profile(name) for name in ("a", "b", "c")]

    def listed(arguments: str) -> list[str]:
        return [one["name"] for one in world.call("GET", f"{PATH}{arguments}").json["device_profiles"]]

    assert listed("?name=a,c,nobody") == ["a", "c"]
    assert listed("?name=nobody") == []
    assert listed(f"?limit=1&marker={uuids[0]}") == ["b"]


def test_a_profile_is_shown_by_name_from_2_2_on(world: World) -> None:
    uuid = world.add_profile("p")
    assert world.call("GET", f"{PATH}/p", version="2.2").json["device_profile"]["uuid"] == uuid
    below = world.call("GET", f"{PATH}/p", version="2.1")
    assert below.status_code == 406
    assert "2.2" in fault(below)
    assert world.call("GET", f"{PATH}/{uuid}", version="2.0").status_code == 200


@pytest.mark.parametrize(
    ("key", "named"), [("nobody", "name=nobody"), pytest.param(new_uuid(), "uuid=", id="uuid"), ("%01", "name=")]
)
def test_a_profile_that_is_not_there_is_404(world: World, key: str, named: str) -> None:
    for method in ("GET", "DELETE"):
        answer = world.call(method, f"{PATH}/{key}")
        assert answer.status_code == 404
        assert named in fault(answer)


def test_a_profile_is_deleted_by_uuid_or_name(world: World) -> None:
    uuid = world.add_profile("a")
    world.add_profile("b")
    assert world.call("DELETE", f"{PATH}/{uuid}").status_code == 204
    assert world.call("DELETE", f"{PATH}/b").status_code == 204
    assert world.call("GET", PATH).json == {"device_profiles": []}


def test_several_profiles_are_deleted_together_or_not_at_all(world: World) -> None:
    for name in ("a", "b"):
        world.add_profile(name)
    assert world.call("DELETE", f"{PATH}?value=a,nobody").status_code == 404
    assert len(world.call("GET", PATH).json["device_profiles"]) == 2
    assert world.call("DELETE", f"{PATH}?value=a,b,a").status_code == 204
    assert world.call("GET", PATH).json == {"device_profiles": []}


@pytest.mark.parametrize("arguments", ["", "/", "?value=", "?value=,", "?name=a"])
def test_deleting_nothing_in_particular_is_400(world: World, arguments: str) -> None:
    world.add_profile("a")
    assert world.call("DELETE", f"{PATH}{arguments}").status_code == 400
    assert len(world.call("GET", PATH).json["device_profiles"]) == 1


def test_a_profile_in_use_stays_and_the_answer_says_why(world: World) -> None:
    world.add_profile("idle")
    world.add_profile("p")
    arq = world.add_arq("p")
    for path in (f"{PATH}/p", f"{PATH}?value=idle,p"):
        answer = world.call("DELETE", path)
        assert answer.status_code == 409
        assert "in use" in fault(answer)
    assert len(world.call("GET", PATH).json["device_profiles"]) == 2
    world.call("DELETE", f"/v2/accelerator_requests/{arq}")
    assert world.call("DELETE", f"{PATH}/p").status_code == 204
