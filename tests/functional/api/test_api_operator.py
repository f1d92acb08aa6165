"""/autoclave/v1: what an operator sees, and says."""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from api_world import HOST, World, fault, new_uuid

from autoclave.db import tables
from autoclave.db.columns import utcnow
from autoclave.rules.device_lifecycle import DeviceState
from autoclave.testing.placement import faults as effects

pytestmark = pytest.mark.matrix

PATH = "/autoclave/v1/devices"
OF_DRIVES = 'reclaim="erase",requested_by="profile"'


def shown(world: World, uuid: str) -> dict[str, Any]:
    return dict(world.call("GET", f"{PATH}/{uuid}").json)


def test_everything_that_is_known_of_a_device_is_shown(world: World) -> None:
    world.see_agent()
    device = world.add_device()
    world.add_profile()
    arq, instance = world.add_arq(), new_uuid()
    world.bind(arq, device, instance)
    provider = world.provider(device)
    found = shown(world, device.uuid)
    assert found["agent_last_seen"].endswith("+00:00")
    assert found["created_at"]
    assert found["updated_at"]
    unstable = ("agent_last_seen", "created_at", "updated_at", "state_reason")
    assert {name: value for name, value in found.items() if name not in unstable} == {
        "uuid": device.uuid,
        "hostname": HOST,
        "pci_address": "0000:01:00.0",
        "type": "NVME",
        "requested_by": "profile",
        "reclaim": "erase",
        "guarantee": "erased by sanitize_crypto",
        "vendor": "144d",
        "model": "a808",
        "serial": "S-0000:01:00.0",
        "drive_model": "Model",
        "found_serial": None,
        "found_drive_model": None,
        "layout": None,
        "found_layout": None,
        "device_state": "allocated",
        "status": "enabled",
        "held": False,
        "hold_reason": None,
        "host_maintained": False,
        "rewritten": False,
        "forgetting": False,
        "missing": False,
        "excluded_reason": None,
        "unreadable_reason": None,
        "release_pending": False,
        "cleanup_action": "sanitize_crypto",
        "progress": {"percent": None, "step": None, "stalled": False, "seconds_left": None},
        "burned_for": None,
        "burned_at": None,
        "burn_confirmed": False,
        "outdated": False,
        "rp_uuid": provider.rp_uuid,
        "rp_name": provider.name,
        "resource_class": "CUSTOM_NVME_144D_A808",
        "instance_uuid": instance,
        "arqs": [{"uuid": arq, "state": "Bound", "instance_uuid": instance}],
        "functions": [],
        "waiting_for": None,
    }
    assert world.call("GET", PATH).json == {"devices": [found]}


def test_progress_of_a_running_erase_is_shown(world: World) -> None:
    progress = {
        "progress_percent": 42.5,
        "progress_step": "sanitize",
        "progress_stalled": True,
        "progress_seconds_left": 61.5,
    }
    device = world.add_device(device_state=DeviceState.CLEANING, **progress)
    assert shown(world, device.uuid)["progress"] == {
        "percent": 42.5,
        "step": "sanitize",
        "stalled": True,
        "seconds_left": 61.5,
    }


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({}, []),
        ({"device_state": DeviceState.ALLOCATED}, []),
        ({"device_state": DeviceState.CLEANING}, []),
        ({"device_state": DeviceState.ERROR, "state_reason": "timed out"}, ["timed out", "clean it again"]),
        ({"device_state": DeviceState.ERROR, "found_serial": "S2"}, ["S2", "S-0000:01:00.0", "accept"]),
        ({"device_state": None}, ["migrations"]),
        ({"held": True, "hold_reason": "noisy fan"}, ["noisy fan", "release"]),
        ({"missing": True}, [HOST, "forget"]),
        ({"excluded_reason": "no crypto erase"}, ["no crypto erase"]),
        ({"unreadable_reason": "the kernel has given it up"}, ["cannot be looked at: the kernel has given it up"]),
        ({"status": "maintaining"}, ["maintenance"]),
        ({"missing": True, "held": True, "hold_reason": "broken"}, ["reports it now", "broken"]),
    ],
)
def test_what_waits_for_a_human_is_said_in_words(world: World, changes: dict[str, Any], named: list[str]) -> None:
    waiting = shown(world, world.add_device(**changes).uuid)["waiting_for"]
    assert (waiting is None) == (not named)
    assert all(word in waiting for word in named)


