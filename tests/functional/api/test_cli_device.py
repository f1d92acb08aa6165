"""``autoclave device`` and openstacksdk's Device, over a real socket."""

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import openstack
import pytest
from api_world import ERROR, World, new_uuid
from openstack import exceptions

from autoclave.cli.main import main
from autoclave.cli.osc.device import Device
from autoclave.db import history
from autoclave.exceptions import PlacementNotFound
from nova_double import served


def ask(capsys: pytest.CaptureFixture[str], url: str, *words: str) -> Any:
    assert main(["device", *words, "--url", url, "-f", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(*words: str) -> str:
    """What the command, run as an operator runs it, says on stderr when it fails."""
    command = Path(sys.executable).with_name("autoclave")
    ended = subprocess.run([command, "device", *words], capture_output=True, text=True, check=False)
    assert (ended.returncode != 0, ended.stdout) == (True, "")
    return ended.stderr


def test_a_device_is_listed_and_shown_by_its_place(world: World, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    device = world.add_device()
    assert [row["uuid"] for row in ask(capsys, url, "list")] == [device.uuid]
    assert ask(capsys, url, "show", "compute-1/0000:01:00.0")["uuid"] == device.uuid


def test_a_hold_reserves_the_device_until_its_release_and_its_reason_stays_in_the_history(
    world: World, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    device = world.add_device()
    assert main(["device", "hold", device.uuid, "--reason", "bad fan", "--url", url]) == 0
    assert (world.device(device.uuid).held, world.reserved(device)) == (True, 1)
    assert main(["device", "release", device.uuid, "--url", url]) == 0
    assert (world.device(device.uuid).held, world.reserved(device)) == (False, 0)
    capsys.readouterr()
    assert "bad fan" in [event["reason"] for event in ask(capsys, url, "history", device.uuid)]


def test_a_name_that_a_url_would_take_for_more_is_told_as_it_was_typed(
    world: World, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["device", "show", "a?b#c d", "--url", url]) == 1
    assert "a?b#c d" in capsys.readouterr().err


def test_a_hold_without_a_reason_is_not_sent(world: World, url: str) -> None:
    device = world.add_device()
    assert "--reason" in refused("hold", device.uuid, "--url", url)
    assert not world.device(device.uuid).held


def test_another_drive_is_accepted_for_the_slots_and_waits_to_be_cleaned(
    world: World, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    device = world.add_device(device_state=ERROR, found_serial="S-NEW", found_drive_model="New")
    said = ["device", "accept", device.uuid, "--reason", "swapped by the vendor", "--url", url]
    assert main(said) == 0
    assert f"{device.uuid}: accept recorded" in capsys.readouterr().out
    accepted = world.device(device.uuid)
    assert (accepted.serial, accepted.drive_model, accepted.found_serial) == ("S-NEW", "New", None)
    assert (accepted.device_state, world.reserved(device)) == (ERROR, 1)
    assert "clean it" in (accepted.state_reason or "")
    assert "swapped by the vendor" in [event["reason"] for event in ask(capsys, url, "history", device.uuid)]


def test_without_another_drive_there_is_nothing_to_accept_and_the_refusal_says_so(world: World, url: str) -> None:
    device = world.add_device(device_state=ERROR)
    [line] = refused("accept", device.uuid, "--url", url).splitlines()
    assert "nothing to accept" in line
    assert world.device(device.uuid) == device


def test_a_missing_device_is_forgotten_with_its_provider(
    world: World, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    gone, kept = world.add_device("0000:01:00.0", missing=True), world.add_device("0000:02:00.0")
    provider = world.provider(gone).rp_uuid
    assert main(["device", "forget", "compute-1/0000:01:00.0", "--url", url]) == 0
    capsys.readouterr()
    assert [row["uuid"] for row in ask(capsys, url, "list")] == [kept.uuid]
    with pytest.raises(PlacementNotFound):
        world.ports.placement.get_provider(provider)


def test_a_device_that_is_there_is_not_forgotten_and_the_refusal_says_why(world: World, url: str) -> None:
    device = world.add_device()
    [line] = refused("forget", device.uuid, "--url", url).splitlines()
    assert "only a missing device can be forgotten" in line
    assert world.device(device.uuid) == device


def test_a_device_in_error_is_cleaned_again_by_its_place_and_its_history_says_who_asked_and_why(
    world: World, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    device = world.add_device(device_state=ERROR)
    world.see_agent()
    said = ["device", "clean", "compute-1/0000:01:00.0", "--reason", "firmware updated", "--url", url]
    assert main(said) == 0
    assert "compute-1/0000:01:00.0" in capsys.readouterr().out
    assert [asked.uuid for asked in world.agent.asked] == [device.uuid]
    [asked] = [event for event in ask(capsys, url, "history", device.uuid) if event["event"] == "ask_to_clean"]
    assert (asked["actor"], asked["reason"], asked["to_state"]) == ("operator admin", "firmware updated", "error")


def test_a_device_that_is_clean_is_not_cleaned_again_and_the_refusal_says_so(world: World, url: str) -> None:
    device = world.add_device()
    [line] = refused("clean", device.uuid, "--url", url).splitlines()
    assert "clean already" in line
    assert world.agent.asked == []


def test_a_list_of_devices_says_nothing_where_nothing_waits(
    world: World, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    world.add_device()
    assert main(["device", "list", "--url", url]) == 0
    assert "None" not in capsys.readouterr().out
    assert ask(capsys, url, "list")[0]["waiting_for"] is None


def test_progress_is_shown_in_words(world: World, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    progress = {"progress_percent": 43.4, "progress_step": "sanitize, crypto erase", "progress_stalled": True}
    device = world.add_device(**progress)
    assert main(["device", "show", device.uuid, "--url", url]) == 0
    assert "43 % sanitize, crypto erase (stalled)" in capsys.readouterr().out


def test_a_running_erase_says_how_long_it_still_takes(
    world: World, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    device = world.add_device(progress_percent=43.4, progress_step="shred", progress_seconds_left=700.0)
    assert main(["device", "show", device.uuid, "--url", url]) == 0
    assert "43 % shred, 12 min left" in capsys.readouterr().out


def test_a_history_fits_on_a_terminal_and_is_whole_for_programs(
    world: World, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    device = world.add_device()
    evidence = {"action": "sanitize_crypto", "verified": "the log page shows it", "log_after": {"words": "long " * 50}}
    with world.db.write() as tx:
        history.append(
            tx,
            device_uuid=device.uuid,
            serial=device.serial,
            from_state="cleaning",
            to_state="available",
            event="cleaned",
            actor="agent compute-1",
            request_id="req-1",
            reason="the erase was proved, in many words that nobody wants to see on one line of a table",
            evidence=evidence,
        )
    assert main(["device", "history", device.uuid, "--url", url]) == 0
    table = capsys.readouterr().out
    assert max(map(len, table.splitlines())) <= 140
    assert "sanitize_crypto" in table
    cleaned = ask(capsys, url, "history", device.uuid, "--long")[-1]
    assert (cleaned["from_state"], cleaned["evidence"]) == ("cleaning", evidence)


def test_a_refusal_is_one_line_that_names_the_device(url: str) -> None:
    unknown = new_uuid()
    [line] = refused("show", unknown, "--url", url).splitlines()
    assert f"There is no device {unknown}." in line
    [line] = refused("show", "0000:41:00.0", "--url", url).splitlines()
    assert line.endswith("There is no device 0000:41:00.0. Name it by its uuid, or as HOST/PCI-ADDRESS.")
    [line] = refused("show", "host-1/41:00.0", "--url", url).splitlines()
    assert line.endswith("400: '41:00.0' is not a full PCI address, such as 0000:0a:00.1 (domain:bus:slot.function)")


def test_a_service_that_is_not_there_is_one_line_that_says_where_it_was_looked_for() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # bound, not listening: a connection is refused
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        [line] = refused("list", "--url", url).splitlines()
    assert url in line
    assert "--url" in line


def test_a_url_of_another_server_is_named_with_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    def page(_environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/html")])
        return [b"<html>"]

    with served(page, "") as url:
        assert main(["device", "list", "--url", url]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert f"{url} does not answer as Autoclave does, but with '<html>'; name Autoclave's URL with --url" in line


@pytest.mark.parametrize(
    "wrong", ["localhost:6666", "ann:secret@host:6666", "host", "ftp://host", "http://", "http://h:x"]
)
def test_a_url_that_is_none_is_one_line_that_says_what_to_write(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["device", "list", "--url", wrong]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "is not the URL of a service. Use http:// or https://, such as http://127.0.0.1:6666" in line
    assert "secret" not in line


def test_devices_are_listed_by_host_type_and_state(world: World, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    drive, held = world.add_device("0000:01:00.0"), world.add_device("0000:02:00.0", held=True)
    other = world.add_device("0000:01:00.0", host="compute-2", serial="S-2")
    gpu = world.add_device("0000:03:00.0", kind="GPU")

    def listed(*words: str) -> list[str]:
        return [row["uuid"] for row in ask(capsys, url, "list", *words)]

    assert listed("--host", "compute-2") == [other.uuid]
    assert listed("--type", "gpu") == [gpu.uuid]
    assert listed("--state", "held") == [held.uuid]
    assert listed("--host", "compute-1", "--state", "available", "--type", "NVME") == [drive.uuid]
    assert listed("--limit", "2", "--marker", drive.uuid) == [held.uuid, other.uuid]
    assert "must be a whole number" in refused("list", "--limit", "many", "--url", url)


@pytest.mark.parametrize("words", [["device", "list"], ["burned", "list"], ["function", "list"]])
def test_an_empty_list_says_so_on_stderr(
    world: World, url: str, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert main([*words, "--url", url]) == 0
    said = capsys.readouterr()
    assert (said.out, said.err.startswith("There are no ")) == ("", True)
    assert main([*words, "--url", url, "-f", "json"]) == 0
    said = capsys.readouterr()
    assert (json.loads(said.out), said.err) == ([], "")


def accelerator(url: str) -> Any:
    return openstack.connection.Connection(
        auth_type="admin_token",
        auth={"endpoint": url, "token": "admin"},
        accelerator_endpoint_override=f"{url}/accelerator/v2",
        accelerator_default_microversion="2.5",
    ).accelerator


def test_clean_asks_the_agent_to_clean_the_device_in_error(world: World, url: str) -> None:
    device = world.add_device(device_state=ERROR)
    world.see_agent()
    Device(id=device.uuid).clean(accelerator(url))
    assert [asked.uuid for asked in world.agent.asked] == [device.uuid]


def test_clean_raises_what_the_service_refuses(world: World, url: str) -> None:
    with pytest.raises(exceptions.NotFoundException):
        Device(id=new_uuid()).clean(accelerator(url))


def test_devices_are_sorted_by_what_they_wait_for(world: World, url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Those that wait for nothing come last."""
    fine = world.add_device("0000:01:00.0")
    held = world.add_device("0000:02:00.0", held=True, hold_reason="noisy fan")
    out = world.add_device("0000:03:00.0", excluded_reason="no erase")
    rows = ask(capsys, url, "list", "--sort-column", "waiting_for")
    assert [row["uuid"] for row in rows] == [out.uuid, held.uuid, fine.uuid]


def test_columns_that_there_are_not_are_refused(world: World, url: str) -> None:
    device = world.add_device()
    for words in (("list", "-c", "uid"), ("list", "--sort-column", "uid"), ("show", device.uuid, "-c", "uid")):
        assert "uid: no such column. Available columns: " in refused(*words, "--url", url)


def test_details_are_shown_when_their_columns_are_named(
    world: World, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    device = world.add_device()
    assert [set(row) for row in ask(capsys, url, "history", device.uuid, "-c", "event", "-c", "serial")] == [
        {"event", "serial"}
    ]
    assert "serial" not in ask(capsys, url, "history", device.uuid)[0]
