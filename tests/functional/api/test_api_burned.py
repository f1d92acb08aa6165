"""/autoclave/v1/burned, and the command over it: what is burned, and who may be told that it is clean."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from api_world import HOST, World, fault, new_uuid

import burnedrows
from autoclave.cli.main import main
from autoclave.exceptions import StateConflict
from autoclave.lifecycle.pci_inventory import withdraw
from autoclave.lifecycle.reserve import Settled
from autoclave.lifecycle.transitions import swap
from autoclave.placement.records import Inventory
from autoclave.rules.device_lifecycle import Event
from autoclave.testing.placement.faults import refuse
from burnedrows import CLASS, OPERATOR, OneTimeUse

PATH = "/autoclave/v1/burned"
GPU = "0000:81:00.0"


@pytest.fixture
def devices(world: World) -> OneTimeUse:
    return OneTimeUse(world.db, world.ports.placement, HOST)


def listed(world: World, query: str = "") -> list[dict[str, Any]]:
    answer = world.call("GET", f"{PATH}{query}")
    assert answer.status_code == 200
    return list(answer.json["burned"])


def test_everything_that_is_known_of_a_burned_device_is_shown(world: World, devices: OneTimeUse) -> None:
    rp_uuid = devices.add()
    instance = devices.use_up(rp_uuid)
    found = world.call("GET", f"{PATH}/{rp_uuid}").json
    assert found.pop("burned_at").endswith("+00:00")
    assert found == {
        "rp_uuid": rp_uuid,
        "hostname": HOST,
        "pci_address": GPU,
        "serial": None,
        "resource_class": CLASS,
        "one_time_use": True,
        "burned_for": instance,
        "in_use": False,
        "instance_uuid": None,
        "confirmed": True,
        "release_pending": False,
        "missing": False,
        "offered": False,
        "waiting_for": "Clean it, and release it.",
    }
    with world.db.write() as tx:
        burnedrows.describe(tx, devices.row(rp_uuid), {"serial": "10de:25b6.0 00e04c0000123456"})
    assert world.call("GET", f"{PATH}/{rp_uuid}").json["serial"] == "00e04c0000123456"
    found["serial"] = "00e04c0000123456"
    by_place = world.call("GET", f"{PATH}/{HOST}/{GPU.upper()}").json
    assert [by_place] == listed(world)


def test_what_is_clean_or_held_by_hand_is_not_listed(world: World, devices: OneTimeUse) -> None:
    clean, held = devices.add(), devices.add("0000:82:00.0")
    devices.hold(held)
    assert devices.settle(held) is Settled.OPERATORS_HOLD
    assert listed(world) == []
    for rp_uuid in (clean, held):
        answer = world.call("GET", f"{PATH}/{rp_uuid}")
        assert (answer.status_code, "is not burned" in fault(answer)) == (404, True)


def test_the_list_is_of_all_hosts_or_of_one_exactly(world: World, devices: OneTimeUse) -> None:
    devices.burned()
    other = OneTimeUse(world.db, world.ports.placement, "rack_7")
    theirs = other.burned()
    assert [row["hostname"] for row in listed(world)] == [HOST, "rack_7"]
    assert [row["rp_uuid"] for row in listed(world, "?hostname=rack_7")] == [theirs]
    assert listed(world, "?hostname=rack") == []
    refused = world.call("GET", f"{PATH}?host=rack_7")
    assert (refused.status_code, fault(refused)) == (400, 'Unknown argument: "host". Possible: hostname.')


def test_a_device_in_use_is_listed_with_who_has_it_and_is_not_released(world: World, devices: OneTimeUse) -> None:
    rp_uuid = devices.add()
    instance = devices.use(rp_uuid)
    [row] = listed(world)
    assert (row["in_use"], row["instance_uuid"], row["waiting_for"]) == (True, instance, None)
    refused = world.call("POST", f"{PATH}/{rp_uuid}/release")
    assert refused.status_code == 409
    assert fault(refused) == f"{GPU} of host {HOST} is in use by instance {instance}: delete that first."
    assert (devices.inventory(rp_uuid).reserved, devices.row(rp_uuid).device.release_pending) == (1, False)


def test_what_a_device_waits_for_is_told(world: World, devices: OneTimeUse) -> None:
    rp_uuid = devices.add()
    devices.delete(devices.use(rp_uuid))
    assert listed(world)[0]["waiting_for"] == "Its agent has to see it idle. Then clean it, and release it."
    with world.db.write() as tx:
        burnedrows.describe(tx, devices.row(rp_uuid), {"missing": True})
    assert listed(world)[0]["missing"]
    assert listed(world)[0]["waiting_for"].startswith(f"{HOST}, or [pci] device_spec there, has it no more")


def lower(world: World, rp_uuid: str) -> None:
    """An operator writes reserved=0 in Placement."""
    present = world.ports.placement.get_inventories(rp_uuid)
    world.ports.placement.put_inventories(rp_uuid, present.generation, {CLASS: Inventory(1, 0, 1, 1, 1, 1.0)})


def test_a_release_by_hand_is_told_before_the_agent_takes_note_of_it(world: World, devices: OneTimeUse) -> None:
    rp_uuid, untouched = devices.burned(), devices.burned("0000:82:00.0")
    lower(world, rp_uuid)
    rows = {row["rp_uuid"]: row for row in listed(world)}
    assert [rows[each]["offered"] for each in (rp_uuid, untouched)] == [True, False]
    assert rows[rp_uuid]["waiting_for"] == (
        "It was released in Placement, and is offered: its agent takes note in its next period."
    )
    assert rows[untouched]["waiting_for"] == "Clean it, and release it."
    assert world.call("GET", f"{PATH}/{rp_uuid}").json == rows[rp_uuid]
    assert devices.settle(rp_uuid) is Settled.LOWERED
    assert [row["rp_uuid"] for row in listed(world)] == [untouched]


def test_what_a_hand_has_lowered_too_early_is_told_as_no_release(world: World, devices: OneTimeUse) -> None:
    rp_uuid = devices.add()
    devices.delete(devices.use(rp_uuid))
    lower(world, rp_uuid)
    [row] = listed(world)
    assert row["offered"]
    assert row["waiting_for"] == (
        "Placement offers it by somebody's hand: its agent reserves it again, and has to see it idle."
    )
    assert devices.settle(rp_uuid) is Settled.RAISED
    assert not listed(world)[0]["offered"]


def test_what_placement_says_of_the_list_costs_a_request_for_each_class(world: World, devices: OneTimeUse) -> None:
    for number in range(5):
        devices.burned(f"0000:9{number}:00.0")
    devices.burned("0000:a0:00.0", "CUSTOM_OTHER")
    world.placement.clear()
    assert len(listed(world)) == 6
    assert len(world.placement.calls) == 2


def test_without_placement_the_list_says_that_it_does_not_know(world: World, devices: OneTimeUse) -> None:
    devices.burned()
    world.placement.add(refuse)
    [row] = listed(world)
    assert (row["offered"], row["waiting_for"]) == (None, "Clean it, and release it.")


@pytest.mark.parametrize("path", ["{uuid}", f"{HOST}/{GPU}"])
def test_a_released_device_is_offered_again_and_is_not_burned_any_more(
    world: World, devices: OneTimeUse, path: str
) -> None:
    rp_uuid = devices.burned()
    released = world.call("POST", f"{PATH}/{path.format(uuid=rp_uuid)}/release")
    assert (released.status_code, released.json) == (200, {"placement_settled": True})
    assert devices.offered(rp_uuid)
    assert listed(world) == []
    again = world.call("POST", f"{PATH}/{rp_uuid}/release")
    assert (again.status_code, fault(again)) == (
        409,
        f"{GPU} of host {HOST} is not burned: there is nothing to release.",
    )


def test_a_hold_is_not_ended_by_a_release(world: World, devices: OneTimeUse) -> None:
    rp_uuid = devices.add()
    devices.hold(rp_uuid)
    assert world.call("POST", f"{PATH}/{rp_uuid}/release").status_code == 409
    assert not devices.offered(rp_uuid)


def test_a_release_of_what_another_instance_has_used_meanwhile_is_refused(world: World, devices: OneTimeUse) -> None:
    rp_uuid = devices.add()
    first = devices.use_up(rp_uuid)
    body = {"burned_for": first.upper()}
    assert world.call("POST", f"{PATH}/{rp_uuid}/release", body).status_code == 200
    second = devices.use_up(rp_uuid)
    refused = world.call("POST", f"{PATH}/{rp_uuid}/release", body)
    assert (refused.status_code, second in fault(refused)) == (409, True)
    assert not devices.offered(rp_uuid)


def test_a_placement_that_goes_away_is_told_later_and_the_word_stands(world: World, devices: OneTimeUse) -> None:
    rp_uuid = devices.burned()
    world.placement.add(refuse, method="PUT")
    released = world.call("POST", f"{PATH}/{rp_uuid}/release")
    assert (released.status_code, released.json) == (202, {"placement_settled": False})
    assert not devices.offered(rp_uuid)
    assert listed(world)[0]["waiting_for"] == "It was released: Placement has to be told."
    world.placement.clear()
    assert devices.settle(rp_uuid) is Settled.LOWERED
    assert devices.offered(rp_uuid)


def test_a_placement_that_cannot_say_whether_it_is_in_use_takes_no_word(world: World, devices: OneTimeUse) -> None:
    rp_uuid = devices.burned()
    world.placement.add(refuse)
    assert world.call("POST", f"{PATH}/{rp_uuid}/release").status_code == 503
    assert not devices.row(rp_uuid).device.release_pending


@pytest.mark.parametrize(
    ("path", "status", "said"),
    [
        (new_uuid(), 404, "No provider of PCI functions for instances is"),
        ("nonsense", 404, "No provider of PCI functions for instances is nonsense. Name it by its uuid, or as"),
        (f"{HOST}/0000:99:00.0", 404, f"is {HOST}/0000:99:00.0."),
        (f"{HOST}/gpu", 400, "'gpu' is not a full PCI address"),
    ],
    ids=["uuid", "no uuid", "place", "no address"],
)
def test_a_path_that_names_nothing_is_told(world: World, path: str, status: int, said: str) -> None:
    for answer in (world.call("GET", f"{PATH}/{path}"), world.call("POST", f"{PATH}/{path}/release")):
        assert answer.status_code == status
        assert said in fault(answer)


@pytest.mark.parametrize("body", [{"burned_for": "x"}, {"reason": " "}, {"because": "clean"}, [], "now"], ids=repr)
def test_a_body_that_is_not_understood_releases_nothing(world: World, devices: OneTimeUse, body: Any) -> None:
    rp_uuid = devices.burned()
    assert world.call("POST", f"{PATH}/{rp_uuid}/release", body).status_code == 400
    assert devices.row(rp_uuid).burned
    assert not devices.row(rp_uuid).device.release_pending


# The history


def history(world: World, device: str) -> list[tuple[str, str, str | None, str]]:
    answer = world.call("GET", f"{PATH}/{device}/history")
    assert answer.status_code == 200
    return [(each["event"], each["actor"], each["from_state"], each["to_state"]) for each in answer.json["events"]]


def test_the_history_tells_who_has_released_a_device_and_by_which_request(world: World, devices: OneTimeUse) -> None:
    rp_uuid = devices.add()
    instance = devices.use_up(rp_uuid)
    released = world.call("POST", f"{PATH}/{rp_uuid}/release", {"reason": "wiped by hand"})
    assert history(world, rp_uuid) == [
        ("claim", f"agent {HOST}", "available", "allocated"),
        ("spend", f"agent {HOST}", "allocated", "spent"),
        ("confirm", "placement", "spent", "spent"),
        ("release", "operator admin", "spent", "available"),
        ("offer", "placement", "available", "available"),
    ]
    events = world.call("GET", f"{PATH}/{HOST}/{GPU}/history").json["events"]
    assert f"instance {instance}" in events[0]["reason"]
    where = {"hostname": HOST, "pci_address": GPU}
    assert where.items() <= events[0]["evidence"].items()
    assert events[3]["request_id"] == released.headers["X-Openstack-Request-Id"]
    assert (events[3]["reason"], events[3]["evidence"]) == ("wiped by hand", where)


def test_a_release_that_is_asked_for_twice_is_the_first_ones(world: World, devices: OneTimeUse) -> None:
    rp_uuid = devices.burned()
    world.placement.add(refuse, method="PUT")
    for _ in range(2):
        assert world.call("POST", f"{PATH}/{rp_uuid}/release").status_code == 202
    assert [event for event, *_ in history(world, rp_uuid)] == ["claim", "spend", "confirm", "release"]


def test_a_refused_release_is_not_in_the_history(world: World, devices: OneTimeUse) -> None:
    rp_uuid = devices.add()
    devices.use(rp_uuid)
    assert world.call("POST", f"{PATH}/{rp_uuid}/release").status_code == 409
    assert [event for event, *_ in history(world, rp_uuid)] == ["claim"]


def test_a_release_that_was_seen_in_placement_is_told_as_that(world: World, devices: OneTimeUse) -> None:
    rp_uuid = devices.burned()
    lower(world, rp_uuid)
    assert devices.settle(rp_uuid) is Settled.LOWERED
    assert history(world, rp_uuid)[3:] == [
        ("release_seen", "placement", "spent", "available"),
        ("offer", "placement", "available", "available"),
    ]


def test_a_release_by_hand_is_told_also_if_an_instance_was_faster_than_the_agent(
    world: World, devices: OneTimeUse
) -> None:
    rp_uuid = devices.burned()
    lower(world, rp_uuid)
    assert (
        devices.settle(rp_uuid) is Settled.LOWERED
    )  # as a claim does before it gives a device whose burn is confirmed
    devices.use(rp_uuid)
    assert [event for event, *_ in history(world, rp_uuid)] == [
        "claim",
        "spend",
        "confirm",
        "release_seen",
        "offer",
        "claim",
    ]


def test_the_history_of_a_provider_that_is_gone_stays_under_its_uuid(world: World, devices: OneTimeUse) -> None:
    rp_uuid = devices.burned()
    assert world.call("POST", f"{PATH}/{rp_uuid}/release").status_code == 200
    before = history(world, rp_uuid)
    with world.db.write() as tx:
        assert withdraw(tx, devices.row(rp_uuid))
    assert history(world, rp_uuid) == before
    assert world.call("GET", f"{PATH}/{HOST}/{GPU}/history").status_code == 404


def test_a_device_that_was_never_burned_has_an_empty_history(world: World, devices: OneTimeUse) -> None:
    assert history(world, devices.add()) == []
    assert world.call("GET", f"{PATH}/{new_uuid()}/history").status_code == 404


def test_what_loses_against_somebody_faster_is_not_in_the_history(world: World, devices: OneTimeUse) -> None:
    rp_uuid = devices.burned()
    before = devices.row(rp_uuid)
    with world.db.write() as tx:
        swap(tx, before.device, Event.RELEASE, OPERATOR)
        with pytest.raises(StateConflict):
            swap(tx, before.device, Event.RELEASE, OPERATOR)
    assert [event for event, *_ in history(world, rp_uuid)] == ["claim", "spend", "confirm", "release"]


# The command


def ask(capsys: pytest.CaptureFixture[str], url: str, *words: str) -> Any:
    assert main(["burned", *words, "--url", url, "-f", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_lists_shows_and_releases(
    world: World, devices: OneTimeUse, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rp_uuid = devices.add()
    instance = devices.use_up(rp_uuid)
    [row] = ask(capsys, url, "list", "--long", "--host", HOST)
    assert row == ask(capsys, url, "show", f"{HOST}/{GPU}")
    assert (row["rp_uuid"], row["burned_for"]) == (rp_uuid, instance)
    assert ask(capsys, url, "list", "--host", "another") == []
    assert main(["burned", "list", "--url", url]) == 0
    table = capsys.readouterr().out
    assert max(map(len, table.splitlines())) <= 130
    assert re.search(r"\| \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC ", table), "moments name their time zone"
    assert main(["burned", "release", rp_uuid, "--burned-for", instance, "--url", url]) == 0
    assert capsys.readouterr().out == f"{rp_uuid}: released and offered again\n"
    assert devices.offered(rp_uuid)


def test_the_command_shows_the_history(
    world: World, devices: OneTimeUse, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    devices.burned()
    assert main(["burned", "release", f"{HOST}/{GPU}", "--url", url]) == 0
    capsys.readouterr()
    events = ask(capsys, url, "history", f"{HOST}/{GPU}")
    assert [event["to_state"] for event in events] == ["allocated", "spent", "spent", "available", "available"]
    assert events[3]["actor"] == "operator admin"
    assert main(["burned", "history", f"{HOST}/{GPU}", "--url", url]) == 0
    assert max(map(len, capsys.readouterr().out.splitlines())) <= 160


def test_the_command_tells_a_refusal_in_one_line(world: World, devices: OneTimeUse, url: str) -> None:
    devices.add()
    command = [str(Path(sys.executable).with_name("autoclave")), "burned", "release", f"{HOST}/{GPU}", "--url", url]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr == f"ERROR autoclave: 409: {GPU} of host {HOST} is not burned: there is nothing to release.\n"