@pytest.mark.parametrize(
    ("state", "waits"),
    [
        (DeviceState.AVAILABLE, False),
        (DeviceState.ALLOCATED, True),
        (DeviceState.PENDING_CLEANING, True),
        (DeviceState.CLEANING, True),
        (DeviceState.ERROR, False),
    ],
)
def test_a_device_whose_agent_is_needed_and_dead_waits_for_it(world: World, state: DeviceState, waits: bool) -> None:
    world.see_agent()
    device = world.add_device(device_state=state)
    assert "agent" not in (shown(world, device.uuid)["waiting_for"] or "")

    with world.db.write() as tx:
        tx.execute(tables.agents.update().values(last_seen=utcnow() - timedelta(seconds=900)))
    waiting = shown(world, device.uuid)["waiting_for"] or ""
    assert bool(re.search(rf"The agent of {HOST} was last seen 90\ds? s ago: start it", waiting)) is waits


def test_a_device_that_is_with_a_guest_needs_no_agent(world: World) -> None:
    world.see_agent()
    device = world.add_device()
    world.add_profile()
    world.bind(world.add_arq(), device, new_uuid())
    with world.db.write() as tx:
        tx.execute(tables.agents.update().values(last_seen=utcnow() - timedelta(seconds=900)))
    assert shown(world, device.uuid)["waiting_for"] is None


def test_a_device_that_is_not_cleaned_waits_to_be_accepted(world: World) -> None:
    device = world.add_device(kind="GPU", device_state=DeviceState.ERROR, state_reason="unreadable")
    assert "accept" in shown(world, device.uuid)["waiting_for"]


def test_a_device_may_be_named_by_its_slot(world: World) -> None:
    device = world.add_device("0000:0a:00.0")
    for slot in ("0000:0a:00.0", "0000:0A:00.0"):
        assert shown(world, f"{HOST}/{slot}")["uuid"] == device.uuid
        assert world.call("GET", f"{PATH}/{HOST}/{slot}/history").status_code == 200
        assert world.call("POST", f"{PATH}/{HOST}/{slot}/hold", {"reason": "x"}).status_code == 200


@pytest.mark.parametrize(
    "key", ["nobody", pytest.param(new_uuid(), id="uuid"), f"{HOST}/0000:02:00.0", "elsewhere/0000:01:00.0"]
)
def test_a_device_that_is_not_there_is_404(world: World, key: str) -> None:
    world.add_device()
    for path in ("", "/history"):
        assert world.call("GET", f"{PATH}/{key}{path}").status_code == 404
    assert world.call("POST", f"{PATH}/{key}/hold", {"reason": "x"}).status_code == 404


def test_devices_are_filtered_and_paged(world: World) -> None:
    first = world.add_device("0000:01:00.0")
    second = world.add_device("0000:02:00.0", kind="GPU", device_state=DeviceState.ERROR)

    def listed(arguments: str) -> list[str]:
        return [device["uuid"] for device in world.call("GET", f"{PATH}{arguments}").json["devices"]]

    assert listed(f"?hostname={HOST}&type=NVME") == [first.uuid]
    assert listed("?device_state=error") == [second.uuid]
    assert listed(f"?limit=5&marker={first.uuid}") == [second.uuid]


def test_the_history_tells_who_did_what_and_why_with_the_evidence(world: World) -> None:
    device = world.add_device()
    world.call("POST", f"{PATH}/{device.uuid}/hold", {"reason": "noisy fan"}, token="ann:ops")
    with world.db.write() as tx:
        tx.exec_driver_sql("UPDATE device_events SET evidence = ?", (json.dumps({"log": [1, 2]}),))
    discovered, held = world.call("GET", f"{PATH}/{device.uuid}/history").json["events"]
    assert (discovered["event"], discovered["from_state"], discovered["to_state"]) == ("discovered", None, "available")
    assert (held["event"], held["actor"], held["reason"]) == ("hold", "operator ann", "noisy fan")
    assert held["request_id"].startswith("req-")
    assert held["evidence"] == {"log": [1, 2]}


# What an operator says


def test_a_held_device_is_offered_no_more_until_it_is_released(world: World) -> None:
    device = world.add_device()
    answer = world.call("POST", f"{PATH}/{device.uuid}/hold", {"reason": "noisy fan"})
    assert (answer.status_code, answer.json) == (200, {"placement_settled": True})
    assert world.reserved(device) == 1
    assert shown(world, device.uuid)["hold_reason"] == "noisy fan"
    answer = world.call("POST", f"{PATH}/{device.uuid}/release", {"reason": "fan replaced"})
    assert (answer.status_code, answer.json) == (200, {"placement_settled": True})
    assert world.reserved(device) == 0


