"""What is done with servers: what is refused, and what is true when nobody takes a request over."""

import threading
from typing import Any

import pytest
from api_world import HOST, World, said
from server_requests import MEMBER, act, asked, forbidding

from autoclave.db import instances as instance_rows
from autoclave.rules.instance_states import PowerState, TaskState, VMState

SOME_UUID = "6d5b4c33-9d1c-4a52-8a0e-6f7f8f0a1b2c"


def test_a_server_stops_starts_and_reboots_at_its_hosts_agent(ready: World) -> None:
    uuid = ready.add_server(token=MEMBER)
    for action, value, method, state, power in [
        ("os-stop", None, "stop_instance", "SHUTOFF", PowerState.SHUTDOWN),
        ("os-start", None, "start_instance", "ACTIVE", PowerState.RUNNING),
        ("reboot", {"type": "SOFT"}, "reboot_instance", "ACTIVE", PowerState.RUNNING),
        ("reboot", {"type": "Hard"}, "reboot_instance", "ACTIVE", PowerState.RUNNING),
    ]:
        assert act(ready, uuid, action, value, token=MEMBER).status_code == 202
        assert ready.agent.messages[-1] == (method, uuid)
        shown = ready.compute("GET", f"/servers/{uuid}", token=MEMBER).json["server"]
        assert (shown["status"], shown["OS-EXT-STS:power_state"]) == (state, power)


def assert_nothing_but_deletion_may_be_asked(ready: World, uuid: str, reason: str) -> None:
    for action, value in [
        ("os-stop", None),
        ("reboot", {"type": "HARD"}),
        ("rebuild", {"imageRef": ready.add_image()}),
    ]:
        answer = act(ready, uuid, action, value)
        assert answer.status_code == 409
        assert reason in said(answer)
    assert ready.compute("DELETE", f"/servers/{uuid}").status_code == 204


def test_while_something_is_done_nothing_else_but_deletion_may_be_asked(ready: World) -> None:
    ready.agent.finish = False
    uuid = ready.add_server()
    assert ready.compute("GET", f"/servers/{uuid}").json["server"]["status"] == "BUILD"
    assert_nothing_but_deletion_may_be_asked(ready, uuid, "while it is building and scheduling is under way")
    assert ready.agent.messages[-1] == ("delete_instance", uuid)


def test_a_server_that_its_host_could_not_start_can_only_be_deleted(ready: World) -> None:
    ready.agent.finish = False
    uuid = ready.add_server()
    with ready.db.write() as tx:
        taken = instance_rows.get(tx, uuid)
        assert taken is not None
        failed = {"task_state": None, "vm_state": VMState.ERROR}
        assert instance_rows.swap(tx, taken, expect_task=TaskState.SCHEDULING, **failed)
    assert_nothing_but_deletion_may_be_asked(ready, uuid, "it has never run. Delete it")


