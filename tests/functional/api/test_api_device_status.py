"""POST /v2/devices/{uuid}/disable and /enable: the accelerator API's maintenance."""

import pytest
from api_world import World, fault, new_uuid

from autoclave.rules.device_lifecycle import DeviceState
from autoclave.testing.placement import faults as effects
from autoclave.testing.placement.faults import Effect

pytestmark = pytest.mark.matrix

VERSIONS = [None, "2.0", "2.2", "2.3", "2.5", "latest"]


def say(world: World, word: str, uuid: str, body: object = None, *, version: str | None = "2.5") -> tuple[int, str]:
    answer = world.call("POST", f"/v2/devices/{uuid}/{word}", body, version=version)
    return answer.status_code, answer.text


def shown(world: World, uuid: str) -> tuple[str, str]:
    device = world.call("GET", f"/v2/devices/{uuid}").json
    return device["status"], device["device_state"]


@pytest.mark.parametrize("version", VERSIONS)
def test_a_device_is_disabled_and_enabled_in_every_version_as_clients_of_cyborg_know_it(
    world: World, version: str | None
) -> None:
    device = world.add_device()
    assert say(world, "disable", device.uuid, version=version) == (200, "")
    assert shown(world, device.uuid) == ("maintaining", "available")
    assert world.reserved(device) == 1
    assert say(world, "enable", device.uuid.upper(), version=version) == (200, "")
    assert shown(world, device.uuid) == ("enabled", "available")
    assert world.reserved(device) == 0


@pytest.mark.parametrize("state", list(DeviceState))
def test_what_a_device_is_doing_is_no_reason_to_refuse(world: World, state: DeviceState) -> None:
    device = world.add_device(device_state=state)
    told = "error" if state is DeviceState.SPENT else state.value  # Cyborg's clients know no spent device
    assert say(world, "disable", device.uuid) == (200, "")
    assert shown(world, device.uuid) == ("maintaining", told)
    assert say(world, "enable", device.uuid) == (200, "")
    assert shown(world, device.uuid) == ("enabled", told)
    assert world.reserved(device) == (0 if state is DeviceState.AVAILABLE else 1)


def test_a_reason_of_which_the_length_is_not_said_beforehand_is_kept_or_refused_like_any_other(world: World) -> None:
    device = world.add_device()
    headers = {"Content-Type": "application/json", "Transfer-Encoding": "chunked", "Content-Length": ""}

    def disable(body: bytes) -> int:
        path = f"/v2/devices/{device.uuid}/disable"
        return world.http.simulate_post(path, body=body, headers=headers).status_code

    assert disable(b'{"reason": ""}') == 400
    assert shown(world, device.uuid)[0] == "enabled"
    assert disable(b'{"reason": "new firmware"}') == 200
    history = world.call("GET", f"/autoclave/v1/devices/{device.uuid}/history").json["events"]
    assert "new firmware" in [event["reason"] for event in history]


@pytest.mark.parametrize("effect", [effects.refuse, effects.lose_answer, effects.answer(500)])
@pytest.mark.parametrize("word", ["disable", "enable"])
def test_the_answer_says_that_placement_has_not_heard_of_it_yet(world: World, word: str, effect: Effect) -> None:
    device = world.add_device(status="maintaining" if word == "enable" else "enabled")
    fault = world.placement.add(effect)
    answer = world.call("POST", f"/v2/devices/{device.uuid}/{word}")
    assert (answer.status_code, answer.json) == (202, {"placement_settled": False})
    assert shown(world, device.uuid)[0] == ("maintaining" if word == "disable" else "enabled")
    assert fault.struck
    world.placement.clear()
    assert say(world, word, device.uuid) == (200, "")
    assert world.reserved(device) == (1 if word == "disable" else 0)


@pytest.mark.parametrize("word", ["disable", "enable"])
@pytest.mark.parametrize("key", ["nobody", pytest.param(new_uuid(), id="uuid"), "%00", "x" * 2000])
def test_a_device_that_is_not_there_is_404_whatever_it_was_called(world: World, word: str, key: str) -> None:
    answer = world.call("POST", f"/v2/devices/{key}/{word}")
    assert answer.status_code == 404
    assert fault(answer).startswith("Device not found with uuid=")


def test_a_reason_is_optional_checked_and_kept(world: World) -> None:
    device = world.add_device()
    for body in ({"reason": 1}, {"why": "new firmware"}, []):
        assert say(world, "disable", device.uuid, body)[0] == 400
    assert world.call("POST", f"/v2/devices/{device.uuid}/disable?force=1").status_code == 400
    assert world.device(device.uuid) == device
    assert say(world, "disable", device.uuid, {"reason": "new firmware"}) == (200, "")
    *_, line = world.call("GET", f"/autoclave/v1/devices/{device.uuid}/history").json["events"]
    assert (line["event"], line["actor"], line["reason"]) == ("disable", "operator admin", "new firmware")
    assert line["request_id"].startswith("req-")


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE"])
def test_there_is_no_other_way_to_say_it(world: World, method: str) -> None:
    device = world.add_device()
    assert world.call(method, f"/v2/devices/{device.uuid}/disable").status_code == 405


def test_a_device_in_maintenance_waits_for_the_operator(world: World) -> None:
    device = world.add_device()
    say(world, "disable", device.uuid)
    waiting = world.call("GET", f"/autoclave/v1/devices/{device.uuid}").json["waiting_for"]
    assert "openstack accelerator device enable" in waiting
    say(world, "enable", device.uuid)
    assert world.call("GET", f"/autoclave/v1/devices/{device.uuid}").json["waiting_for"] is None