def test_a_release_needs_no_reason_and_releases_what_was_reserved_by_hand(world: World) -> None:
    device = world.add_device()
    provider = world.provider(device)
    present = world.ports.placement.get_inventories(provider.rp_uuid)
    record = present.records[provider.resource_class]
    by_hand = type(record)(**{**record.__dict__, "reserved": 1})
    world.ports.placement.put_inventories(provider.rp_uuid, present.generation, {provider.resource_class: by_hand})
    assert world.call("POST", f"{PATH}/{device.uuid}/release", {}).status_code == 200
    assert world.reserved(device) == 0


@pytest.mark.parametrize(
    "changes", [{}, {"device_state": DeviceState.ERROR}, {"device_state": DeviceState.ALLOCATED}, {"missing": True}]
)
def test_a_device_that_nobody_holds_cannot_be_released_and_its_history_says_nothing_of_it(
    world: World, changes: dict[str, Any]
) -> None:
    device = world.add_device(**changes)
    answer = world.call("POST", f"{PATH}/{device.uuid}/release", {})
    assert answer.status_code == 409
    assert "is neither held nor spent" in fault(answer)
    assert world.device(device.uuid) == device
    assert len(world.call("GET", f"{PATH}/{device.uuid}/history").json["events"]) == 1


def test_a_release_is_taken_on_trust_while_placement_cannot_say_who_holds(world: World) -> None:
    device = world.add_device()
    world.placement.add(effects.refuse)
    assert world.call("POST", f"{PATH}/{device.uuid}/release", {}).status_code == 202
    assert world.device(device.uuid).release_pending


def test_a_placement_that_is_away_is_told_later(world: World) -> None:
    device = world.add_device()
    world.placement.add(effects.refuse)
    answer = world.call("POST", f"{PATH}/{device.uuid}/hold", {"reason": "x"})
    assert (answer.status_code, answer.json) == (202, {"placement_settled": False})
    assert world.device(device.uuid).held


@pytest.mark.parametrize(
    "body",
    [None, {}, [], {"reason": ""}, {"reason": " "}, {"reason": None}, {"reason": "x" * 1001}, {"reason": "x", "y": 1}],
)
def test_a_hold_needs_a_reason(world: World, body: Any) -> None:
    device = world.add_device()
    assert world.call("POST", f"{PATH}/{device.uuid}/hold", body).status_code == 400
    assert not world.device(device.uuid).held


def test_another_drive_is_accepted_and_must_still_be_cleaned(world: World) -> None:
    device = world.add_device(device_state=DeviceState.ERROR, found_serial="S2", found_drive_model="Model 2")
    assert world.call("POST", f"{PATH}/{device.uuid}/accept", {"reason": "replaced"}).status_code == 200
    found = shown(world, device.uuid)
    assert (found["serial"], found["drive_model"], found["device_state"]) == ("S2", "Model 2", "error")


def test_layouts_of_a_drive_are_shown_in_words(world: World) -> None:
    """A row that was written by hand shows none instead of failing."""
    layout = '{"namespaces": [{"blocks": 1024, "block_bytes": 4096, "metadata_bytes": 64, "lba_format": 7}]}'
    device = world.add_device(layout=layout, found_layout="by hand")
    found = shown(world, device.uuid)
    assert found["layout"] == "namespace 1: 1024 blocks in LBA format 7 (4096+64)"
    assert found["found_layout"] is None


def test_found_layout_is_accepted_and_the_drive_must_still_be_cleaned(world: World) -> None:
    layout = '{"namespaces": [{"blocks": 1024, "block_bytes": 4096}]}'
    device = world.add_device(device_state=DeviceState.ERROR, layout="{}", found_layout=layout)
    assert "device accept" in shown(world, device.uuid)["waiting_for"]
    assert world.call("POST", f"{PATH}/{device.uuid}/accept", {"reason": "4 KiB blocks"}).status_code == 200
    found = shown(world, device.uuid)
    assert found["layout"].startswith("namespace 1: 1024 blocks")
    assert (found["found_layout"], found["device_state"], world.reserved(device)) == (None, "error", 1)
    assert "clean it" in found["waiting_for"]


def test_an_accepted_device_that_needs_no_cleaning_is_offered(world: World) -> None:
    device = world.add_device(kind="GPU", device_state=DeviceState.ERROR)
    answer = world.call("POST", f"{PATH}/{device.uuid}/accept", {})
    assert (answer.status_code, answer.json) == (200, {"placement_settled": True})
    assert shown(world, device.uuid)["device_state"] == "available"
    assert world.reserved(device) == 0