def test_of_two_who_stop_a_server_at_once_one_is_told_that_it_is_under_way(ready: World) -> None:
    uuid = ready.add_server()
    ready.agent.finish = False
    start, found = threading.Barrier(2, timeout=60), []

    def stop() -> None:
        start.wait()
        found.append(act(ready, uuid, "os-stop").status_code)

    threads = [threading.Thread(target=stop) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [202, 409]
    assert asked(ready).count("stop_instance") == 1


@pytest.mark.parametrize(
    ("action", "value"), [("os-stop", None), ("reboot", {"type": "HARD"}), ("rebuild", None), ("delete", None)]
)
def test_what_nobody_takes_over_is_not_begun(ready: World, action: str, value: Any) -> None:
    uuid, image = ready.add_server(), ready.add_image("new")
    before = ready.server(uuid)
    assert before is not None
    ready.casts.room = 0
    if action == "delete":
        answer = ready.compute("DELETE", f"/servers/{uuid}")
    elif action == "rebuild":
        answer = act(ready, uuid, "rebuild", {"imageRef": image, "name": "new", "metadata": {"new": "yes"}})
    else:
        answer = act(ready, uuid, action, value)
    assert answer.status_code == 503
    after = ready.server(uuid)
    assert after is not None
    assert (after.task_state, after.rebuild, after.name, after.metadata) == (None, None, before.name, before.metadata)
    assert after.vm_state is before.vm_state


def test_an_agent_that_is_too_old_is_not_asked_and_only_the_log_says_which(
    ready: World, caplog: pytest.LogCaptureFixture
) -> None:
    uuid = ready.add_server(token=MEMBER)
    ready.agent_server.version = "1.1"
    answer = act(ready, uuid, "os-stop", token=MEMBER)
    assert answer.status_code == 409
    assert "cannot run this action" in said(answer)
    assert HOST not in answer.text
    assert f"{HOST} speaks RPC 1.1, not 1.2: upgrade it" in caplog.text
    kept = ready.server(uuid)
    assert kept is not None
    assert kept.task_state is None


def test_a_rebuild_names_the_new_image_and_keeps_the_flavor(ready: World) -> None:
    uuid, image = ready.add_server(), ready.add_image("new", os_type="linux")
    ready.agent.finish = False
    wanted = {"imageRef": image, "metadata": {"k": "v"}, "preserve_ephemeral": False}
    answer = act(ready, uuid, "rebuild", wanted)
    assert answer.status_code == 202
    shown = answer.json["server"]
    assert (shown["id"], shown["status"], shown["metadata"]) == (uuid, "REBUILD", {"k": "v"})
    kept = ready.server(uuid)
    assert kept is not None
    assert (kept.task_state, kept.metadata) == (TaskState.REBUILDING, {"k": "v"})
    wanted = {"image_uuid": image, "image": {"name": "new", "properties": {"os_type": "linux"}}}
    assert kept.rebuild == {**wanted, "checked": True}
    assert asked(ready)[-1] == "rebuild_instance"
    assert ready.compute("GET", f"/servers/{uuid}").json["server"]["status"] == "REBUILD"


def test_a_server_in_error_is_shown_as_being_rebuilt_while_it_is(ready: World) -> None:
    """A client that waits for the end of the rebuild stops at the first ERROR that it is shown."""
    uuid, image = ready.add_server(), ready.add_image("new")
    kept = ready.server(uuid)
    assert kept is not None
    with ready.db.write() as tx:
        instance_rows.swap(tx, kept, expect_task=None, vm_state=VMState.ERROR)
    ready.agent.finish = False
    answer = act(ready, uuid, "rebuild", {"imageRef": image})
    assert answer.json["server"]["status"] == "REBUILD"
    assert [each["id"] for each in ready.compute("GET", "/servers?status=REBUILD").json["servers"]] == [uuid]
    assert ready.compute("GET", "/servers?status=ERROR").json["servers"] == []


def test_a_rebuild_that_the_flavor_forbids_is_400_and_not_begun(ready: World) -> None:
    uuid, image = (
        ready.add_server(flavorRef=forbidding(ready)),
        ready.add_image("new", **{"trait:CUSTOM_X": "required"}),
    )
    answer = act(ready, uuid, "rebuild", {"imageRef": image})
    assert answer.status_code == 400
    assert "CUSTOM_X" in said(answer)
    assert asked(ready) == ["build_instance"]
    kept = ready.server(uuid)
    assert kept is not None
    assert kept.task_state is None


@pytest.mark.parametrize("spec", ["pci_passthrough:alias", "accel:device_profile"])
def test_a_rebuild_does_not_need_the_alias_or_profile_by_which_the_server_got_its_devices(
    ready: World, spec: str
) -> None:
    uuid, image = ready.add_server(), ready.add_image("new")
    kept = ready.server(uuid)
    assert kept is not None
    with ready.db.write() as tx:
        instance_rows.update(tx, kept, {"flavor": {**kept.flavor, "extra_specs": {spec: "gone"}}})
    answer = act(ready, uuid, "rebuild", {"imageRef": image})
    assert answer.status_code == 202, answer.text
    assert ready.compute("GET", f"/servers/{uuid}").json["server"]["image"]["id"] == image


def test_a_rebuild_that_its_host_cannot_satisfy_leaves_the_server_as_it_is_with_a_fault(ready: World) -> None:
    ready.ports.placement.ensure_traits(["CUSTOM_X"])
    uuid, image = ready.add_server(), ready.add_image("new", **{"trait:CUSTOM_X": "required"})
    assert act(ready, uuid, "rebuild", {"imageRef": image}).status_code == 202
    shown = ready.compute("GET", f"/servers/{uuid}").json["server"]
    assert (shown["status"], shown["image"]["id"] == image) == ("ACTIVE", False)
    assert "CUSTOM_X" in shown["fault"]["message"]


def test_a_server_is_rebuilt_as_often_as_it_is_asked_for(ready: World) -> None:
    uuid = ready.add_server()
    for name in ("second", "third"):
        image = ready.add_image(name)
        assert act(ready, uuid, "rebuild", {"imageRef": image}).status_code == 202
        shown = ready.compute("GET", f"/servers/{uuid}").json["server"]
        assert (shown["status"], shown["image"]["id"]) == ("ACTIVE", image)


def test_a_server_that_found_no_host_can_only_be_deleted(world: World) -> None:
    uuid = world.add_server()
    assert world.compute("GET", f"/servers/{uuid}").json["server"]["status"] == "ERROR"
    answer = act(world, uuid, "reboot", {"type": "SOFT"})
    assert answer.status_code == 409
    assert "it has no host" in said(answer)
    assert world.compute("DELETE", f"/servers/{uuid}").status_code == 204
    assert world.compute("GET", f"/servers/{uuid}").status_code == 404


def test_a_deletion_that_is_asked_for_again_is_handed_over_again(ready: World) -> None:
    uuid = ready.add_server()
    ready.agent.finish = False
    for _ in range(2):
        assert ready.compute("DELETE", f"/servers/{uuid}").status_code == 204
    assert asked(ready)[-2:] == ["delete_instance"] * 2
    kept = ready.server(uuid)
    assert kept is not None
    assert kept.task_state is TaskState.DELETING


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"pause": None}, "does not implement"),
        ({"resize": {"flavorRef": "1"}}, "does not implement"),
        ({"fly": None}, "fly"),
        ({"os-start": None, "os-stop": None}, "too many"),
        ({}, "non-empty"),
        ({"reboot": {"type": "WARM"}}, "SOFT or HARD"),
        ({"rebuild": {"imageRef": ""}}, "UUID"),
        ({"rebuild": {"imageRef": SOME_UUID, "adminPass": "x"}}, "nothing is injected into guests"),
        ({"rebuild": {"imageRef": SOME_UUID, "preserve_ephemeral": True}}, "must be false"),
    ],
    ids=str,
)
def test_an_action_that_is_none_is_400(ready: World, body: Any, named: str) -> None:
    answer = ready.compute("POST", f"/servers/{ready.add_server()}/action", body)
    assert answer.status_code == 400
    assert named in said(answer)