def test_an_acceptance_that_placement_has_not_heard_of_is_202(world: World) -> None:
    device = world.add_device(kind="GPU", device_state=DeviceState.ERROR)
    world.placement.add(effects.refuse)
    assert world.call("POST", f"{PATH}/{device.uuid}/accept", {}).status_code == 202
    assert shown(world, device.uuid)["release_pending"]


def test_there_must_be_something_to_accept(world: World) -> None:
    device = world.add_device()
    answer = world.call("POST", f"{PATH}/{device.uuid}/accept", {})
    assert answer.status_code == 409
    assert "available" in fault(answer)


def test_a_missing_device_is_forgotten_but_not_its_history(world: World) -> None:
    device = world.add_device(missing=True)
    answer = world.call("POST", f"{PATH}/{device.uuid}/forget", {"reason": "sold"})
    assert (answer.status_code, answer.json) == (200, {"placement_settled": True})
    assert world.call("GET", f"{PATH}/{device.uuid}").status_code == 404
    events = world.call("GET", f"{PATH}/{device.uuid}/history").json["events"]
    assert events[-1]["event"] == "forget"


def test_what_is_still_there_is_not_forgotten(world: World) -> None:
    device = world.add_device()
    assert world.call("POST", f"{PATH}/{device.uuid}/forget", {}).status_code == 409
    assert world.device(device.uuid) == device


@pytest.mark.parametrize(
    ("effect", "code"),
    [(effects.refuse, 503), (effects.answer(409, "placement.resource_provider.cannot_delete"), 409)],
)
def test_a_provider_that_stays_keeps_the_device(world: World, effect: Any, code: int) -> None:
    device = world.add_device(missing=True)
    world.placement.add(effect, method="DELETE")
    answer = world.call("POST", f"{PATH}/{device.uuid}/forget", {})
    assert answer.status_code == code
    assert fault(answer)
    assert world.device(device.uuid).missing


# /metrics, /healthcheck and what is mounted


def test_metrics_count_the_fleet_as_the_database_has_it_now(world: World) -> None:
    world.see_agent()
    world.add_device("0000:01:00.0")
    world.add_device("0000:02:00.0", device_state=DeviceState.ERROR, held=True, hold_reason="x")
    world.add_device("0000:03:00.0", device_state=None, missing=True, status="maintaining")
    answer = world.call("GET", "/metrics")
    assert answer.headers["Content-Type"].startswith("text/plain")
    lines = answer.text.splitlines()
    for state in ("available", "error", "unknown"):
        assert f'autoclave_devices{{host="{HOST}",{OF_DRIVES},state="{state}",type="NVME"}} 1.0' in lines
    for condition, count in {
        "held": 1,
        "missing": 1,
        "excluded": 0,
        "unreadable": 0,
        "maintaining": 1,
        "stalled": 0,
    }.items():
        assert f'autoclave_devices_condition{{condition="{condition}",host="{HOST}"}} {count}.0' in lines
    assert any(line.startswith(f'autoclave_agent_last_seen_seconds{{host="{HOST}"}}') for line in lines)
    assert "autoclave_nova_events_owed 0.0" in lines
    world.add_device("0000:04:00.0")
    counted = f'autoclave_devices{{host="{HOST}",{OF_DRIVES},state="available",type="NVME"}} 2.0'
    assert counted in world.call("GET", "/metrics").text


def test_a_database_without_a_schema_is_not_healthy(world: World) -> None:
    assert world.call("GET", "/healthcheck").json["status"] == "ok"
    with world.db.write() as tx:
        tx.exec_driver_sql("DELETE FROM alembic_version")
    answer = world.call("GET", "/healthcheck")
    assert answer.status_code == 503
    assert "db sync" in answer.json["database"]


def test_what_is_mounted_sees_its_own_root_and_the_callers_own_headers(tmp_path: Path) -> None:
    seen: list[tuple[str, str, str]] = []

    def guest(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        seen.append((environ["SCRIPT_NAME"], environ["PATH_INFO"], environ.get("HTTP_X_AUTH_TOKEN", "")))
        start_response("403 Forbidden", [("Content-Type", "text/plain"), ("Content-Length", "2")])
        return [b"no"]

    world = World(tmp_path, mounts={"/placement": guest})
    for path in ("/placement", "/placement/", "/placement/resource_providers"):
        answer = world.call("GET", path, token="t")
        assert (answer.status_code, answer.text) == (403, "no")
        assert answer.headers["x-openstack-request-id"]
    assert seen == [("/placement", rest, "t") for rest in ("", "/", "/resource_providers")]
    assert world.call("GET", "/placements").status_code == 404
    world.close()
